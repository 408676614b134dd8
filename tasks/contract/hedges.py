"""Words around a number: labels that introduce it, remarks that follow it, and the ways of not giving one answer."""

from __future__ import annotations

import re
from functools import lru_cache

from tasks.contract.kinds import Kind
from tasks.contract.words import ANSWER_WORDS, FORBIDDEN, FORBIDDEN_CJK, SCALES, VERBS

_HEAD = re.compile(
    r"[A-Za-z][A-Za-z ,]{0,80}?[:,]?\s+"
    r"(?=(?:negative\s|minus\s)?[+-]?\s*(?:[$€£¥₹]|[\d.\\√π∞]|(?:zero|one|two|three|four|five|six|seven|eight|nine|ten)\b))"
    r"|[A-Za-z][A-Za-z ]{0,60}:\s*"
)
_CJK_HEAD = re.compile(
    r"(?:(?:所以|因此|故|那么|最终|最后|正确)[,，:]?\s*)*(?:(?:答案|答|结果|得数|答数|解|值)(?:应该)?\s*(?:是|为|等于|得)?\s*[:：]?\s*)?"
    r"(?:一共|总共|共计|共|合计|总计|等于|得|是|为)?\s*(?:有|是|为|等于|得)?\s*[:：]?\s*(?:第(?=\d))?"
)
_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|rho|sigma|tau|phi|varphi|psi|omega|Delta)\s*"
    r"|[α-οσ-ωµ]"
)
_VARIABLE = re.compile(
    rf"(?:{_GREEK}|(?:\\(?:angle|triangle|Delta)\s*)?(?:[A-Za-z]|[A-Z]{{2,3}}))'{{0,2}}(?:_\s*(?:\{{\s*\w{{1,8}}\s*\}}|\w))?[₀-₉]*"
    r"(?:(?:(?<=[fgh])\^\s*(?:\{\s*-1\s*\}|-1))?\(-?[A-Za-z0-9](?:\s*,\s*-?[A-Za-z0-9]){0,3}\))?"
    r"|\\frac\s*\{\s*d[a-z]\s*\}\s*\{\s*d[a-z]\s*\}|d[a-z]/d[a-z]|\\overline\s*\{\s*[A-Z]{2}\s*\}"
)
_TUPLE_LABEL = re.compile(r"(?:[A-Za-z]{1,2}|\([A-Za-z](?:\s*,\s*[A-Za-z]){1,5}\))\s*=\s*(?=[(\[⦃])")
_LABEL_WORDS = re.compile(r"[A-Za-z\u3400-\u9fff][A-Za-z\u3400-\u9fff ']{0,60}")
_ONLY_WORDS = re.compile(r"\s*[A-Za-z\u3400-\u9fff][A-Za-z\u3400-\u9fff\s,.'-]*")
_OTHER_QUANTITY = re.compile(r"\s*(?:(?:so|the)\s+)*(?:square|cube|sec)(?:\s+of\s.*)?\s*", re.IGNORECASE | re.DOTALL)
"""What an equation gives instead of the unknown: `square of x = 8`; "area of the square = 8" is a label."""
_NOT_BESIDE = FORBIDDEN | frozenset(SCALES) | {"dozen", "dozens"}
_LABEL_ALLOWED = frozenset({"is", "are", "was", "and", "one", "to", "all"})
_OPERAND = (
    r"(?:\$?\s?\d[\d,]*(?:\.\d+)?%?|\$?\.\d+|\\frac\s*(?:\{\s*-?\d+\s*\}|\d)\s*(?:\{\s*-?\d+\s*\}|\d)"
    r"|√\s*(?:\{\s*\d+\s*\}|\(\s*\d+\s*\)|\d+))!?(?:\s*\^\s*(?:\{\s*-?\d+\s*\}|-?\d+))?"
)
_ARITHMETIC = re.compile(rf"[(+-]*\s?{_OPERAND}\)*(?:\s*(?:[+\-*/÷]\s*\(*-?|\()\s*{_OPERAND}\)*)*")
_TIMES_LETTER = re.compile(r"(?<=\d)\s*[xX]\s*(?=\d)|\*\*")
_OPERATOR = re.compile(r"[\d)%}]\s*(?:[+\-*/÷^!]|\()|√|\\frac")
_SMALL_WORDS = frozenset(
    ("a", "an", "of", "in", "at", "by", "my", "the", "for", "side", "angle", "line", "segment", "point")
)
_VOWEL = re.compile(r"[aeiouyAEIOUY]")
_ONE_NUMBER = re.compile(r"\s*[+-]?\s*\$?\s*(?:\d[\d,]*\.?\d*|\.\d+)\s*%?\s*")
_REMARK_CHARS = 120
_BEFORE_REMARK = re.compile(r"[\w%°$}¢€£]\s+|[\u3400-\u9fff]")
_SEPARATED = re.compile(r"\d\s*[,;]\s*[-+$]?\s*\d|(?<!_)\d\s+\$?\d")
_HEDGE_SIGNS = re.compile(r"[±∓≈~≠≤≥<>?∪]|\.\.\.")
_HEDGE_WORDS = re.compile(
    r"\b(?:or|not|no|nor|never|neither|either|between|maybe|perhaps|possibly|probably|likely|about|approximately|approx|"
    r"around|roughly|nearly|almost|least|most|than|over|under|except|but|and|to|through|versus|vs|up|cannot|unsure|think|guess"
    r"|\w*n't)\b|[或不非没约]|左右|至少|至多|以上|以下|大于|小于|超过|之间",
    re.IGNORECASE,
)
_APPROXIMATE = re.compile(
    r"[≈~]|\b(?:about|approximately|approx|around|roughly|nearly|almost|maybe|perhaps|probably)\b|约|左右",
    re.IGNORECASE,
)


