"""Gold answers as the benchmarks have them, made into LaTeX that means what was meant."""

from __future__ import annotations

import re

_DELIMITERS = re.compile(r"(?<!\\)(?:\$|\\\[|\\\()|\\boxed")  # of mathematics; not the \\[2pt] of a matrix, not \$
_OUTER_DOLLARS = re.compile(r"^\$+|(?<!\\)\$+$")
_DOLLAR = re.compile(r"(?<!\\)\$")
_WHOLE_FLOAT = re.compile(r"(-?\d+)\.0+")
_E_NOTATION = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]\+?(-?\d+)")
_TIMES_POWER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*\\(?:times|cdot)\s*10\^\{?(-?\d+)\}?")
_NUMPY = re.compile(r"\bnp\.(arcsin|arccos|arctan|sin|cos|tan|exp)(?=\()")


def clean(gold: str) -> str:
    r"""One answer as plain LaTeX, without dollars around it.

    AMC's ``142.0`` becomes 142; Minerva's ``4.5e33``, which LaTeX reads as 4.5 times e times 33, becomes
    ``4.5\times10^{33}``, and its ``np.arcsin(10/13)`` an ``\arcsin``; a full stop behind the dollars goes, and so do
    dollars that tear a formula apart. Prose with formulas in it, and what is plain already, comes back as it is.
    """
    text = re.sub(r"(?<=\$)\.$", "", gold.strip())
    bare = _OUTER_DOLLARS.sub("", text).strip()
    if len(_DOLLAR.findall(text)) % 2:
        bare = _DOLLAR.sub("", bare)  # one is missing or one too many: which, nobody knows
    elif bare == text:
        bare = re.sub(r"\$\s*\$", " ", bare)  # a formula that was broken in two
    if _DOLLAR.search(bare):
        return text
    if whole := _WHOLE_FLOAT.fullmatch(bare):
        return whole[1]
    if power := _E_NOTATION.fullmatch(bare):
        return rf"{power[1]}\times10^{{{int(power[2])}}}"
    return _NUMPY.sub(r"\\\1", bare)


def latex_forms(gold: str) -> tuple[str, ...]:
    """The ways an answer may be written, each marked as mathematics; none where there is nothing in it.

    The gold as given comes first, then `clean`'s reading, then, of a power of ten, what ``1e-5`` looks like: a model
    that writes it so is read as the raw gold is, to the letter.
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
