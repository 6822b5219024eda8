r"""Residue classes: n \equiv 1 \pmod 4, "congruent to 2 or 3 modulo 4", n = 4k + 1."""

from __future__ import annotations

import re

from exgrpo.grading.nodes import Residues
from exgrpo.grading.splitting import split

MAX_MODULUS = 1_000
_MODULUS = r"\(?\s*(?:\\[pb]?mod|\"?\bmod(?:ulo)?\b\"?)\s*\{?\s*(\d+)\s*\}?\s*\)?"
_CLASSES = re.compile(
    r"(?:(?P<name>\\?[a-zA-Z]+)\s*\\(?:equiv|cong)(?![a-z])\s*|"
    r"(?:\"?(?:those|numbers|integers)\"?\s+)?(?:[a-z]\s+)?(?:is |are )?\"?congruent\"?\s+\"?to\"?\s*)?"
    rf"(?P<values>[-\d\s,\\pmor\"and]+?)\s*{_MODULUS}",
)
_VALUE = re.compile(r"(\\pm\s*|-\s*)?(\d+)")


def residues(text: str) -> Residues | None:
    """The residue classes that a repaired text states; None if it is anything else."""
    if "mod" not in text:
        return None
    match = _CLASSES.fullmatch(text.strip())
    if match is None:
        return None
    modulus = int(match[3])
    found: set[int] = set()
    for piece in split(match["values"], r",|\"?\b(?:or|and)\b\"?")[0]:
        value = _VALUE.fullmatch(piece.strip())
        if value is None:
            if piece.strip():
                return None
            continue
        number = int(value[2])
        signs = (1, -1) if "pm" in (value[1] or "") else (-1,) if value[1] else (1,)
        found |= {sign * number % modulus for sign in signs} if 0 < modulus <= MAX_MODULUS else set()
    return Residues(frozenset(found), modulus, match["name"] or "") if found else None
