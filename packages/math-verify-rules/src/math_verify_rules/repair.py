r"""Repair LaTeX: doubled backslashes, HTML, Unicode, unclosed groups; and one spelling for each
notation.
"""

from __future__ import annotations

import html
import re

from math_verify_rules.boxes import without_braces
from math_verify_rules.scripts import in_latex
from math_verify_rules.trees import FUNCTIONS

_TAGS = (
    (re.compile(r"<sup>(.*?)</sup>", re.IGNORECASE), r"^{\1}"),
    (re.compile(r"<sub>(.*?)</sub>", re.IGNORECASE), r"_{\1}"),
    (re.compile(r"</?(?:br|p|b|i|em|strong|span|div)\s*/?>", re.IGNORECASE), " "),
)
_ORNAMENT = re.compile(
    r"\\(?:blacksquare|square|Box|qed|checkmark|qedsymbol|displaystyle|(?:foot|script|normal)size|[lL]arge|LARGE|"
    r"[hH]uge|surd(?=\s*$))(?![a-zA-Z])|[✓✔■□]"
)
_DRESS = (  # what changes the look alone
    (re.compile(r"\\(?:h|v)?phantom\s*\{[^{}]*\}"), " "),
    (re.compile(r"\\textcolor\s*\{(?!\s*white)[^{}]*\}|\\colorbox\s*\{[^{}]*\}|\\color\s*\{(?!\s*white)[^{}]*\}"), ""),  # noqa: E501
    (re.compile(r"\\(?:under|over)brace\s*(\{(?:[^{}]|\{[^{}]*\})*\})(?!\s*[_^])"), r"\1"),
    (re.compile(r"\\(?:underline|uline|boldsymbol|bm|emph|pmb|mathcal|ensuremath)(?![a-zA-Z])"), ""),  # noqa: E501
    (re.compile(r"\{\s*\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])\s*([^{}\\]*)\}"), r"\\mathrm{\1}"),
    (re.compile(r"\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])\s*(?!\{)"), ""),
    (re.compile(r"\\math(?:rm|bf|it|sf|tt)\s+([a-zA-Z0-9])"), r"\1"),
    (re.compile(r"\\(?:text|math)tt\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\operatorname\s*\*?\s*\{\s*e\s*\}"), "e"),
    (re.compile(r"\{\s*(?::|\\colon)\s*\}|\\!\s*:\s*\\!|\\mathord\s*\{\s*:\s*\}|\\text\s*\{\s*:\s*\}|"
                r"\\colon(?![a-zA-Z])|\\,\s*:\s*\\,"), ":"),
    (re.compile(r"\\(?:nice|s)frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\{?\s*(?<![\w}])([-\w]+)\s*\\over\s+(\w+)\s*\}?"), r"\\frac{\1}{\2}"),
    (re.compile(r"\*\*"), "^"),
)  # fmt: skip
_GROUP = r"(?:\\[,;:! ]|\{,\}|\\text\s*\{[ ,]\}|[~' ])"  # between the thousands
_GROUPED = re.compile(rf"(?<![\d.,\\\w])[1-9]\d{{0,2}}(?:{_GROUP}\d{{3}})+(?!\d|{_GROUP}?\d)")
_GAP = re.compile(
    r"(?<=[\w)}\]!°%'])\s*(?:(?:\\q?quad|\\enspace|\\newline|\\hspace\s*\{[^{}]*\}|\\\\(?![a-zA-Z(\[%$]))\s*)+"
    r"(?=[-+]?\s*(?:\d|\\(?:[dt]?frac|sqrt|pi)(?![a-z])|[a-zA-Z]\s*[=^_<>]))"
)
_AFTER_TEXT = re.compile(r"\\(?:text\w*|mathrm|mbox)\s*\{[^{}]*\}$")
_SPELLINGS = (
    (re.compile(r"\\(?:dfrac|tfrac|cfrac)(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:dbinom|tbinom)(?![a-zA-Z])"), r"\\binom"),
    (
        re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|limits|mathstrut)(?![a-zA-Z])\.?"),
        "",
    ),
    (re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])"), "° "),
    (re.compile(r"\\(?:quad|qquad|hspace\s*\{[^{}]*\})(?![a-zA-Z])|(?<!\\)\\[;: ]|~"), " "),
    (re.compile(r"(?<!\\)\\[,!]|\{,\}(?=\d{3})"), ""),
    (re.compile(r"\\leq?(?:slant)?(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\geq?(?:slant)?(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\neq(?![a-zA-Z])"), r"\\ne "),
    (re.compile(r"\\(?:langle|lparen)(?![a-zA-Z])"), "("),
    (re.compile(r"\\(?:rangle|rparen)(?![a-zA-Z])"), ")"),
    (re.compile(r"\\(?:vec|hat|overrightarrow)\s*\{\s*\\?([a-z])(?:math)?\s*\}"), r" \1 "),
    (re.compile(r"\\mathbf\s*\{\s*([ijk])\s*\}"), r" \1 "),
    (re.compile(r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\(?:cdot|times|ast)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:lvert|rvert|vert)(?![a-zA-Z])"), "|"),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\(?:dots|ldots|cdots)(?![a-zA-Z])"), "..."),
    (re.compile(r"\\(?:operatorname|mathop)\s*\*?\s*\{\s*([a-zA-Z]+)\s*\}"), r"\\\1 "),
    (re.compile(r"\\(?:var)(epsilon|phi|theta)(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"\\(?:land|wedge)(?![a-zA-Z])"), " and "),
    (re.compile(r"\\(?:lor|vee)(?![a-zA-Z])"), " or "),
    (re.compile(r"\\\\(?:\[\w*\])?"), r"\\\\"),
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|normal|tt)?|mathrm|mathbf|mathit|mathsf|mbox|bf|rm)\s*\{([^{}]*)\}"
)
ONE_LETTER_UNITS = frozenset("mgshLNJWV")
_NO_UNITS = FUNCTIONS | frozenset(
    ["and", "or", "if", "for", "where", "when", "with", "otherwise", "pi"]
)
_MATRIX = re.compile(r"(\\begin\s*\{[pbvV]?matrix\})(.*?)(?=\\end)", re.DOTALL)
_TORN_BREAK = re.compile(r"(?<!\\)\\(?=[\s\d.&-])")  # the half of a line's end that JSON left: 7\-8
_REPEATING = re.compile(r"(\d*)\.(\d*)\s*\\(?:overline|dot|bar)\s*\{\s*(\d+)\s*\}")
_E_NOTATION = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?)[eE]\+?(-?\d+)(?![\w.])")
_IDENTICAL = re.compile(r"\\equiv(?![a-zA-Z])")
_DELIMITERS = re.compile(r"(?<!\\)\$+|\\[\[\]()]")


