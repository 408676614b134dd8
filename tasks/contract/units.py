"""What may stand beside a number without changing it: units, currencies, counted nouns, labels; and what may not.

Words that change, deny or soften a value ("not", "or", "than", "squared", "half") are listed; a text that holds one of
them is no answer. A word that is in no list is taken for a counted noun ("8 apples") when it can be nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_UNIT_NAMES: dict[str, str] = {
    "usd": "usd us$ dollar dollars buck bucks",
    "cent": "¢ cent cents",
    "eur": "eur euro euros",
    "gbp": "gbp pound_sterling quid",
    "inr": "inr rs rupee rupees",
    "cny": "cny rmb yuan 元 块 块钱 人民币",
    "jpy": "jpy yen 日元",
    "°": "degree degrees deg 度",
    "°C": "°c celsius 摄氏度",
    "°F": "°f fahrenheit 华氏度",
    "rad": "radian radians rad",
    "mm": "mm millimeter millimeters millimetre millimetres 毫米",
    "cm": "cm centimeter centimeters centimetre centimetres 厘米",
    "dm": "dm decimeter decimeters 分米",
    "m": "m meter meters metre metres 米",
    "km": "km kilometer kilometers kilometre kilometres 千米 公里",
    "in": "inch inches",
    "ft": "ft foot feet 英尺",
    "yd": "yd yard yards",
    "mi": "mi mile miles 英里",
    "mg": "mg milligram milligrams 毫克",
    "g": "g gram grams 克",
    "kg": "kg kilogram kilograms kilo kilos 千克 公斤",
    "t": "t ton tons tonne tonnes 吨",
    "lb": "lb lbs",
    "oz": "oz ounce ounces",
    "ml": "ml milliliter milliliters millilitre millilitres 毫升",
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
    "km/h": "kmh kph",
    "mph": "mph",
    "hz": "hz hertz",
    "n": "n newton newtons 牛",
    "j": "j joule joules 焦",
    "kj": "kj",
    "cal": "cal calorie calories kcal",
    "w": "w watt watts 瓦",
    "kw": "kw kilowatt kilowatts",
    "kwh": "kwh",
    "v": "v volt volts 伏",
    "ohm": "Ω ohm ohms 欧",
    "pa": "pa kpa pascal pascals",
    "mol": "mol moles",
    "K": "K kelvin kelvins",
    "byte": "kb mb gb tb byte bytes",
    "person": "person people persons 人",
    "ha": "ha hectare hectares",
    "au": "au",
}
_CANONICAL = {alias: name for name, aliases in _UNIT_NAMES.items() for alias in aliases.replace("_", " ").split()}
_NO_MEANING = frozenset(["sq", "square", "cubic", "unit", "units", "item", "items", "piece", "pieces", "time", "times", "pts", "points", "point"])
"""Words that say nothing about which unit it is, so that they never make two answers differ."""

_PREFIX_CURRENCY = {
    "$": "usd", "us$": "usd", "usd": "usd", "€": "eur", "eur": "eur", "£": "gbp", "gbp": "gbp", "¥": "cny", "rmb": "cny",
    "cny": "cny", "jpy": "jpy", "₹": "inr", "rs": "inr", "rs.": "inr", "inr": "inr", "₩": "krw", "₽": "rub", "₺": "try",
    "a$": "aud", "c$": "cad", "hk$": "hkd", "r$": "brl", "₱": "php", "₫": "vnd", "฿": "thb", "₪": "ils", "₦": "ngn",
}  # fmt: skip
CURRENCY = r"(?:(?:US|A|C|HK|R)?\$|USD|EUR|GBP|RMB|CNY|JPY|INR|Rs\.?|[€£¥₹₩₽₺₱₫฿₪₦])"

_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "万": 10**4, "亿": 10**8, "千": 10**3, "百": 10**2, "百万": 10**6, "千万": 10**7,
}  # fmt: skip

FORBIDDEN = frozenset(
    ["or", "and", "not", "no", "nor", "none", "never", "but", "except", "without", "minus", "plus", "times", "divided", "multiplied", "over", "under", "below", "above", "negative", "than", "most", "least", "squared", "cubed", "squareroot", "factorial", "root", "mod", "modulo", "remainder", "base", "power", "exponent", "log", "half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifth", "fifths", "sixth", "sixths", "seventh", "sevenths", "eighth", "eighths", "ninth", "ninths", "tenth", "tenths", "hundredth", "hundredths", "thousandth", "thousandths", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "dozenth", "couple", "is", "isn", "isnt", "are", "aren", "arent", "was", "wasn", "were", "weren", "be", "been", "being", "does", "doesn", "don", "did", "didn", "cannot", "can", "wrong", "incorrect", "false", "untrue", "unlikely", "invalid", "impossible", "unknown", "undefined", "opposite", "different", "otherwise", "instead", "because", "since", "if", "unless", "when", "while", "where", "maybe", "perhaps", "probably", "possibly", "likely", "approximately", "approx", "about", "around", "roughly", "nearly", "almost", "estimate", "estimated", "guess", "guessed", "ish", "say", "to", "through", "till", "until", "between", "from", "via", "versus", "vs", "either", "neither", "both", "any", "all", "other", "others", "another", "something", "am", "pm", "oclock", "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec", "bc", "bce", "debt", "owed", "loss", "short", "excluding", "exclude", "excludes", "unsure", "think", "thinks", "believe", "infinity", "infinite", "nan", "inf", "double", "doubled", "twice", "triple", "tripled", "thrice", "quadrupled", "halved", "clock", "e"]
) - {"times", "second"}  # fmt: skip
FORBIDDEN_CJK = re.compile(
    r"或|和|与|及|不|非|没|未|无|到|至|左右|大约|约|多|余|以上|以下|以内|以外|之间|半|分之|除|减|加上|加|乘|大于|小于|超过|"
    r"接近|几|错|点|月(?!饼)|日(?!元)|号|平方根|平方$|立方$|次方|十|〇|零|一|二|三|四|五|六|七|八|九|吗|可能|也许|差|负|而是|另"
)
_CJK = re.compile(r"[\u3400-\u9fff]")
_CJK_OK_MONTH = re.compile(r"^个月")
_TOKEN = re.compile(
    r"(?:mm|cm|dm|m|km|in|ft|yd|mi)[23](?!\w)|[^\W\d_]+(?:['-][^\W\d_]+)*|\^\s*\{?\s*-?\d\s*\}?|[°%]|\S"
)
_HYPHEN = re.compile(r"-[^\W\d_]{2}")
_SINGLE_LETTER_UNITS = frozenset("mgshlLtNJWVΩCFKA")
_NEEDS_MORE = frozenset(("per", "sq", "square", "cubic", "/", "*"))
_CHANGED = re.compile(r"\w{2,}(?<!e)ed")  # "8 doubled", "8 rejected": a lone participle changes the number
_MAX_SUFFIX = 64
_MAX_WORDS = 5


@dataclass(frozen=True)
class Suffix:
    """What stands after a number: a scale to multiply by, a unit if known, and whether it is a percentage or dozens."""

    scale: Fraction = Fraction(1)
    unit: str = ""
    percent: bool = False
    dozen: bool = False


PLAIN = Suffix()


def prefix_currency(symbol: str) -> str:
    """Canonical currency of a sign before a number ("$", "US$", "Rs."); empty when unknown."""
    return _PREFIX_CURRENCY.get(symbol.strip().lower(), "")


@lru_cache(maxsize=4096)
def read_suffix(text: str) -> Suffix | None:
    """The meaning of what follows a number (blank if it was apart), or None when it makes it something else.

    Examples: `" dollars"`, `" cm^2"`, `"%"`, `"个苹果"`, `" km/h"`, `" million dollars"`; None for `" or so"`, `"x"`,
    `" squared"`, `" more than x"`, `":30"`.
    """
    if len(text) > _MAX_SUFFIX:
        return None
    if _HYPHEN.match(text):
        text = " " + text[1:]
    glued = text[:1] not in ("", " ")
    tokens = _TOKEN.findall(text)
    if not tokens:
        return PLAIN
    scale, percent, dozen = Fraction(1), False, False
    units: list[str] = []
    words = 0
    previous = ""
    for i, token in enumerate(tokens):
        lower = token.lower()
        if token[-1] in "23" and token[0].isalpha():
            units.extend((_CANONICAL[token[:-1]], "^" + token[-1]))
            previous = "^"
            continue
        if token[0] == "^":
            if not previous[:1].isalpha() or previous in ("per",):
                return None
            units.append("^" + re.sub(r"\D", "", token))
            previous = "^"
            continue
        if (
            lower in ("%", "percent", "percentage")
            or (lower == "per"
            and i + 1 < len(tokens)
            and tokens[i + 1] == "cent")
        ):
            if percent or units or words:
                return None
            percent = True
        elif lower == "cent" and previous == "per" and percent:
            pass
        elif token == "°":
            if i:
                return None
            units.append("°")
        elif token[0].isalpha() or "\u3400" <= token[0] <= "\u9fff":
            words += 1
            if words > _MAX_WORDS:
                return None
            if lower in _SCALES and not words > 1:
                scale = Fraction(_SCALES[lower])
            elif lower in ("dozen", "dozens") and words == 1:
                dozen = True
            elif _CJK.search(token):
                rest = token
                if words == 1 and not percent:
                    scale, rest = _cjk_scale(token)
                if FORBIDDEN_CJK.search(_CJK_OK_MONTH.sub("个", rest)):
                    return None
                units.append(_CANONICAL.get(rest, ""))
            elif not _counted_word(token, lower, glued and i == 0, previous):
                return None
            elif lower not in _NO_MEANING:
                units.append(_unit_of(token, previous))
        elif token in ("/", "*"):
            following = tokens[i + 1] if i + 1 < len(tokens) else ""
            if (
                not following
                or previous in ("/", "*")
                or (i == 0
                and (token == "*" or (len(following) < 2 and following not in "hs")))
            ):
                return None
            if i == 0 and following.lower() not in _CANONICAL:
                return None
            units.append(token)
        elif token == "." and previous[:1].isalpha():
            pass
        elif token in ("€", "£", "¥", "₹", "$", "¢") and i == 0 and len(tokens) == 1:
            units.append(prefix_currency(token) or "cent")
        else:
            return None
        previous = lower
    if previous in _NEEDS_MORE or (words == 1 and _CHANGED.fullmatch(previous)):
        return None
    return Suffix(scale, _joined(units), percent, dozen)


def _joined(units: list[str]) -> str:
    """One name for a compound unit, or empty when part of it is unknown."""
    if not units or any(not unit for unit in units):
        return ""
    return "".join(units)


def _unit_of(token: str, previous: str) -> str:
    if token in _CANONICAL:
        return _CANONICAL[token]
    if previous == "°" and token in ("C", "F"):
        return token
    return _CANONICAL.get(token.lower(), "")


def _cjk_scale(token: str) -> tuple[Fraction, str]:
    for name in ("百万", "千万", "万", "亿", "千", "百"):
        if token.startswith(name) and not re.match(r"[千百][克米瓦卡焦帕伏]", token):
            return Fraction(_SCALES[name]), token[len(name) :]
    return Fraction(1), token


def _counted_word(token: str, lower: str, glued: bool, previous: str) -> bool:
    """Whether a Latin word after a number is a unit or a counted noun."""
    if (
        ("'" in lower
        and not lower.endswith("'s"))
        or lower in FORBIDDEN
        or any(part in FORBIDDEN for part in re.split("['-]", lower))
    ):
        return False
    if previous == "°":
        return token in ("C", "F", "c", "f")
    if len(token) == 1:
        return token in _SINGLE_LETTER_UNITS and not (glued and token in "KA")
    known = lower in _CANONICAL or lower in _NO_MEANING
    if known:
        return True
    if len(token) == 2:
        return (
            (lower == "in" and not glued) or lower in ("sq", "cc", "pt", "qt", "kn", "mw", "mv", "db", "ah", "µm", "nm")
        )
    if lower == "per":
        return True
    return not glued or (len(token) >= 4 and any(vowel in lower for vowel in "aeiou"))
