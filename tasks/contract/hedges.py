"""Words around a number: labels that introduce it, remarks that follow it, and the ways of not giving one answer."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from tasks.contract.kinds import Kind
from tasks.contract.units import FORBIDDEN

_ANSWER_WORDS = frozenset(
    """so therefore thus hence then and the a an final correct answer answers our my your total sum result value solution
    number amount it this that which is are be equals equal to we get have find found i was were gives there in all
    of cost price area volume perimeter length distance time speed difference product quotient average mean median
    probability profit age angle remainder count""".split()
)
_VERBS = frozenset("is are equals equal was were get have find found gives be to".split())
_HEAD = re.compile(r"[A-Za-z][A-Za-z ,]{0,80}?[:,]?\s+(?=[+-]?\s*(?:[$€£¥₹]|[\d.\\√π∞]))|[A-Za-z][A-Za-z ]{0,60}:\s*")
_CJK_HEAD = re.compile(
    r"(?:(?:所以|因此|故|那么|最终|最后|正确)[,，:]?\s*)*(?:(?:答案|答|结果|得数|答数|解|值)(?:应该)?|一共|总共|共计|共|合计|总计|等于|得)?"
    r"\s*(?:有|是|为|等于|得)?\s*[:：]?\s*(?:第(?=\d))?"
)
_VARIABLE = re.compile(
    r"(?:\\(?:alpha|beta|gamma|theta|phi|lambda|angle|triangle|Delta)\s*)?[A-Za-z]{0,3}'?(?:_\s*(?:\{\s*\w{1,8}\s*\}|\w))?[₀-₉]*"
    r"(?:\([A-Za-z](?:\s*,\s*[A-Za-z]){0,3}\))?"
)
_LABEL_WORDS = re.compile(r"[A-Za-z\u3400-\u9fff][A-Za-z\u3400-\u9fff ']{0,60}")
_ARITHMETIC = re.compile(r"[\d\s.,+\-*/÷()xX^%$!{}\\√π]+|.*\\frac.*")
_OPERATOR = re.compile(r"[\d)%}]\s*(?:[+\-*/÷xX^!]|\()")
_ONE_NUMBER = re.compile(r"\s*[+-]?\s*\$?\s*(?:\d[\d,]*\.?\d*|\.\d+)\s*%?\s*")
_REMARK = re.compile(r"\s+\(([^()]{1,80}(?:\([^()]{0,40}\)[^()]{0,40})?)\)\s*$")
_NUMBERS = re.compile(r"\d[\d.,]*")
_SEPARATED = re.compile(r"\d\s*(?:[,;]|\s)\s*[-+$]?\s*\d")
_HEDGE_SIGNS = re.compile(r"[±∓≈~≠≤≥<>?∪]|\.\.\.")
_HEDGE_WORDS = re.compile(
    r"\b(?:or|not|no|nor|never|neither|either|between|maybe|perhaps|possibly|probably|likely|about|approximately|approx|"
    r"around|roughly|nearly|almost|least|most|than|over|under|except|but|and|to|through|versus|vs|up|isn't|cannot|unsure)\b"
    r"|[或不非没约]|左右|至少|至多|大约|以上|以下|大于|小于|超过|之间",
    re.IGNORECASE,
)


def split_label(body: str) -> tuple[str | None, str, str]:
    """(label, rest, equation) of a text such as `x = 5`, `Total: $8`, `the answer is 42`, `3 + 5 = 8`.

    The label is "" when there is none and None when what stands in front of the number cannot be a label. The equation
    is the arithmetic left of the last `=`, empty when there is none.
    """
    if "=" in body:
        parts = [part.strip() for part in body.split("=")]
        if len(parts) > 6 or not parts[-1]:
            return None, body, ""
        label, equation = "", ""
        for i, part in enumerate(parts[:-1]):
            if i == 0 and (label_text := _equation_label(part)) is not None:
                label = label_text
            elif _ARITHMETIC.fullmatch(part) and _OPERATOR.search(part) and not _ONE_NUMBER.fullmatch(part):
                equation = part
            else:
                return None, body, ""
        return label, parts[-1], equation
    first = body[:1]
    if first.isdigit() or first in "+-.$\\":
        return "", body, ""
    if first.isalpha() or first == "√":
        return _words(body)
    return "", body, ""


def _equation_label(part: str) -> str | None:
    """A variable or a few words in front of `=`; None when it is neither."""
    if _VARIABLE.fullmatch(part):
        return part or "="
    if _LABEL_WORDS.fullmatch(part) and _harmless(part):
        return " ".join(part.lower().split())
    return None


@lru_cache(maxsize=4096)
def _harmless(words: str) -> bool:
    parts = words.lower().replace("'", " ").split()
    return len(parts) <= 6 and not (FORBIDDEN - {"is", "are", "was", "one", "average", "ratio"}).intersection(parts) and not _HEDGE_WORDS.search(words)


def _words(body: str) -> tuple[str | None, str, str]:
    """Words that introduce an answer."""
    cjk = _CJK_HEAD.match(body)
    if cjk and cjk.end() and not body[0].isascii():
        return "", body[cjk.end() :], ""
    found = _HEAD.match(body)
    if not found:
        return "", body, ""
    head = found.group().strip()
    if head.endswith(":"):
        label = head[:-1].strip()
        return ("", body[found.end() :].strip(), "") if _harmless(label) else (None, body, "")
    words = head.lower().replace(",", " ").split()
    if all(word in _ANSWER_WORDS for word in words) and words[-1] in _VERBS:
        return "", body[found.end() :].strip(), ""
    return "", body, ""


def sound_equation(equation: str, value: Fraction) -> bool:
    """Whether an equation's left side says more than the value itself: `8 = 8` asserts nothing."""
    return not _ONE_NUMBER.fullmatch(equation)


def drop_remark(rest: str, value: Fraction) -> str | None:
    """What follows a number without a closing remark in brackets, or None when the remark takes the number back.

    A remark may be words ("8 (apples)") or an equation that ends in the same value ("8 (since 3+5=8)").
    """
    found = _REMARK.search(rest)
    if not found:
        return rest
    remark = found.group(1)
    if _HEDGE_WORDS.search(remark) or _HEDGE_SIGNS.search(remark):
        return None
    words = set(re.findall(r"[a-z']+", remark.lower()))
    if words & (FORBIDDEN - {"since", "because", "is", "are", "plus", "minus", "times"}):
        return None
    if _NUMBERS.search(remark):
        left, equals, right = remark.rpartition("=")
        number = right.strip().replace(",", "")
        if not equals or not re.fullmatch(r"-?\d{1,300}(?:\.\d{1,300})?", number) or Fraction(number) != value:
            return None
    return rest[: found.start()]


def kind_of(body: str) -> Kind:
    """Why a text without one value has none: `hedged` or `unfinished`."""
    body = body[:2000]
    if _HEDGE_SIGNS.search(body) or _HEDGE_WORDS.search(body):
        return Kind.HEDGED
    if _SEPARATED.search(body) or body.count("=") > 1:
        return Kind.HEDGED
    return Kind.UNFINISHED
