r"""The texts that Oat's grader compares: the last box, and an answer as MATH and as PRM800K
normalise it.

Written from what those normalisations do, since the paper's numbers depend on their habits: MATH's
takes words for units, single letters among them, and PRM800K's takes units out of the middle of
words. Nothing here is evaluated.
"""

from __future__ import annotations

import contextlib
import re
from functools import cache
from typing import Any

# Words that count as units in MATH's form, also with an s behind them, where no letter or digit is
# beside them.
_UNITS = (
    "mm cm dm m km mt mtr metre meter mile yard inch inches feet ft|"
    "g gm kg lb l lt liter litre gal gallon acre hectare square sq cube cubic cc|"
    "s sec second min minute hr h hour day d month year yr am pm noon|"
    "mph mp kmph kmh deg degree ohm percent per rs rupee coin profit gain loss increase "
    "decrease rise excess|"
    "men man women woman minw soldier monkey apple pie toy tile round rounds way mark|"
    "unit number ratio prime more less pure by are east west Surface|"
    "a c o t ab bc rd st th"
)
_PHRASES = (
    "m sqaure",
    "sq m",
    "sq inch",
    "cm 2",
    "cu cm",
    "pi sq m",
    "no change",
    "profit of rs",
    "° f",
)


@cache
def _unit() -> re.Pattern[str]:
    words = sorted({*_UNITS.replace("|", " ").split(), *_PHRASES}, key=len, reverse=True)
    return re.compile(rf"(^|\W)(?:{'|'.join(words)})s?($|\W)")


_REMOVED_UNITS = re.compile(
    r"(?:degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard)"
    r"(?:es)?s? *(?:\^[0-9]+)?"
)
_OUTER_TEXT = re.compile(r"^\\text\{(.+?)\}$")
_SYMBOLS = {
    "√": "sqrt",
    "π": "pi",
    "∞": "inf",
    "\N{UNION}": "U",
    "·": "*",
    "\N{MULTIPLICATION SIGN}": "*",
}
_THOUSANDS = re.compile(r"(\d),(\d\d\d)(?=$|\D)")


