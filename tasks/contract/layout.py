"""Layout that does not change a value: Unicode forms, LaTeX wrappers, markdown, quotes. Linear in the text's length.

After `tidy`, a text has ASCII digits, `-` for every minus sign, `*` for a multiplication sign, `,` and `.` for full-width
ones, superscripts as `^{..}`, and no wrappers such as `\\boxed`, `\\text`, `\\left` or `$`.
"""

from __future__ import annotations

import re
import unicodedata

_SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_SUPER_RUN = re.compile(f"[{_SUPERSCRIPT}]+")
_SUPER_ASCII = str.maketrans(_SUPERSCRIPT, "0123456789+-")

_FIXED = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "➖": "-",
    "×": "*", "·": "*", "⋅": "*", "∗": "*", "✕": "*", "∙": "*",
    "⁄": "/", "∕": "/", "／": "/",
    "、": ";", "．": ".", "｡": "。",
    "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "「": '"', "」": '"', "『": '"', "』": '"',
    "（": " (", "℃": "°C", "℉": "°F", "º": "°", "˚": "°",
    "٫": ".", "٬": ",", "٪": "%", "﹪": "%",
    "￥": "¥", "￡": "£", "￠": "¢",
    "⩽": "≤", "≦": "≤", "⩾": "≥", "≧": "≥", "∼": "~", "～": "~", "≃": "≈", "≅": "≈", "…": "...",
    "Ω": "Ω", "μ": "µ", "₋": "_-",
}  # fmt: skip


class _Fold(dict[int, str]):
    """Translation table for `str.translate` that works out a character the first time it is seen."""

    def __missing__(self, code: int) -> str:
        self[code] = result = _fold(chr(code))
        return result


def _fold(ch: str) -> str:
    if ch in _FIXED:
        return _FIXED[ch]
    category = unicodedata.category(ch)
    if category == "Nd":
        return str(unicodedata.decimal(ch))
    if category == "Cf":
        return ""
    if category in ("Zs", "Zl", "Zp"):
        return " "
    if category == "No":
        parts = unicodedata.normalize("NFKC", ch).split("⁄")
        return f" {parts[0]}/{parts[1]} " if len(parts) == 2 and all(p.isdecimal() for p in parts) else ch
    folded = unicodedata.normalize("NFKC", ch)
    if len(folded) == 1:
        return folded
    if folded.isascii() and folded[0].isalpha() and "SQUARE" in unicodedata.name(ch, ""):
        return re.sub(r"([23])$", r"^\1", folded)  # a single-character unit such as the one for square metres
    return ch


_TABLE = _Fold()
_ASCII_KEPT = {code: chr(code) for code in range(128)}
_TABLE.update(_ASCII_KEPT)

_COMMANDS = {
    "dfrac": "\\frac", "tfrac": "\\frac", "cfrac": "\\frac", "frac": "\\frac", "sqrt": "\\sqrt",
    "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "", "Bigl": "", "Bigr": "", "bigg": "",
    "displaystyle": "", "textstyle": "", "limits": "", "mathstrut": "", "strut": "",
    "quad": " ", "qquad": " ", "enspace": " ", "thinspace": " ",
    "times": "*", "cdot": "*", "ast": "*", "div": "÷", "pi": "π", "infty": "∞", "infin": "∞",
    "pm": "±", "mp": "∓", "le": "≤", "leq": "≤", "leqslant": "≤", "ge": "≥", "geq": "≥", "geqslant": "≥",
    "lt": "<", "gt": ">", "ne": "≠", "neq": "≠", "approx": "≈", "sim": "~", "simeq": "≈",
    "circ": "°", "degree": "°", "ldots": "...", "dots": "...", "cdots": "...", "cup": "∪", "lor": " or ", "land": " and ",
    "lbrace": "⦃", "rbrace": "⦄", "percent": "%", "textdollar": "$", "pounds": "£", "euro": "€", "yen": "¥",
    "lbrack": "[", "rbrack": "]", "colon": ":", "equiv": "≡", "therefore": "", "emptyset": "∅", "varnothing": "∅", "Omega": "Ω", "mu": "µ",
}  # fmt: skip
_WRAPPERS = frozenset({
    "text", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mathrm", "mathbf", "mathit", "mathsf",
    "mathtt", "mathnormal", "boldsymbol", "bm", "mbox", "hbox", "operatorname", "emph", "underline", "boxed", "fbox",
    "ensuremath", "math", "rm", "bf", "unit", "textstyle", "tag",
}) - {"tag"}  # fmt: skip
_SYMBOLS = {
    ",": " ", ";": " ", ":": " ", " ": " ", ">": " ", "!": "", "%": "%", "$": "$", "_": "_", "{": "⦃", "}": "⦄", "&": "&",
    "#": "#", "(": " ", ")": " ", "[": " ", "]": " ", "\\": " \n ", "/": "",
}  # fmt: skip
_TOKEN = re.compile(r"\\(?:([A-Za-z]+)\s*|(.))|([{}])|(~)", re.DOTALL)
_DEGREE_EXPONENT = re.compile(r"\^\s*(?:\{\s*[°o]\s*\}|°|o(?![A-Za-z]))")
_ORDINAL_EXPONENT = re.compile(r"(?<=\d)\s*\^\s*\{\s*(st|nd|rd|th)\s*\}")
_OUTER = (("**", "**"), ("__", "__"), ("*", "*"), ("`", "`"), ('"', '"'), ("'", "'"), ("$$", "$$"), ("$", "$"))
_OUTER_FIRST = frozenset("*_`\"'$")
_TRAILING = ".,;。 \t\r\n"
_BLANKS = re.compile(r"\s{2,}|[^\S ]")
_INNER_BOLD = re.compile(r"(?<![\w)*])\*\*(?=[^\s*])([^*]{1,200})(?<=\S)\*\*(?![\w(*])")
_ROOT_WORD = re.compile(r"(?<![A-Za-z\\])sqrt(?![A-Za-z])")


