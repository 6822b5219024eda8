"""The reward of real responses: seconds for those of a step, strict and full, beside the step that they belong to.

    python lab/benchmarks/rewards.py GRADING_DATA [--responses 1024] [--runs 3] [--step_s 155.4]

GRADING_DATA holds qwen_math_cot_100.jsonl and gsm8k_model_solutions.jsonl, with gold and pred, a full response. One
process judges all of them, in turn by each grader; verl has eight, and they judge while other responses are generated.
The shares are of a step of --step_s seconds (the paper's on-policy step of 1,024 responses at 7B on 8 GPUs).
"""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path

import benchmark_folders  # noqa: F401
from common import Figures, at_least, in_turn, machine, parser, ratios, report, spread

from exgrpo.math_verify_reward import FULL, GRADERS, STRICT, compute_score

FILES = ("qwen_math_cot_100", "gsm8k_model_solutions")
PROCESSES = 8  # verl's reward.num_workers


def main() -> None:
    """Judge the same responses by both graders."""
    arguments = parser(__doc__)
    arguments.add_argument("folder", type=Path, metavar="GRADING_DATA")
    arguments.add_argument("--responses", type=at_least(1), default=1024)
    arguments.add_argument("--runs", type=at_least(1), default=3)
    arguments.add_argument("--step_s", type=float, default=155.4)
    options = arguments.parse_args()
    pairs = responses(options.folder, options.responses)
    works = {grader: lambda grader=grader: judge(pairs, grader) for grader in GRADERS}
    times = in_turn(works, options.runs)
    figures: Figures = {}
    for grader in GRADERS:
        figures[f"{grader}, s"] = spread(times[grader])
        figures[f"{grader}, share of a step, 1 process"] = spread([each / options.step_s for each in times[grader]])
        shared = [each / PROCESSES / options.step_s for each in times[grader]]
        figures[f"{grader}, share of a step, {PROCESSES} processes"] = spread(shared)
    figures["full / strict"] = ratios(times[FULL], times[STRICT])
    report(f"reward of {len(pairs)} responses", figures, machine("math-verify"), options)


def responses(folder: Path, count: int) -> list[tuple[str, str]]:
    """(gold, response), half from each file."""
    found = []
    for number, name in enumerate(FILES):
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        share = count // 2 + (count % 2 if number == 0 else 0)
        found += [(row["gold"], row["pred"]) for row in islice(cycle(rows), share)]
    return found


def judge(pairs: list[tuple[str, str]], grader: str) -> int:
    """As verl calls the reward function, one after the other."""
    return sum(
        compute_score("math", text, gold, require_think=False, grader=grader)["acc"] == 1 for gold, text in pairs
    )


if __name__ == "__main__":
    main()
