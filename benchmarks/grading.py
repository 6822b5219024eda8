"""The full grader against data with known verdicts: what each rule accepts, rightly and wrongly,
and its CPU time.

    nice python benchmarks/grading.py GRADING_DATA
    nice python benchmarks/grading.py GRADING_DATA --oat VERDICTS.json  # where Oat's grader differs

GRADING_DATA holds the four files of SETS, lines of JSON with gold, pred and expected. Printed is a
table in Markdown, a row for each rule that decided (accepted correctly / accepted wrongly), then
the right verdicts by either grader. VERDICTS.json has the verdicts of another copy of Oat's grader,
such as the released one: file name -> a list of 1 and 0, row by row; an answer without a box is put
into one, but for those of responses. Printed are the disagreements. Times are CPU seconds of the
judging process without its start, so a busy machine disturbs them little.
"""

from __future__ import annotations

import json
import resource
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from common import machine, parser, report

from exgrpo.gold_answers import latex_forms
from exgrpo.math_verify_reward import FULL_GRADER, Verifier

SETS = {
    "hardverify_dev": True,
    "math_verify_tests": False,
    "qwen_math_cot_100": False,
    "gsm8k_model_solutions": False,
}
WALL_S, CPU_S = 60.0, 5.0  # for an answer


@dataclass
class Verdicts:
    """The verdicts on one data set: numbers by the rule that decided and whether that was right."""

    rows: int = 0
    strict: int = 0  # right verdicts of Math-Verify alone
    full: int = 0
    wrongly: int = 0  # accepted by the full grader, wrong answers
    cpu_s: float = 0.0
    rules: Counter[tuple[str, bool]] = field(default_factory=Counter)


def main() -> None:
    """Judge the answers of all sets and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("folder", type=Path, metavar="GRADING_DATA")
    arguments.add_argument(
        "--oat", type=Path, metavar="VERDICTS", help="given verdicts of Oat's grader"
    )
    options = arguments.parse_args()
    if options.oat:
        given = json.loads(options.oat.read_text(encoding="utf-8"))
        for name in sorted(SETS.keys() & given.keys()):
            print("\n".join(oat_disagreements(name, options.folder / f"{name}.jsonl", given[name])))
        return
    verdicts = {
        name: judged(options.folder / f"{name}.jsonl", boxed) for name, boxed in SETS.items()
    }
    print("\n".join(table(verdicts)))
    figures: dict[str, float] = {}
    for name, found in verdicts.items():
        figures[f"{name}: accuracy"] = found.full / found.rows
        figures[f"{name}: wrong answers accepted, share"] = found.wrongly / found.rows
        figures[f"{name}: CPU s for 10,000 answers"] = found.cpu_s / found.rows * 10_000
    report("verdicts of the full grader", figures, machine("math-verify"), options)


def oat_disagreements(name: str, path: Path, given: list[int]) -> list[str]:
    """A line with the number of equal verdicts, then one for each other: row, the given verdict,
    gold and box.
    """
    from exgrpo_eval.grade.grading import OAT_GRADER
    from exgrpo_eval.grade.oat_forms import last_box

    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    judge, lines = Verifier("Oat", (str(OAT_GRADER),)), []
    for number, (row, other) in enumerate(zip(rows, given, strict=True)):
        box = last_box(row["pred"]) if r"\boxed" in row["pred"] else row["pred"]
        reply = None if box is None else judge.judge((row["gold"],), box, WALL_S, CPU_S)
        ours = bool(reply and reply["correct"])
        if ours != bool(other):
            lines.append(
                f"  row {number}: given {other}, ours {int(ours)}: gold {row['gold']!r}, "
                f"box {box!r}"
            )
    judge.close()
    return [f"{name}: {len(rows) - len(lines)} of {len(rows)} verdicts are equal", *lines]


def judged(path: Path, boxed: bool) -> Verdicts:
    r"""The verdicts on a file's answers, each in a \boxed of its own if `boxed`."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found, judge = Verdicts(len(rows)), Verifier(*FULL_GRADER)
    start_s = _cpu_of_start()
    before = _cpu_of_children()
    for row in rows:
        response = rf"\boxed{{{row['pred']}}}" if boxed else row["pred"]
        reply = judge.judge(latex_forms(row["gold"]), response, WALL_S, CPU_S) or {
            "rule": None,
            "correct": False,
        }
        rule, expected = reply["rule"], bool(row["expected"])
        found.strict += bool(reply["correct"]) == expected
        found.full += (rule is not None) == expected
        found.wrongly += rule is not None and not expected
        if rule is not None:
            found.rules[rule, expected] += 1
    judge.close()
    found.cpu_s = _cpu_of_children() - before - start_s
    return found


def _cpu_of_start() -> float:
    """CPU seconds for the start of a judging process and a first answer."""
    before, judge = _cpu_of_children(), Verifier(*FULL_GRADER)
    judge.judge(latex_forms("5"), r"\boxed{6}", WALL_S, CPU_S)
    judge.close()
    return _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(verdicts: dict[str, Verdicts]) -> list[str]:
    """Lines of Markdown: a row for each rule, a column for each data set."""
    names = sorted(
        {rule for found in verdicts.values() for rule, _ in found.rules},
        key=lambda each: (each != "math_verify", each),
    )
    lines = [
        "| decided by | "
        + " | ".join(f"{name} ({found.rows})" for name, found in verdicts.items())
        + " |"
    ]
    lines.append("| --- " * (len(verdicts) + 1) + "|")
    for rule in names:
        cells = [(found.rules[rule, True], found.rules[rule, False]) for found in verdicts.values()]
        lines.append(
            f"| {rule} | " + " | ".join(f"{a} / {b}" if a or b else "" for a, b in cells) + " |"
        )
    lines.append(
        "| right verdicts, strict | "
        + " | ".join(str(found.strict) for found in verdicts.values())
        + " |"
    )
    lines.append(
        "| right verdicts, full | "
        + " | ".join(str(found.full) for found in verdicts.values())
        + " |"
    )
    return lines


if __name__ == "__main__":
    main()