def repair(latex: str) -> str:
    r"""One answer in one spelling: no dollars, no \left, no \text (its words stay), entities and
    symbols as LaTeX.
    """
    text = html.unescape(latex) if "&" in latex and ";" in latex else latex
    text = text.replace("\f", "\\f").replace(
        "\b", "\\b"
    )  # \frac, \begin whose backslash was unescaped
    text = single_backslashes(_MATRIX.sub(_with_breaks, text))
    if "<" in text:
        for tag, instead in _TAGS:
            text = tag.sub(instead, text)
    text = text.replace("!=", r"\ne ")
    text = _undressed(_DELIMITERS.sub(" ", in_latex(text)))
    if "\\begin" not in text:
        text = _GAP.sub(lambda gap: " " if _AFTER_TEXT.search(text[: gap.start()]) else ", ", text)
    text = _GROUPED.sub(lambda number: re.sub(_GROUP, "", number[0]), text)
    text = re.sub(r"(?<=\d)\s*(?:\\[,!]\s*)+(?=\d)", " ", text)  # 0\,1 is no number
    for pattern, instead in _SPELLINGS:
        if "\\" in text or "~" in text:
            text = pattern.sub(instead, text)
    for _nested in range(3):
        text = _TEXT.sub(_as_words, text)
    text = _REPEATING.sub(_as_fraction, text)
    text = _IDENTICAL.sub("=", text) if "mod" not in text else text
    text = _E_NOTATION.sub(r"\1*10^{\2}", text)
    return " ".join(without_braces(close_groups(text)).split()).strip(" ;,").rstrip(" .;,")


def _undressed(text: str) -> str:
    """A text without colours, lines, sizes and ornaments."""
    text = _ORNAMENT.sub(" ", text).replace("`", " ")
    if "\\" not in text and "**" not in text and "{" not in text:
        return text
    for pattern, instead in _DRESS:
        text = pattern.sub(instead, text)
    return text


def _as_words(marked: re.Match[str]) -> str:
    r"""The content of \text{} or \mathrm{}: a unit is quoted, so that "m" is not a variable; else
    unchanged.
    """
    words = " ".join(marked[1].split())
    if re.fullmatch(r"[A-Za-z]+(?: ?/ ?[A-Za-z]+)+", words):  # m/s
        return ' "' + re.sub(r" ?/ ?", '"/"', words) + '" '
    unit = words.isalpha() and (
        words in ONE_LETTER_UNITS or (len(words) > 1 and words not in _NO_UNITS)
    )
    return f' "{words}" ' if unit else f" {words} "


def _with_breaks(matrix: re.Match[str]) -> str:
    """A matrix without any line's end, where one backslash is before a number: it was two."""
    body = matrix[2] if "\\\\" in matrix[2] else _TORN_BREAK.sub(r"\\\\", matrix[2])
    return matrix[1] + body


def _as_fraction(decimal: re.Match[str]) -> str:
    r"""0.1\overline{6} as a fraction, by a name of its own: digits that repeat are exact, and none
    that round.
    """
    whole, fixed, period = decimal.groups()
    below = (10 ** len(period) - 1) * 10 ** len(fixed)
    above = int((whole + fixed + period) or "0") - int((whole + fixed) or "0")
    return rf"\repeating{{{above}}}{{{below}}}"


def single_backslashes(text: str) -> str:
    r"""Halve doubled backslashes if there is no single one, or where a command must be meant.

    A gold that went through JSON twice reads ``\\frac``. In a matrix or in cases, ``\\`` is a
    line's end and stays.
    """
    runs = re.findall(r"\\+", text)
    if runs and all(len(run) % 2 == 0 for run in runs) and re.search(r"\\\\[a-zA-Z{}%$,!;:]", text):
        return re.sub(r"\\+", lambda run: "\\" * (len(run[0]) // 2), text)
    return text if r"\begin" in text else re.sub(r"\\\\(?=[a-zA-Z{}])", r"\\", text)


def close_groups(text: str) -> str:
    """Balance braces: unclosed ones are closed at the end, unopened ones are removed."""
    depth, kept = 0, []
    for piece in re.split(r"(\\\\|\\?[{}])", text):
        depth += (piece == "{") - (piece == "}")
        if depth < 0:
            depth = 0
            continue
        kept.append(piece)
    return "".join(kept) + "}" * depth
