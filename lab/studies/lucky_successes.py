"""Are the successes of low entropy the valid ones? Paper, figures 1b, 1c and 10, Table 12, on our bases.

    python lab/studies/lucky_successes.py [--answers 32] [--picture lab/runs/lucky-successes.png]

The reward sees the final answer alone. Here every step of an answer can be checked: a success is *valid* if it works
the answer out, each step right, and *lucky* if it does not. The method replays a question's success of lowest entropy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import study_folders
import torch
from fast_policy import FastPolicy
from matplotlib import pyplot as plt
from skills import SKILLS, load

from exgrpo.console import in_one_line

matplotlib.use("Agg")
PICTURE = study_folders.RUNS / "lucky-successes.png"
QUESTIONS = 128
# of a question, by the share of its answers that are right, as in the paper
LEVELS = {"hard": (0.0, 0.25), "medium": (0.25, 0.75), "easy": (0.75, 1.0)}


class Success(NamedTuple):
    """A right answer.

    Attributes:
        question: its number.
        entropy: mean over the tokens, in nats.
        perplexity: exp of the mean negative log-prob of a token.
        valid: whether it was worked out.
    """

    question: int
    entropy: float
    perplexity: float
    valid: bool


def successes(name: str, answers: int) -> list[Success]:
    """Those among ``answers`` answers of the base to each held-out question."""
    slow, task = load(name)
    policy = FastPolicy(slow.model, slow.tokenizer, slow.max_tokens)
    torch.manual_seed(0)
    asked = [number for number in range(QUESTIONS) for _ in range(answers)]
    found = []
    for number, rollout in zip(asked, policy.sample([task.test[number] for number in asked], 0), strict=True):
        question, reply = task.test[number], policy.decode(rollout)
        if task.reward(question, reply):
            perplexity = float(np.exp(-rollout.log_probs.mean()))
            found.append(Success(number, rollout.entropy, perplexity, reply == SKILLS[name].careful(question)))
    return found


def facts(found: Sequence[Success]) -> dict[str, float]:
    """Medians of entropy; and, of the questions with both kinds, how often each choice takes a valid one."""
    of = {kind: [one.entropy for one in found if one.valid is kind] for kind in (True, False)}
    by_question = [[one for one in found if one.question == number] for number in range(QUESTIONS)]
    both = [mine for mine in by_question if len({one.valid for one in mine}) == 2]
    lowest = [min(mine, key=lambda one: one.entropy).valid for mine in both]
    return {
        "valid": len(of[True]),
        "lucky": len(of[False]),
        "median entropy of valid": float(np.median(of[True])),
        "median entropy of lucky": float(np.median(of[False])),
        "questions with both": len(both),
        "lowest entropy is valid": float(np.mean(lowest)),
        "a random one is valid": float(np.mean([np.mean([one.valid for one in mine]) for mine in both])),
    }


def table(every: dict[str, list[Success]], answers: int) -> str:
    """Markdown: medians of valid and of lucky successes, by how often the question is solved."""
    lines = ["| task | questions | valid, lucky | entropy, nats | perplexity |", "| --- | --- | --- | --- | --- |"]
    for name, found in every.items():
        share = np.bincount([one.question for one in found], minlength=QUESTIONS) / answers
        for level, (low, high) in LEVELS.items():
            mine = [one for one in found if low < share[one.question] <= high]
            of = [[one for one in mine if one.valid is kind] for kind in (True, False)]
            counts = ", ".join(str(len(kind)) for kind in of)
            medians = [
                ", ".join(f"{np.median([getattr(one, measure) for one in kind]):.2f}" if kind else "-" for kind in of)
                for measure in ("entropy", "perplexity")
            ]
            lines.append(f"| {name} | {level} | {counts} | {' | '.join(medians)} |")
    return "\n".join(lines)


def draw(every: dict[str, list[Success]], path: Path) -> None:
    """A histogram for each task: entropy of valid and of lucky successes."""
    figure, axes = plt.subplots(1, len(every), figsize=(9, 3), layout="constrained")
    for axis, (name, found) in zip(axes, every.items(), strict=True):
        bins = np.linspace(0, max(one.entropy for one in found), 40)
        for kind, label, color in ((True, "valid: each step right", "tab:blue"), (False, "lucky", "tab:orange")):
            axis.hist([one.entropy for one in found if one.valid is kind], bins, label=label, color=color, alpha=0.7)
        axis.set(title=f"{name}: right answers", xlabel="mean token entropy, nats", ylabel="answers")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the facts of each task and the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=32, help="to each of 128 questions (default 32)")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    every = {name: successes(name, options.answers) for name in SKILLS}
    for name, found in every.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in facts(found).items()), flush=True)
    print(table(every, options.answers))
    draw(every, options.picture)


if __name__ == "__main__":
    with in_one_line("lucky_successes.py"):
        main()
