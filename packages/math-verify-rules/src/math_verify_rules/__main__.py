"""``python -m math_verify_rules --check``: the cases that ship with the package, judged here and
now.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from typing import NamedTuple

from math_verify_rules.judging import accepted_by


class Case(NamedTuple):
    """A line of cases.jsonl.

    Attributes:
        gold: as `accepted_by` takes it; answer: a response, or a part of one.
        verdict: whether the answer states the gold.
        kind: the rule or the guard that it is about.
    """

    gold: str
    answer: str
    verdict: bool
    kind: str


def cases() -> Iterator[Case]:
    """All of cases.jsonl, in its order."""
    for line in (
        files("math_verify_rules").joinpath("cases.jsonl").read_text(encoding="utf-8").splitlines()
    ):
        yield Case(**json.loads(line))


def main() -> None:
    """Print each case judged otherwise than it says, then the counts; exit status 1 if there is
    one.
    """
    parser = argparse.ArgumentParser(prog="python -m math_verify_rules", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", required=True, help="judge the cases; nothing else is done"
    )
    parser.parse_args()
    known = list(cases())
    wrong = [
        case for case in known if (accepted_by(case.gold, case.answer) is not None) != case.verdict
    ]
    for case in wrong:
        print(
            f"{case.kind}: gold {case.gold!r}, answer {case.answer!r}: should be "
            f"{_said(case.verdict)}"
        )
    right = sum(case.verdict for case in known)
    print(
        f"{len(known)} cases, {right} to accept and {len(known) - right} to reject: "
        f"{len(known) - len(wrong)} as they "
        f"say (math-verify {version('math-verify')})"
    )
    sys.exit(1 if wrong else 0)


def _said(verdict: bool) -> str:
    return "accepted" if verdict else "rejected"


if __name__ == "__main__":
    main()
