"""Convert the benchmarks' gold answers into LaTeX with the intended meaning."""

from __future__ import annotations

import re
from typing import Any

# of math mode; not a matrix's \\[2pt], not \$
_DELIMITERS = re.compile(r"(?<!\\)(?:\$|\\\[|\\\()|\\boxed")
_OUTER_DOLLARS = re.compile(r"^\$+|(?<!\\)\$+$")
_DOLLAR = re.compile(r"(?<!\\)\$")
_WHOLE_FLOAT = re.compile(r"(-?\d+)\.0+")
_E_NOTATION = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]\+?(-?\d+)")
_TIMES_POWER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*\\(?:times|cdot)\s*10\^\{?(-?\d+)\}?")
_NUMPY = re.compile(r"\bnp\.(arcsin|arccos|arctan|sin|cos|tan|exp)(?=\()")


def golds_of(ground_truth: Any) -> list[str]:
    """The right answers of a row, each of which counts: a list's entries, or the one value; none of
    None.
    """
    several = not isinstance(ground_truth, str) and hasattr(ground_truth, "__iter__")
    return [str(gold) for gold in (ground_truth if several else [ground_truth]) if gold is not None]


def clean(gold: str) -> str:
    r"""One answer as plain LaTeX, without dollars around it.

    AMC's ``142.0`` becomes 142; Minerva's ``4.5e33``, which LaTeX reads as 4.5 times e times 33,
    becomes ``4.5\times10^{33}``, and its ``np.arcsin(10/13)`` an ``\arcsin``; a full stop after the
    dollars is removed, and so are dollars that split a formula. Prose with formulas in it, and text
    that is plain already, is returned unchanged.
    """
    text = re.sub(r"(?<=\$)\.$", "", gold.strip())
    bare = _OUTER_DOLLARS.sub("", text).strip()
    if len(_DOLLAR.findall(text)) % 2:
        bare = _DOLLAR.sub("", bare)  # one is missing or surplus, and it is unknown which
    elif bare == text:
        bare = re.sub(r"\$\s*\$", " ", bare)  # a formula that was split in two
    if _DOLLAR.search(bare):
        return text
    if whole := _WHOLE_FLOAT.fullmatch(bare):
        return whole[1]
    if power := _E_NOTATION.fullmatch(bare):
        return rf"{power[1]}\times10^{{{int(power[2])}}}"
    return _NUMPY.sub(r"\\\1", bare)


def latex_forms(gold: str) -> tuple[str, ...]:
    """The forms in which an answer may be written, each in math mode; none if it is empty.

    First the original gold, then `clean`'s form, then, for a power of ten, the form ``1e-5``: a
    model that writes it this way is parsed exactly like the raw gold.
    """
    if not _OUTER_DOLLARS.sub("", gold.strip()).strip():
        return ()
    cleaned = clean(gold)
    forms = [_marked(gold), _marked(cleaned)]
    if power := _TIMES_POWER.fullmatch(cleaned):
        forms.append(f"${power[1]}e{power[2]}$")
    return tuple(dict.fromkeys(forms))


def _marked(latex: str) -> str:
    bare = _OUTER_DOLLARS.sub("", latex.strip()).strip()
    return latex if _DELIMITERS.search(bare) else f"${bare}$"
