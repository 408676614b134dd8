"""Worked answers: what is the gold in another spelling, and what is not. `docs/answers.md` explains the decisions.

Tables are `answer | gold` lines; a vertical bar inside an answer is avoided.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from tasks.contract.answers import parse_answer, read, same_answer
from tasks.contract.kinds import Kind

SAME = r"""
8 | 8
8. | 8
8。 | 8
"8" | 8
“8” | 8
`8` | 8
**8** | 8
*8* | 8
__8__ | 8
$8$ | 8
$$8$$ | 8
\(8\) | 8
\[8\] | 8
\boxed{8} | 8
$\boxed{8}$. | 8
\boxed{\text{8}} | 8
\boxed{ \frac{1}{2} } | 1/2
\boxed{8\text{ apples}} | 8
\boxed 8 | 8
\fbox{8} | 8
{8} | 8
(8) | 8
((8)) | 8
\mathbf{8} | 8
\displaystyle\frac{1}{2} | 1/2
8.0 | 8
08 | 8
008.50 | 8.5
5. | 5
.5 | 0.5
-.5 | -0.5
+8 | 8
+ 8 | 8
- 8 | -8
-0 | 0
0.0 | 0
−8 | -8
–8 | -8
－８ | -8
negative 8 | -8
minus 8 | -8
(-8) | -8
４２ | 42
٤٢ | 42
𝟖 | 8
1,234 | 1234
1,234,567.89 | 1234567.89
1，234，567 | 1234567
1{,}234 | 1234
1\,234 | 1234
1 234 567 | 1234567
1'234 | 1234
1’234 | 1234
1_000_000 | 1000000
1.234,5 | 1234.5
1.234.567 | 1234567
1.234.567,89 | 1234567.89
3,5 | 3.5
0,123 | 0.123
1/2 | 0.5
1 / 2 | 0.5
-1/2 | -0.5
1/-2 | -0.5
2/4 | 1/2
7/1 | 7
\frac{1}{2} | 0.5
\dfrac{1}{2} | 0.5
\tfrac{1}{2} | 0.5
\cfrac{1}{2} | 0.5
\frac12 | 0.5
\frac 1 2 | 0.5
\frac1{2} | 0.5
\frac{1}2 | 0.5
-\frac{1}{2} | -0.5
\frac{-1}{2} | -0.5
\frac{-1}{-2} | 0.5
\left(\frac{1}{2}\right) | 1/2
３/４ | 0.75
½ | 0.5
1½ | 1.5
-1½ | -1.5
⅓ | 1/3
1⁄2 | 1/2
1 1/2 | 1.5
-1 1/2 | -1.5
1 and 1/2 | 1.5
1\frac{1}{2} | 1.5
1 \frac{1}{2} | 1.5
1\dfrac12 | 1.5
0.\overline{3} | 1/3
0.(3) | 1/3
0.1\overline{6} | 1/6
1e3 | 1000
1.2E-3 | 0.0012
1e+3 | 1000
-1e3 | -1000
1 × 10^3 | 1000
1x10^3 | 1000
1*10^3 | 1000
1·10^3 | 1000
1 \times 10^{3} | 1000
1.2 \cdot 10^{-3} | 0.0012
6.02×10²³ | 602000000000000000000000
10^{-2} | 0.01
10³ | 1000
3 × 10^8 m/s | 300000000
$8 | 8
$ 8 | 8
\$8 | 8
$8.00 | 8
8$ | 8
-$8 | -8
$-8 | -8
$1,234.50 | 1234.5
US$8 | 8
USD 8 | 8
8 USD | 8
€8 | 8
8 € | 8
￥8.5 | 8.5
Rs. 500 | 500
18 cents | 18
18¢ | 18
8 dollars | 8
8 dollars each | 8
$8 per hour | 8
$8/kg | 8
8 apples | 8
8 red apples | 8
8 more apples | 8
8 apples in total | 8
8 years old | 8
8-year-olds | 8
8 people | 8
8th | 8
1st | 1
22nd place | 22
5^{\text{th}} | 5
8 cm | 8
8cm | 8
8\text{ cm}^2 | 8
8 \mathrm{~cm}^2 | 8
12 cm² | 12
12 cm2 | 12
12 square cm | 12
12 sq. ft. | 12
9.8 m/s^2 | 9.8
9.8 m s^{-2} | 9.8
60 km per hour | 60
8 ㎡ | 8
90° | 90
90º | 90
90^\circ | 90
90^{\circ} | 90
90 degrees | 90
25℃ | 25
25^\circ\text{C} | 25
-8°C | -8
5 million | 5000000
$2.5 million | 2500000
3万 | 30000
3千米 | 3
8百米 | 800
eight apples | 8
The answer is eight | 8
one hundred | 100
negative five | -5
8 (eight) | 8
8 cups of flour | 8
$8 a day | 8
8 on each side | 8
90^{o} | 90
2 dozen | 24
2 dozen eggs | 2
8个苹果 | 8
８个 | 8
8元 | 8
8块钱 | 8
8平方厘米 | 8
8个月 | 8
答案是8 | 8
答案：8 | 8
答：一共8个。 | 8
一共有8个苹果 | 8
等于8 | 8
第8名 | 8
负8 | -8
（8） | 8
x = 5 | 5
x=-5 | -5
x = \frac{1}{2} | 0.5
x_1 = 5 | 5
x_{max} = 5 | 5
f(x) = 5 | 5
f(2) = 5 | 5
P(A) = 1/2 | 0.5
\theta = 30^\circ | 30
Total cost = $18 | 18
Total: 8 apples | 8
Answer: 8 | 8
Answer:
8 | 8
**Answer:** 8 | 8
The answer is 8. | 8
The final answer is $\boxed{8}$. | 8
The answer is negative 8 | -8
So the total cost is $8 | 8
a total of 8 apples | 8
3 + 5 = 8 | 8
x = 3 + 5 = 8 | 8
3 \times 5 = 15 | 15
16/2 = 8 | 8
\sqrt{64} = 8 | 8
1/2 = 0.5 | 0.5
0.5 = 1/2 | 0.5
8 (since 3+5=8) | 8
8 (apples) | 8
1/2 (0.5) | 0.5
8（个） | 8
2\sqrt{3} | \sqrt{12}
√12 | 2\sqrt{3}
2*sqrt(3) | 2\sqrt{3}
\frac{\sqrt{3}}{2} | \sqrt{3}/2
\frac{1}{2}\sqrt{3} | \frac{\sqrt{3}}{2}
12\pi \text{ cm}^2 | 12\pi
2 pi | 2\pi
\frac{5\pi}{6} | 5\pi/6
∞ | \infty
-\infty | -\infty
(1,2) | (1, 2)
\left(1, -2\right) | (1,-2)
(\frac12, 3) | (0.5, 3)
(x, y) = (1, 2) | (1,2)
(-\infty, 5] | (-\infty,5]
\{1, 2\} | \{2,1\}
1 and 2 | 2, 1
x = 1, y = 2 | y=2, x=1
x=2, x=1 | x=1, x=2
x=1 or x=2 | 2, 1
1, 2 | (1,2)
75% | 75
75% | 0.75
75\% | 3/4
75％ | 75%
75 percent | 75
0.75 | 75%
75 | 75%
150% | 1.5
0.5% | 0.005
12 cm | 12 centimeters
12 sq cm | 12 cm^2
5 km | 5
5 | 5 km
$12 | 12 dollars
8 | #### 8
1,000 | 40 * 25 = 1000\n#### 1000
42 | Thus the result is \boxed{42}.
Tuesday | tuesday
\text{Tuesday} | Tuesday
The answer is Tuesday | Tuesday
(B) | B
B | \text{(B)}
12:30 | 12:30
3 : 2 | 3:2
8 gyms | 8
8 spies | 8
8 DVDs | 8
8 rpm | 8
8 tbsp | 8
8 kgs | 8 kg
8 zeros | 8
8 basis vectors | 8
8 tangents | 8
8 cubes | 8
8 psi | 8
8 lakhs | 800000
8 quadrillion | 8000000000000000
8倍 | 8
8等份 | 8
8兆瓦 | 8
8个网吧 | 8
8名成员 | 8
8个因数 | 8
8个来回 | 8
8米的绳子 | 8
Final score: 8 | 8
gross profit = $8 | 8
theta = 30 | 30
max = 8 | 8
area of the square = 16 | 16
volume of cube = 8 | 8
中位数 = 8 | 8
1, -1 | \pm 1
-1 and 1 | \pm 1
\{1, -1\} | \pm 1
x = \pm 1 | \pm 1
x=1 or x=-1 | x = \pm 1
\pm 1 | 1, -1
\pm 1 | x=1, x=-1
\sqrt{3}, -\sqrt{3} | \pm\sqrt{3}
x = \pm\sqrt{3} | \pm\sqrt{3}
θ = 30 | 30
f^{-1}(2) = 5 | 5
8 N m | 8
1, 2 or 3 | 1, 2 or 3
1, 2, 3 | 1, 2 or 3
1 or 2 or 3 | 1, 2, 3
1, 2 | x=1, y=2
"""

DIFFERENT = r"""
9 | 8
18 | 8
80 | 8
-8 | 8
8.7 | 8
8.0000001 | 8
43 | 42
2023 | 2024
9007199254740993 | 9007199254740992
0.3333333333333333 | 1/3
0.333... | 1/3
3.14159265358979 | \pi
1.414 | \sqrt{2}
1.2 | 12
1.234 | 1234
1,234 | 1.234
0,123 | 123
5 or 7 | 5
either 8 or 9 | 8
8/9/10 | 8
8, 9 | 8
8; 9 | 8
8 9 | 8
8 and 9 | 8
1 2 3 4 5 6 7 8 9 10 | 8
1 2 | 12
1,2 | 12
12,34 | 1234
1,00,000 | 100000
1,0000 | 10000
1, 234 | 1234
1  234 | 1234
1_00 | 100
8、9 | 8
1、234 | 1234
8或9 | 8
8到9个 | 8
7-9 | 8
7 to 9 | 8
between 7 and 9 | 8
8 - 9 | 8
8–9 | 8
at least 8 | 8
8 or more | 8
more than 8 | 8
> 8 | 8
≥8 | 8
x \ge 8 | 8
x \neq 8 | 8
1 \le x \le 9 | 5
not 8 | 8
no 8 | 8
isn't 8 | 8
8 won't do | 8
anything but 8 | 8
不是8 | 8
±8 | 8
\pm8 | -8
8 ± 1 | 8
about 8 | 8
~8 | 8
≈8 | 8
\approx 8 | 8
x \approx 8 | 8
约8 | 8
8个左右 | 8
至少8个 | 8
8多个 | 8
8? | 8
8？ | 8
maybe 8 | 8
I think 8 | 8
8! | 40320
4! | 24
3 + 5 | 8
(3+5) | 8
10 - 2 | 8
2 * 4 | 8
2 \times 4 | 8
16/2 | 8
\frac{16}{2} | 8
16 \div 2 | 8
48/2+48 | 72
(2)(4) | 8
2^{3} | 8
2³ | 8
2**3 | 8
\sqrt{64} | 8
8^1 | 8
8² | 8
8 squared | 8
8 doubled | 8
half of 16 | 8
8 halves | 8
8 tenths | 8
8 point 5 | 8
8个半 | 8
5 and a half | 5
8½ | 8
8 million | 8
8 mil | 8
8k | 8
8M | 8
8x | 8
8 x | 8
8xy | 8
8a | 8
8i | 8
8e | 8
8π | 8
8\sqrt{2} | 8
8_2 | 8
0x8 | 8
8:30 | 8
12:30 | 12
8 pm | 8
8pm | 8
8 o'clock | 8
8点 | 8
8月 | 8
May 8 | 8
8 May | 8
2024-05-08 | 8
5/8/2024 | 8
8/0 | 8
\frac{1}{0} | 0
nan | 5
NaN | nan
inf | inf
1e999 | inf
1e1000000000 | 5
1e-999999999 | 0
10^{10^{10}} | 8
8 | inf
2 hours 30 minutes | 2
5'3" | 5
5 feet 3 inches | 5
8 of 10 | 8
8 remainder 2 | 8
8余2 | 8
8 more than x | 8
8 degrees below zero | 8
8 dollars in debt | 8
8 minus 2 | 8
8=8 | 8
7 = 8 | 8
8 = 9 | 8
3 + 5 = 8 | 3
3 + 5 = 8 or 9 | 8
3 + 5 = 8 = 9 | 8
x=5, y=7 | 5
x = y | 8
2x = 16 | 16
-x = 5 | 5
x^2 = 64 | 64
|x| = 5 | 5
x + 8 | 8
8 (or 9) | 8
8 (9) | 8
8 (not 9) | 8
8 (3+5=9) | 8
8 is wrong | 8
Not the answer: 8 | 8
The wrong answer is 8 | 8
The answer is not 8 | 8
The number before 9 is 8 | 8
She has 8 apples | 8
your answer | 8
eight or nine | 8
eighty-eight | 88
two thirds | 2
8 (nine) | 8
8 a.m. | 8
8 of 10 | 8
8... | 8
8 (million) | 8
8 (- apples) | 8
not = 8 | 8
x y = 8 | 8
mx = 8 | 8
8 + = 8 | 8
3 = 8 + 0 = 8 | 8
8 = 8 apples | 8
8个苹果x | 8
五 | 5
(8, 9) | 8
[8] | 8
(8 | 8
8) | 8
--8 | 8
8+ | 8
8^ | 8
1e3.5 | 1000
1..5 | 1.5
3 5/3 | 14/3
\frac{1.5}{2} | 0.75
\frac{8}{} | 8
|8| | 8
\cancel{8} | 8
~~8~~ | 8
Step 8 | 8
No. 8 | 8
0.75 | 75
0.75% | 75
0.75% | 0.75
8% | 0.8
$5 | €5
5 cm | 5 km
5 cm | 5 cm^2
(1,2) | (2,1)
1 or 2 | (1,2)
x=2, y=1 | x=1, y=2
(1,2) | [1,2]
1, 2 | 1, 2, 3
-∞ | \infty
A or B | A
AB | A
12:30 | 12:31
3:2 | 2:3
__import__("os").getpid() | 8
8的两倍 | 8
8的立方根 | 8
8的对数 | 8
8的因数 | 8
8的位数 | 8
8的补数 | 8
8的绝对值 | 8
8米的两倍 | 8
8双倍 | 8
8翻倍 | 8
8翻了一番 | 8
8开方 | 8
8开根号 | 8
8阶乘 | 8
8取反 | 8
8兆 | 8
8京 | 8
8成 | 8
8大概 | 8
8个大概 | 8
8好像 | 8
8似乎 | 8
8大致 | 8
8大体 | 8
8估计 | 8
8应该 | 8
8恐怕 | 8
8感觉 | 8
8看来 | 8
8猜的 | 8
8附近 | 8
8出头 | 8
8开外 | 8
8将近 | 8
8上下 | 8
8个上下 | 8
8来个 | 8
8来岁 | 8
8之类 | 8
8等 | 8
8吧 | 8
8呢 | 8
8么 | 8
8 theta | 8
8 alpha | 8
8 lambda | 8
8 omega | 8
8 sin | 8
8 cos | 8
8 tan | 8
8 sinh | 8
8 exp | 8
8 sine | 8
8 logarithm | 8
8 gcd | 8
8 det | 8
8 max | 8
8 minimum | 8
8 tops | 8
8 xyz | 8
8 xyzw | 8
8 abc | 8
8 axy | 8
8 abcd | 8
8 pqr | 8
8 uvw | 8
8 score | 8
8 gross | 8
8 gross of pens | 8
8 doz | 8
8 basis points | 8
8 bps | 8
8 ppm | 8
8 reciprocal | 8
8 inverse | 8
8 conjugate | 8
8 twos | 8
8 elevenths | 8
8 twelfths | 8
8 fifteenths | 8
8 twentieths | 8
8 millionths | 8
8 lakhs | 8
8 crores | 8
8 trillions | 8
8 quadrillion | 8
8 milliard | 8
8 myriad | 8
8 googol | 8
8 zillion | 8
8 mega | 8
8 supposedly | 8
8 presumably | 8
8 apparently | 8
8 seemingly | 8
8 wrongly | 8
8 guessing | 8
8 estimation | 8
8 factorials | 8
8theta | 8
8xyz | 8
8abcd | 8
8score | 8
8lakhs | 8
8 (reciprocal) | 8
reciprocal: 8 | 8
reciprocal of x = 8 | 8
inverse = 8 | 8
additive inverse: 8 | 8
negation: 8 | 8
square of x = 8 | 8
the square of the answer: 8 | 8
square = 8 | 8
Square: 8 | 8
cube of x = 8 | 8
cube: 8 | 8
sin = 8 | 8
cos: 8 | 8
sec = 8 | 8
arcsin = 8 | 8
exp = 8 | 8
logarithm: 8 | 8
cosine of x = 8 | 8
x的两倍 = 8 | 8
立方根 = 8 | 8
对数 = 8 | 8
supposedly = 8 | 8
8 (score of 20) | 8
(-x) = 8 | 8
(3) = 8 | 8
\theta x = 8 | 8
8 m g h | 8
\pm 1 | 1
1 | \pm 1
\pm 2 | \pm 1
1, -2 | \pm 1
x=1, y=-1 | \pm 1
\pm 1 | x=1, y=-1
\pm 1 | (1, -1)
2\pm 1 | \pm 1
1,2 or 3 | 1,2,3
1, 2, or 3 | 1,2,3
1 and 2 or 3 | 1,2,3
1 or 2, 3 | 1,2,3
(1, 2 or 3) | (1,2,3)
\{1, 2 or 3\} | \{1,2,3\}
(1 or 2) | (1,2)
2, 1 | x=1, y=2
\{1, 2\} | x=1, y=2
8 | She has 8 apples left
8 | about 8
"""


def rows(table: str) -> list[tuple[str, str]]:
    lines, held = [], ""
    for line in table.strip("\n").split("\n"):
        held = f"{held}\n{line}" if held else line
        if " | " in held:
            answer, gold = held.rsplit(" | ", 1)
            lines.append((answer, gold.replace("\\n####", "\n####")))
            held = ""
    return lines


@pytest.mark.parametrize(("answer", "gold"), rows(SAME))
def test_same(answer: str, gold: str) -> None:
    assert same_answer(answer, gold)


@pytest.mark.parametrize(("answer", "gold"), rows(DIFFERENT))
def test_different(answer: str, gold: str) -> None:
    assert not same_answer(answer, gold)


@pytest.mark.parametrize("blank", ["\u00a0", "\u2009", "\u202f", "\u3000"])
def test_thin_and_wide_blanks_group_thousands(blank: str) -> None:
    assert same_answer(f"1{blank}234", "1234")


@pytest.mark.parametrize("text", ["8\u200b", "\ufeff8", "\n\n8\n", "8\r\n", "\t8 "])
def test_invisible_characters_and_line_ends(text: str) -> None:
    assert same_answer(text, "8")


@pytest.mark.parametrize("text", ["8\n9", "1\n234", "1\t234", "8,\n9"])
def test_lines_are_not_joined_to_one_number(text: str) -> None:
    assert parse_answer(text) is None or parse_answer(text).fraction is None  # type: ignore[union-attr]
    assert not same_answer(text, "1234")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", Fraction(2469, 2)),
        ("-1 3/4", Fraction(-7, 4)),
        ("1.2e-3", Fraction(3, 2500)),
        ("75%", Fraction(3, 4)),
        ("0.1\\overline{6}", Fraction(1, 6)),
        ("2 dozen", Fraction(24)),
        ("1.234,5", Fraction(2469, 2)),
    ],
)
def test_exact_values(text: str, value: Fraction) -> None:
    parsed = parse_answer(text)
    assert parsed is not None
    assert parsed.fraction == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", Kind.EMPTY),
        ("  \n", Kind.EMPTY),
        ("\\boxed{}", Kind.EMPTY),
        ("8", Kind.RIGHT),
        ("3 + 5", Kind.UNFINISHED),
        ("16/2", Kind.UNFINISHED),
        ("your answer", Kind.UNFINISHED),
        ("nan", Kind.UNFINISHED),
        ("9^{9^{9^{9}}}", Kind.UNFINISHED),
        ("not 8", Kind.HEDGED),
        ("±8", Kind.HEDGED),
        ("about 8", Kind.HEDGED),
        ("1 2 3", Kind.HEDGED),
        ("x=5 y=7", Kind.HEDGED),
        ("8 = 8", Kind.HEDGED),
    ],
)
def test_kinds_of_text(text: str, kind: Kind) -> None:
    assert read(text).kind is kind


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("7" * 5000, "7" * 5000, True),
        ("7" * 5000, "7" * 4999 + "8", False),
        ("7" * 4301, "7" * 4301, True),
        ("1" + ",000" * 1500, "1" + "000" * 1500, True),
        ("$" + "7" * 5000 + "$", "7" * 5000, True),
        ("\\boxed{" + "7" * 5000 + "}", "7" * 5000, True),
        ("1e5000", "1" + "0" * 5000, True),
        ("8." + "0" * 5000, "8", True),
        ("8." + "0" * 4999 + "1", "8", False),
        ("0" * 5000 + "8", "8", True),
        ("0." + "3" * 5000, "1/3", False),
        ("3" * 5000 + "/" + "1" * 4999, "3", False),
        ("1e" + "9" * 400, "8", False),
        ("1e-" + "9" * 400, "0", False),
        ("9" * 100_000, "8", False),
        ("(" * 2000 + "8" + ")" * 2000, "8", False),
    ],
)
def test_sizes(answer: str, gold: str, same: bool) -> None:
    assert same_answer(answer, gold) is same