def last_box(response: str) -> str | None:
    r"""The content of the last ``\boxed{``; None if there is none, or if it is not closed: no
    earlier one counts.
    """
    start = response.rfind(r"\boxed")
    if start < 0 or not response.startswith("{", start + len(r"\boxed")):
        return None
    first, depth = start + len(r"\boxed{"), 0
    for brace in re.finditer("[{}]", response[first - 1 :]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return response[first : first - 1 + brace.start()]
    return None


def math_form(answer: str) -> str:
    """An answer as MATH's authors normalise it, without units; the stripped answer where that
    fails.
    """
    answer = answer.strip()
    if whole := _OUTER_TEXT.search(answer):
        answer = whole[1].strip()
    try:
        return _math_form(answer)
    except ValueError:
        return answer


def _math_form(text: str) -> str:
    """As `math_form`; ValueError for LaTeX that ends in the middle of a command."""
    text = text.replace("\n", "").replace(r"\!", "").replace("\\\\", "\\")
    text = re.sub(r"\\begin\{array\}\{.*?\}", r"\\begin{pmatrix}", text)
    text = text.replace(r"\end{array}", r"\end{pmatrix}").replace("bmatrix", "pmatrix")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    text = re.sub(r"\\(ne|le|ge)q", r"\\\1", text)
    text = text.replace(r"\left", "").replace(r"\right", "")
    text = re.sub(r"\\text\{.*?\}$", "", text).strip() or text
    for _ in range(3):
        text = _unit().sub(r"\1\2", text) or text
    text = re.sub(r"\^(?:\{\\circ\}|\\circ)", "", text).replace(r"\$", "")
    if text.count(r"\text{ ") > 1:
        raise ValueError("two texts with a unit")
    text = text.partition(r"\text{ ")[0].replace(r"\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    text = f"0{text}" if text.startswith(".") else text
    left, equals, right = text.partition("=")
    if equals and len(left) <= 2 and "=" not in right:  # "k =" and "x="
        text = right
    if re.search(r"\\sqrt(?:$|\\sqrt)", text):
        raise ValueError("a root of nothing")
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    text = _braced_fractions(text)
    if text == "0.5":
        return r"\frac{1}{2}"
    return re.sub(r"^(0|-?[1-9]\d*)/(0|-?[1-9]\d*)$", r"\\frac{\1}{\2}", text)


def _braced_fractions(text: str) -> str:
    r"""``\frac12`` and ``\frac1{2}`` as ``\frac{1}{2}``; the text itself if one has only half of
    it.
    """
    done, *rest = text.split(r"\frac")
    for part in rest:
        if not part:
            raise ValueError("a fraction of nothing")
        if part[0] != "{":
            if len(part) == 1:
                return text
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            part = f"{{{part[0]}}}{below}"
        done += rf"\frac{part}"
    return done


def prm800k_form(answer: str) -> str:
    """An answer as PRM800K's grader normalises it: LaTeX as plain text, without units, braces,
    spaces and capitals.
    """
    if whole := _OUTER_TEXT.search(answer):
        answer = whole[1]
    text = re.sub(r"\\?[%$]", "", answer).replace(" or ", " , ").replace(" and ", " , ")
    for word, power in (("million", 6), ("billion", 9), ("trillion", 12)):
        text = text.replace(word, f"*10^{power}")
    text = _REMOVED_UNITS.sub("", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    text = _whole_number(text) or text
    if "\\" in text:
        with contextlib.suppress(Exception):  # what is no LaTeX stays as it is
            text = _plain_text(text)
    text = re.sub("- *", "-", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", text)  # 7 3/4
    text = re.sub("[ {}]", "", text).lower()
    return _whole_number(without_thousands(text)) or text


def _plain_text(latex: str) -> str:
    r"""LaTeX as Unicode, with the symbols that SymPy can read; a space before ``\frac`` for mixed
    numbers.
    """
    text = str(_converter().latex_to_text(re.sub(r"\\[td]?frac", r" \\frac", latex)))
    for symbol, name in _SYMBOLS.items():
        text = text.replace(symbol, name)
    return text.strip()


@cache
def _converter() -> Any:
    from pylatexenc.latex2text import LatexNodes2Text

    return LatexNodes2Text()


def without_thousands(text: str) -> str:
    """12,345,678 as 12345678; other commas stay."""
    while (shorter := _THOUSANDS.sub(r"\1\2", text)) != text:
        text = shorter
    return text


def _whole_number(text: str) -> str | None:
    """The text of a number that is whole, or closer than 1e-7 to one; None for any other text."""
    return str(round(float(text))) if is_whole(text) else None


def is_whole(text: str) -> bool:
    """Whether a text is a number that is closer than 1e-7 to a whole one."""
    try:
        return abs(float(text) - round(float(text))) <= 1e-7
    except (ValueError, OverflowError):  # no number; nan; infinity
        return False


def repeats_itself(text: str) -> bool:
    """Whether of all its substrings, counted with repeats, more than a fifth have occurred before.

    By a suffix automaton: a state stands for the substrings that end at the same places, as many as
    its longest one is longer than that of its link. Linear in the length of the text.
    """
    longest, link, steps = [0], [-1], [dict[str, int]()]
    last = 0
    for character in text:
        here, at = len(longest), last
        longest.append(longest[last] + 1)
        link.append(0)
        steps.append({})
        while at >= 0 and character not in steps[at]:
            steps[at][character] = here
            at = link[at]
        if at >= 0:
            target = steps[at][character]
            if longest[target] == longest[at] + 1:
                link[here] = target
            else:
                copy = len(longest)
                longest.append(longest[at] + 1)
                link.append(link[target])
                steps.append(dict(steps[target]))
                while at >= 0 and steps[at].get(character) == target:
                    steps[at][character] = copy
                    at = link[at]
                link[target] = link[here] = copy
        last = here
    distinct = sum(longest[state] - longest[link[state]] for state in range(1, len(longest)))
    substrings = len(text) * (len(text) + 1) // 2
    return substrings > 0 and 1 - distinct / substrings > 0.2
