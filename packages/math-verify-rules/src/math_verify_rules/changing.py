"""Words and signs that make another answer of the value that they stand beside, by kind.

The rules read no value with one of CHANGING beside it; a guard rejects a short answer with one of
GUARDED, a phrase or a sign that the gold lacks. Any other word is a unit or what is counted.
"""

from __future__ import annotations

import re

from math_verify_rules.dates import MONTHS

_DENIALS = (
    "not no nor neither never nope cannot wrong wrongly incorrect incorrectly false falsely untrue "
    "invalid invalidly impossible refuted mistaken mistake mistakenly erroneous "
    "erroneously undefined "
    "unknown except unless but"
)
_COMPARISONS = "least most more less exceed exceeds exceeding beyond between"
_ARITHMETIC = (
    "twice thrice double triple quadruple multiple multiples factorial reciprocal inverse opposite "
    "negative minus plus cube root successor predecessor reversed choose half halves divided"
)
_SCALES = (
    "dozen hundred thousand million billion trillion dozens hundreds thousands millions billions "
    "trillions percent pct percents mille ppm ppb bps lakh crore"
)
_DOUBTS = (
    "or if either maybe perhaps possibly presumably whichever something anything "
    "everything nothing "
    "when versus vs instead rather unlikely doubtful"
)
_BESIDE_A_VALUE = (  # plain answers have these, too, "60 miles per hour": only the rules mind them
    "under over above below to all any per about without than positive pair pairs squared "
    "cubed times "
    "power third thirds quarter quarters fourth fourths fifth fifths sixth tenth tenths hundredth "
    "hundredths pi may yes true monday tuesday wednesday thursday friday saturday sunday"
)
GUARDED = frozenset(" ".join((_DENIALS, _COMPARISONS, _ARITHMETIC, _SCALES, _DOUBTS)).split()) | (
    frozenset(MONTHS) - {"may"}
)
CHANGING = GUARDED | frozenset(_BESIDE_A_VALUE.split())
_A_VALUE = r"\W*(?:[-\d\\$({]|[a-z]\b)"
PHRASES = re.compile(
    r"\b(?:one of|sum of|product of|out "
    r"of|(?:minimum|maximum|square|power|log|third|quarter|divisor|remainder) of|"
    r"square root|(?:sum|number) of (?:the )?digits (?:of|in)|up to|per (?:cent|mil|thousand)|"
    r"percentage points?|basis points?|(?:starting|beginning) (?:at|from|with)|"
    r"different (?:from|to)|next to|close to|closer to|and (?:up|above|below|over|under)|"
    rf"give or take|yes and no|in base)\b|\bthan\b{_A_VALUE}|[\d)}}]\W*\b(?:squared|cubed)\b|"
    r"(?:\(|\bis )\W*(?:rejected|excluded|discarded|extraneous)\b|"
    rf"^\W*(?:before|after|until|till|above|below|over|under|almost|nearly|within|without)\b{_A_VALUE}|"
    r"(?:st|nd|rd|th)\b\W*(?:the )?(?:odd |even |positive |perfect "
    r")?(?:prime|composite|fibonacci|triangular|"
    r"square|cube|root|power|multiple|divisor|factorial|catalan|harmonic|lucas|odd|even|perfect)|"
    r"[\d)}]\s*-\s*(?:gon|fold|th root)\b|"
    r"[\d)}%\]]\W*\b(?:halves|thirds|quarters|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|twelfths|"
    r"hundredths|thousandths)\b"
)
_SIGNS = re.compile(
    r"\\(?:ne|not|neg|lnot|nexists|to|rightarrow|implies|longrightarrow|notin|sim|nsim|complement|"
    r"x?cancel|bcancel|sout|st|gg|ll|gtrsim|lesssim|mp)(?![a-z])|[¬≠→⇒‰]|(?<![\w)}!\]|])\s*!"
)
_WORD = re.compile(r"(?<![\\a-z])[a-z]+")


def changes_it(gold: str, answer: str) -> bool:
    """Whether a repaired answer has a word or sign that changes a value and that the gold lacks."""
    gold, answer = (text.lower().replace('"', " ") for text in (gold, answer))
    mine = set(_WORD.findall(gold))
    if any(word in GUARDED and word not in mine for word in _WORD.findall(answer)):
        return True
    return any(
        found[0] not in gold for pattern in (PHRASES, _SIGNS) for found in pattern.finditer(answer)
    )
