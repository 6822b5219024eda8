"""Judge again, by stated rules, what Math-Verify rejects, and reject what only mentions the gold.

The order of the work: ``boxes`` finds the answer in a response, ``repair`` mends its LaTeX,
``reading`` makes a tree of it (lists, tuples, intervals, relations, expressions), ``rules``
compares two trees, ``guards`` looks at what Math-Verify accepted, ``judging`` puts it together.
Only Math-Verify itself imports SymPy: here, expressions are compared by their values, in exact or
50-digit arithmetic, within bounds.
"""

from math_verify_rules.boxes import boxed, final_answer
from math_verify_rules.comparison import compare
from math_verify_rules.judging import LIMIT_S, MATH_VERIFY, accepted_after, accepted_by

__all__ = [
    "LIMIT_S",
    "MATH_VERIFY",
    "accepted_after",
    "accepted_by",
    "boxed",
    "compare",
    "final_answer",
]
__version__ = "0.1.0"