def split_label(body: str) -> tuple[str | None, str, str]:
    """(label, rest, equation) of a text such as `x = 5`, `Total: $8`, `the answer is 42`, `3 + 5 = 8`.

    The label is "" when there is none and None when what stands in front of the number cannot be a label. The equation
    is the arithmetic left of the last `=`, empty when there is none.
    """
    if "=" in body:
        parts = [part.strip() for part in body[:4000].split("=")]
        if len(parts) > 6 or not parts[-1] or len(body) > 4000:
            return None, body, ""
        label, equation = "", ""
        for i, part in enumerate(parts[:-1]):
            label_text = equation_label(part) if i == 0 else None
            if label_text is not None:
                label = label_text
            elif _is_arithmetic(part) or (len(parts) == 2 and _ONE_NUMBER.fullmatch(part)):
                equation = part
            else:
                return None, body, ""
        return label, parts[-1], equation
    first = body[:1]
    if first.isalpha() and first not in "π√":
        return _words(body)
    return "", body, ""


def asserts_nothing(equation: str, rest: str) -> bool:
    """Whether an equation only repeats one number: `8 = 8`, or names two: `7 = 8`."""
    return bool(_ONE_NUMBER.fullmatch(equation)) and "/" not in rest and "\\frac" not in rest


def is_one_number(equation: str) -> bool:
    """Whether the left side of an equation is a finished decimal, so that both sides must agree."""
    return bool(_ONE_NUMBER.fullmatch(equation))


def list_label(body: str) -> str:
    """`body` without a label in front of a bracket: `(x, y) = (1, 2)`."""
    found = _TUPLE_LABEL.match(body)
    return body[found.end() :] if found else body


def _is_arithmetic(part: str) -> bool:
    """Numbers joined by operators, such as `3 + 5`, `2(4)`, `\\frac{16}{2}`, `\\sqrt{64}`: something worked out."""
    part = _TIMES_LETTER.sub("*", part).replace("\\sqrt", "√")
    complete = _ARITHMETIC.fullmatch(part) and part.count("(") == part.count(")")
    return bool(complete and _OPERATOR.search(part)) and not _ONE_NUMBER.fullmatch(part)


