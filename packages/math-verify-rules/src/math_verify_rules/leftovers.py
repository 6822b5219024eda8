"""Guards on what an answer has beside the gold: signs, digits, words that change it, characters
that cannot be seen.

Math-Verify takes the part of an answer that it can read. A short answer that holds the gold's text
and more must be readable here as a whole, or its rest must be words that change nothing.
"""

from __future__ import annotations

import re
import unicodedata

from math_verify_rules.changing import changes_it
from math_verify_rules.numerals import in_base
from math_verify_rules.splitting import split

MAX_REST = 60  # characters beside the gold's; a longer answer is a sentence
MANY_LINES = 5
_INVISIBLE = frozenset("\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff\u00ad")
_TO = re.compile(
    r'[\d)}]\s*"?\bto\b"?\s*(?!"?\s*\d+\s*"?(?:decimal|significant|places|d\.?p))[-\d\\(]'
)
_SIGNS = re.compile(r"[\d+*/^_<>|=?!]|\\(?!text|mathrm|%|,|;|!|quad|\s)")
_MORE = re.compile(
    r"(?:\b(?:and|or)\b|[,;&])\s*[\"(]?\s*-?(?:\d|\\(?:frac|sqrt|pi)(?![a-z]))"
)  # "apples and 32 pears"
_EITHER = re.compile(r"\beither\b.*\bor\b", re.IGNORECASE | re.DOTALL)
_ALTERNATIVES = re.compile(r"[,;&]|\\(?:pm|mp|cup)(?![a-z])|\b(?:or|and)\b")
_INDEX = re.compile(r"[\d)}]\s*_\s*\{?\s*\w")
_MODULUS = re.compile(r"\\[pb]?mod(?![a-z])|\bmod(?:ulo)?\b")
_BARE_LINE = re.compile(
    r"\s*(?:\(?[A-J1-9][.)]\s*)?(?:-?[\d.,/]+|[A-J]|\$[^$]{1,30}\$)\s*[.,;]?\s*"
)
_SEVERAL = re.compile(
    r"\W*(?:-?\d[\d./]*|\(?[A-J][.)]?)(?:(?:\s*[,;/|]\s*|\s+)(?:or |and "
    r")?(?:-?\d[\d./]*|\(?[A-J][.)]?))+\W*"
)
THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:([, ])\d{3})(?:\1\d{3})*(?:\.\d+)?(?![\d,])")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")


def hides(gold: str, response: str) -> bool:
    """ "5<zero-width space>6" and a struck-through 5: characters that nobody sees, or that cross
    out what is before.
    """
    strange = {
        letter
        for letter in response.strip()
        if letter in _INVISIBLE or unicodedata.combining(letter)
    }
    return not strange <= set(gold)


def lists_lines(response: str) -> bool:
    """Lines of bare values, of which Math-Verify reads the last."""
    lines = [line for line in response.splitlines() if line.strip()]
    return (
        len(lines) >= MANY_LINES
        and sum(_BARE_LINE.fullmatch(line) is not None for line in lines) >= MANY_LINES
    )


def lists_candidates(gold: str, answer: str) -> bool:
    """ "1 2 3 4 5" without a box for 5: Math-Verify reads the last. Three or more, nothing else."""
    answer = THOUSANDS.sub("1", answer)
    several = len(re.findall(r"-?\d[\d./]*|[A-J]", answer)) > 2
    return (
        several
        and bool(_SEVERAL.fullmatch(answer))
        and bool(re.fullmatch(r"-?\d[\d,./]*|[A-J]", gold))
    )


def changes(gold: str, answer: str, boxed: bool) -> bool:
    """ "twice 5", "5 out of 7", "3 to 5", "March 5": words that make another answer of it, in a
    short one.

    In a sentence without a box they may be about another number.
    """
    if len(answer) > len(gold) + MAX_REST:
        return False
    about = boxed or not re.search(r"\d", answer.replace(gold, ""))
    return (about and changes_it(gold, answer)) or bool(_TO.search(answer) and not _TO.search(gold))


def leaves_a_rest(gold: str, answer: str) -> bool:
    """The gold with signs, digits or a question mark beside it, in a short answer that cannot be
    read as a whole.
    """
    if len(answer) > len(gold) + MAX_REST or len(gold) < 1:
        return False
    answer = answer.partition("\\approx")[0]
    if "=" in answer and "=" not in gold:
        answer = split(answer, "=")[0][-1]
    pattern = rf"(?<![\w.]){re.escape(gold)}(?![\w])" if gold[-1:].isalnum() else re.escape(gold)
    rest, found = re.subn(pattern, " ", answer, count=1)
    return bool(found and _SIGNS.search(rest))


def adds_a_value(gold: str, answer: str) -> bool:
    """ "f(x) = 1, 27" and "5 apples and 32 pears": the gold's text, then one more value; the gold
    is no list.
    """
    before, found, behind = answer.partition(gold)
    short = len(answer) <= len(gold) + MAX_REST and not split(gold, ",")[1]
    return bool(found and short and not before.strip(' "') and _MORE.search(behind))


def hedges(gold: str, answer: str) -> bool:
    """ "either 5 or 16" for a gold without alternatives."""
    return bool(_EITHER.search(answer) and not _ALTERNATIVES.search(gold))


def has_an_index(gold: str, answer: str) -> bool:
    """5_{37} for 5, which Math-Verify reads as 5; but a base in which the digits have the gold's
    value is right.
    """
    if "_" in gold or not _INDEX.search(answer):
        return False
    known = in_base(answer)
    return known is None or str(known[0]) != gold


def has_a_modulus(gold: str, answer: str) -> bool:
    """5 (mod 1) for 5: the rules know which remainders there are."""
    return bool(_MODULUS.search(answer) and not _MODULUS.search(gold))


def is_a_list(gold: str, response: str) -> bool:
    """One long line with more commas than words: Math-Verify reads only its last part."""
    commas = response.count(",") - gold.count(",") - gold.count(";")
    return "\n" not in response.strip() and commas > max(8, len(_WORD.findall(response)))