_LOOK_BACK = 4


def fold_unicode(text: str) -> str:
    """Full-width and other Unicode spellings of digits, signs, spaces and punctuation as ASCII."""
    if text.isascii():
        return text
    return _SUPER_RUN.sub(lambda run: "^{" + run.group().translate(_SUPER_ASCII) + "}", text).translate(_TABLE)


def tidy(text: str) -> str:
    """`text` without layout; see the module's description."""
    text = strip_outer(fold_unicode(text))
    if "\\" in text or "{" in text or "^" in text:
        text = _ORDINAL_EXPONENT.sub(r"\1", _DEGREE_EXPONENT.sub("°", unlatex(text)))
        text = strip_outer(text)
    if "**" in text:
        text = _INNER_BOLD.sub(r"\1", text)
    if "sqrt" in text:
        text = _ROOT_WORD.sub("√", text)
    return _BLANKS.sub(_blanks, text)


def _blanks(run: re.Match[str]) -> str:
    """Blanks that are no single space stay apart from one: only a single space groups digits."""
    return "\n" if "\n" in run.group() else "  "


def strip_outer(text: str) -> str:
    """Without surrounding blanks, final punctuation, and paired markdown, quotes or dollar signs."""
    for _ in range(8):
        before = text
        text = text.strip()
        if text[-1:] in _TRAILING and text[-2:] != ".." and text[-2:-1] != "\\":
            text = text.rstrip(_TRAILING)
        if text[:1] not in _OUTER_FIRST:
            return text
        for left, right in _OUTER:
            inner = len(text) - len(left) - len(right)
            if inner > 0 and text.startswith(left) and text.endswith(right):
                body = text[len(left) : len(text) - len(right)]
                if left not in body.replace("\\$", ""):  # an escaped dollar is a currency sign
                    text = body
                    break
        if text == before:
            break
    return text


def unlatex(text: str) -> str:
    """LaTeX commands as plain signs, wrappers dropped; arguments of unknown commands keep their braces.

    One pass. A brace pair is kept when it groups an argument (after `\\frac`, `\\sqrt`, `^`, `_`, or another group), and
    becomes blanks when it belongs to a wrapper or stands alone.
    """
    out: list[str] = []
    stack: list[str] = []  # what closes each open brace: "}" kept, " " dropped
    wrapper = False
    at = 0
    for token in _TOKEN.finditer(text):
        if token.group() == "~" and not text[: token.start()].strip():
            continue  # a sign for "about", not a LaTeX blank
        between = text[at : token.start()]
        at = token.end()
        if between:
            out.append(between)
            wrapper = wrapper and not between.strip()
        name, symbol, brace, _tilde = token.groups()
        if name is not None:
            wrapper = name in _WRAPPERS
            if name in _COMMANDS:
                out.append(_COMMANDS[name])
            elif not wrapper:
                out.append("\\" + name + " ")
        elif symbol is not None:
            out.append(_SYMBOLS.get(symbol, "\\" + symbol))
        elif brace == "{":
            kept = not wrapper and _groups(out)
            stack.append("}" if kept else " ")
            out.append("{" if kept else " ")
            wrapper = False
        elif brace == "}":
            out.append(stack.pop() if stack else "}")
        else:
            out.append(" ")
    out.append(text[at:])
    joined = "".join(out)
    return re.sub(r"(?<=\d) , (?=\d{3})", ",", joined)


def _groups(out: list[str]) -> bool:
    """Whether a brace that opens now is the argument of what was written last."""
    for piece in out[: -_LOOK_BACK - 1 : -1]:
        stripped = piece.rstrip()
        if stripped:
            return stripped[-1] in "^_}]" or (stripped.startswith("\\") and piece == out[-1]) or stripped[-1:] == "\\"
    return False