def equation_label(part: str) -> str | None:
    """A variable or a few words in front of `=`; None when it is neither."""
    if not part:
        return "="
    if _VARIABLE.fullmatch(part):
        return part
    if _LABEL_WORDS.fullmatch(part) and harmless(part) and _are_words(part):
        return " ".join(part.lower().split())
    return None


def _are_words(part: str) -> bool:
    """Words rather than a product of variables: `total cost`, `value of x`, `so x`, but not `x y` or `kx`."""
    words = part.split()
    if len(words) > 1 and _VARIABLE.fullmatch(words[-1]):
        before = [word.lower() for word in words[:-1]]
        return before[-1] in _SMALL_WORDS or all(word in ANSWER_WORDS or word == "let" for word in before)
    return all(
        not word.isascii() or word.lower() in _SMALL_WORDS or (len(word) > 2 and bool(_VOWEL.search(word)))
        for word in words
    )


@lru_cache(maxsize=4096)
def harmless(words: str, allowed: frozenset[str] = _LABEL_ALLOWED) -> bool:
    """At most seven words, none of which denies, softens, scales or changes a value."""
    if not _ONLY_WORDS.fullmatch(words) or FORBIDDEN_CJK.search(words) or _OTHER_QUANTITY.fullmatch(words):
        return False
    parts = re.findall(r"[^\W\d_]+(?:'t)?", words.lower())
    hedged = any(word not in allowed and _HEDGE_WORDS.search(word) for word in parts)
    return len(parts) <= 7 and not hedged and not _NOT_BESIDE.difference(allowed).intersection(parts)


def _words(body: str) -> tuple[str | None, str, str]:
    """Words that introduce an answer."""
    if not body[0].isascii():
        cjk = _CJK_HEAD.match(body)
        return "", body[cjk.end() :] if cjk else body, ""
    found = _HEAD.match(body)
    if not found:
        return "", body, ""
    head, rest = found.group().strip(), body[found.end() :].strip()
    if head.endswith(":"):
        return ("", rest, "") if harmless(head[:-1]) else (None, body, "")
    words = head.lower().replace(",", " ").split()
    introduces = words[-1] in VERBS or words[-2:] == ["total", "of"]
    return ("", rest, "") if introduces and all(word in ANSWER_WORDS for word in words) else ("", body, "")


def without_introduction(text: str) -> str:
    """A word answer without "The answer is" or "Answer:" in front."""
    return _INTRODUCTION.sub("", text)


_INTRODUCTION = re.compile(r"\s*(?:the\s+)?(?:final\s+)?(?:answer|答案)\s*(?:is|:|=|是|为)\s*:?\s*", re.IGNORECASE)


def split_remark(body: str) -> tuple[str, str]:
    """(text, remark) of "8 (since 3+5=8)"; the remark is empty when the text does not end in a bracketed one."""
    if not body.endswith(")"):
        return body, ""
    level = 0
    for back in range(1, min(len(body), _REMARK_CHARS) + 1):
        ch = body[-back]
        level += (ch == ")") - (ch == "(")
        if level == 0:
            before = body[:-back]
            if _BEFORE_REMARK.search(before[-3:]) and (before[-1:].isspace() or before[-1:] > "\u3400"):
                return before.rstrip(), body[len(body) - back + 1 : -1].strip()
            break
    return body, ""


def harmless_remark(remark: str) -> bool:
    """Whether a remark without a number leaves the answer as it is."""
    return harmless(remark, frozenset(("one", "all")))


def kind_of(body: str) -> Kind:
    """Why a text without one value has none: `hedged` or `unfinished`."""
    body = body[:2000]
    if _HEDGE_SIGNS.search(body) or _HEDGE_WORDS.search(body):
        return Kind.HEDGED
    if _SEPARATED.search(body) or body.count("=") > 1:
        return Kind.HEDGED
    return Kind.UNFINISHED


def is_approximate(body: str) -> bool:
    """Whether a text softens a value ("about 8")."""
    return bool(_APPROXIMATE.search(body[:2000]))
