"""The word lists of answer reading: units, currencies, scales, and words that change, deny or soften a number.

Data only. A word that is in no list is taken for a counted noun ("8 apples") when it can be nothing else.
"""

from __future__ import annotations

import re

_UNIT_NAMES: dict[str, str] = {
    "usd": "usd us$ dollar dollars buck bucks",
    "cent": "¢ cent cents",
    "eur": "eur euro euros",
    "gbp": "gbp quid",
    "inr": "inr rs rupee rupees",
    "cny": "cny rmb yuan 元 块 块钱 人民币",
    "jpy": "jpy yen 日元",
    "°": "degree degrees deg 度",
    "°C": "celsius 摄氏度",
    "°F": "fahrenheit 华氏度",
    "rad": "radian radians rad",
    "mm": "mm mms millimeter millimeters millimetre millimetres 毫米",
    "cm": "cm cms centimeter centimeters centimetre centimetres 厘米",
    "dm": "dm decimeter decimeters 分米",
    "m": "m meter meters metre metres 米",
    "km": "km kms kilometer kilometers kilometre kilometres 千米 公里",
    "in": "inch inches",
    "ft": "ft foot feet 英尺",
    "yd": "yd yard yards",
    "mi": "mi mile miles 英里",
    "mg": "mg milligram milligrams 毫克",
    "g": "g gram grams 克",
    "kg": "kg kgs kilogram kilograms kilo kilos 千克 公斤",
    "t": "t ton tons tonne tonnes 吨",
    "lb": "lb lbs",
    "oz": "oz ounce ounces",
    "ml": "ml mls milliliter milliliters millilitre millilitres 毫升",
    "cl": "cl",
    "l": "l liter liters litre litres 升",
    "gal": "gal gallon gallons",
    "ms": "ms millisecond milliseconds 毫秒",
    "s": "s sec secs second seconds 秒",
    "min": "min mins minute minutes 分钟",
    "h": "h hr hrs hour hours 小时",
    "day": "day days 天",
    "week": "wk week weeks 周 星期",
    "month": "month months 个月",
    "year": "yr yrs year years 年",
    "hz": "hz hertz",
    "n": "n newton newtons 牛",
    "j": "j joule joules 焦",
    "kj": "kj",
    "cal": "cal calorie calories",
    "w": "w watt watts 瓦",
    "kw": "kw kilowatt kilowatts",
    "kwh": "kwh",
    "v": "v volt volts 伏",
    "ohm": "Ω ohm ohms 欧",
    "pa": "pa pascal pascals",
    "mol": "mol moles",
    "K": "K kelvin kelvins",
    "byte": "byte bytes",
    "mb": "mb",
    "gb": "gb",
    "tb": "tb",
    "kb": "kb",
    "ha": "ha hectare hectares",
    "person": "person people persons 人",
    "mi/h": "mph",
    "km/h": "kmh kph",
}
UNITS: dict[str, str] = {alias: name for name, aliases in _UNIT_NAMES.items() for alias in aliases.split()}
"""Spelling -> canonical unit. "pound" is left out: it is a weight and a currency."""

SINGLE_LETTER_UNITS = frozenset("mgshlLtNJWVΩCFKA")
TWO_LETTER_UNITS = frozenset(("us", "sq", "cc", "pt", "qt", "kn", "mw", "mv", "db", "ah", "µm", "μm", "nm", "au"))
EXPONENT_WORDS = {"sq": "^2", "square": "^2", "cubic": "^3"}
LINKS = frozenset(("of", "a", "an", "on", "at"))
"""Short words that may join two nouns after a number: "8 cups of flour", "8 dollars a day"."""
ABBREVIATIONS = frozenset(
    ["rpm", "bpm", "fps", "tsp", "tsps", "tbsp", "tbsps", "sqft", "sqm", "kmph", "dvd", "dvds", "ppl", "pkg", "pkgs"]
)
"""Units and nouns without a vowel; any other such word after a number is a product of variables."""
NO_MEANING = frozenset(
    ("pcs", "unit", "units", "item", "items", "piece", "pieces", "time", "times", "pts", "point", "points")
)
"""Words that say nothing about which unit it is, so that they never make two answers differ."""

PREFIX_CURRENCY = {
    "$": "usd", "us$": "usd", "usd": "usd", "€": "eur", "eur": "eur", "£": "gbp", "gbp": "gbp", "¥": "cny", "rmb": "cny",
    "cny": "cny", "jpy": "jpy", "₹": "inr", "rs": "inr", "rs.": "inr", "inr": "inr", "₩": "krw", "₽": "rub", "₺": "try",
    "a$": "aud", "c$": "cad", "hk$": "hkd", "r$": "brl", "₱": "php", "₫": "vnd", "฿": "thb", "₪": "ils", "₦": "ngn",
}  # fmt: skip
CURRENCY_PATTERN = r"(?:(?:US|A|C|HK|R)?\$|USD|EUR|GBP|RMB|CNY|JPY|INR|Rs\.?|[€£¥₹₩₽₺₱₫฿₪₦])"

SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "millions": 10**6, "billions": 10**9, "trillions": 10**12, "quadrillion": 10**15, "quadrillions": 10**15,
    "quintillion": 10**18, "quintillions": 10**18, "lakh": 10**5, "lakhs": 10**5, "crore": 10**7, "crores": 10**7,
    "百万": 10**6, "千万": 10**7, "万": 10**4, "亿": 10**8, "千": 10**3, "百": 10**2,
}  # fmt: skip
CJK_SCALED_UNIT = re.compile(r"千[克米瓦卡焦帕伏]|百帕")
"""Units that begin with a scale character."""

_FORBIDDEN = """
    or and not no nor none never but except without minus plus divided multiplied over under below above negative
    than most least squared cubed squareroot factorial root mod modulo remainder base power exponent log
    half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths
    ninth ninths tenth tenths hundredth hundredths thousandth thousandths tens ones hundreds thousands
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety couple
    mil mill mille mio mln bln bil mrd lac grand thou permil permille hex hexadecimal octal binary recurring repeating
    is isn are aren was wasn were weren be been being does doesn don did didn cannot can won will would should
    wrong incorrect false untrue unlikely invalid impossible unknown undefined opposite different otherwise instead
    because since unless when while where maybe perhaps probably possibly likely approximately approx about around
    roughly nearly almost estimate estimated guess guessed ish say nope nah
    to through till until between from via versus vs either neither both any all other others another something
    am pm oclock clock january february march april may june july august september october november december
    jan feb mar apr jun jul aug sep sept oct nov dec bc bce
    debt owed loss short excluding exclude excludes unsure think thinks believe infinity infinite nan inf
    double doubled twice triple tripled thrice quadrupled halved if pi e
    reciprocal reciprocals inverse inverses negation logarithm logarithms ln lg sqrt exp sine cosine
    sin cos tan cot csc arcsin arccos arctan sinh cosh tanh
    supposedly presumably apparently seemingly hopefully arguably conceivably incorrectly wrongly inaccurate guessing
    estimation factorials
"""
FORBIDDEN = frozenset(_FORBIDDEN.split())
"""Words beside a number that make it another number, two numbers, or no answer."""

_ORDINAL_NAMES = """
    eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth
    fortieth fiftieth sixtieth seventieth eightieth ninetieth millionth billionth
"""
_NOT_COUNTED = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda omicron rho sigma tau upsilon phi chi omega
    gcd lcm det max maximum minimum tops ballpark conjugate twos threes fours fives sixes sevens eights nines
    score gross doz bps ppm ppb mega giga tera milliard milliards myriad myriads googol zillion zillions
"""
NOT_COUNTED = frozenset(_NOT_COUNTED.split()).union(
    _ORDINAL_NAMES.split(), (name + "s" for name in _ORDINAL_NAMES.split())
)
"""Words that change the number in front of them, but may introduce one: "8 score" is 160, "score: 8" is 8."""

FORBIDDEN_CJK = re.compile(
    r"或|和|与|及|不|非|没|未|无|到|至|左右|大约|约|多|余|以上|以下|以内|以外|之间|半|分之|除|减|加|乘|大于|小于|超过|"
    r"接近|几|错|点|月(?!饼)|日(?!元)|号|平方根|平方$|立方$|次方|十|〇|零|一|二|三|四|五|六|七|八|九|吗|可能|也许|差|负|而是|另|倒数|相反|第|答|是|万|亿|"
    r"两倍|双倍|翻(?!译)|立方根|对数|开方|根号|阶乘|幂|绝对值|取反|"
    r"大概|大致|大体|好像|似乎|估|应该|恐怕|感觉|觉得|看来|猜|附近|出头|开外|将近|之类"
)
NOT_COUNTED_CJK = re.compile(
    r"^[的来]|^成(?![员年])|兆(?![瓦赫欧帕焦位]|字节|比特)|^[京垓]$|的(?:倍|因数|补数)|上下$|(?<![酒网])吧$|[呢么等]$"
)
"""What only changes a number in front of it: 8的因数, 8来个, 8成 (eight tenths), 8兆, 8上下, 8吧."""

_NUMBER_NAMES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty
"""
NUMBER_WORDS = {name: value for value, name in enumerate(_NUMBER_NAMES.split())} | {
    "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
"""Numbers that may be spelled out; compounds such as "twenty-one" are not read."""

_ANSWER_WORDS = """
    so therefore thus hence then and the a an final correct answer answers our my your total sum result value solution
    number amount it this that which is are be equals equal to we get have find found i was were gives there in all of
    cost price area volume perimeter length distance time speed difference product quotient average mean median
    probability profit age angle count
"""
ANSWER_WORDS = frozenset(_ANSWER_WORDS.split())
"""Words that may introduce an answer in a sentence such as "So the total cost is 8"."""
VERBS = frozenset(("is", "are", "equals", "equal", "was", "were", "get", "have", "find", "found", "gives", "be"))
