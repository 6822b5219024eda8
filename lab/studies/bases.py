"""Make the base models of the tasks again, and measure them.

    python lab/studies/bases.py [TASK ...] [--base 1] [--words] [--measure]

--base 1 makes the second base of each, with another seed. --words draws reasoning-gym's words again first, --measure
makes nothing.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
import skills
import torch
from make_base import build_model, build_tokenizer
from once_tasks import EVERY_TASK
from rare_tasks import BASES, RareTask, base_name, load
from skills import teach
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent

WORDS = 4000
LAYERS, WIDTH = 2, 64


def draw_words() -> None:
    """Write words.json: distinct words of reasoning-gym's spell_backward, in the order drawn."""
    from exgrpo_data.make_tasks import draw

    drawn = draw("spell_backward", 2510, WORDS, {"min_word_len": 5, "max_word_len": 8})
    words = dict.fromkeys(question.rpartition(" ")[2].lower() for question, _ in drawn)
    kept = [word for word in words if word.isascii() and word.isalpha()]
    (HERE / "words.json").write_text(json.dumps(kept, indent=0) + "\n")


def make(task: RareTask, base: int = 0) -> None:
    """Train a base model and save it; the number is its seed."""
    torch.manual_seed(base)
    rng, folder = random.Random(base), BASES / base_name(task, base)
    if task.start is None:
        tokenizer = build_tokenizer(folder)
        model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, LAYERS, WIDTH)
    else:
        start = skills.base(task.start.name, f"make_study_bases.py {task.start.name}")
        tokenizer, model = AutoTokenizer.from_pretrained(start), AutoModelForCausalLM.from_pretrained(start)
        tokenizer.save_pretrained(folder)
    barred = set(task.kept_back())
    for phase in task.phases:
        print(f"{task.name}: {phase}", flush=True)
        teach(model, tokenizer, task, phase, barred, rng)
    model.save_pretrained(folder)


def facts(name: str, base: int = 0, samples: int = 32) -> dict[str, float]:
    """Of training and test questions: mean accuracy, and the share of the questions solved in `samples` answers."""
    policy, task = load(EVERY_TASK[name], base=base)
    torch.manual_seed(0)
    found: dict[str, float] = {}
    for part, questions in (("train", task.train), ("test", task.test)):
        replies = policy.sample([question for question in questions for _ in range(samples)], 0)
        right = [
            task.reward(question, policy.decode(replies[row * samples + number]))
            for row, question in enumerate(questions)
            for number in range(samples)
        ]
        table: np.ndarray = np.reshape(right, (len(questions), samples))
        found |= {f"{part}_mean": float(table.mean()), f"{part}_pass": float(table.any(1).mean())}
        found[f"{part}_tokens"] = sum(map(len, replies)) / len(replies)
        found[f"{part}_entropy"] = float(np.mean([reply.entropy for reply in replies]))
    return found


def main() -> None:
    """Make the bases that are asked for, print what they do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", default=list(EVERY_TASK))
    parser.add_argument("--base", type=int, default=0, choices=(0, 1))
    parser.add_argument("--words", action="store_true")
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.words:
        draw_words()
    for name in arguments.task:
        if not arguments.measure:
            make(EVERY_TASK[name], arguments.base)
        print(
            json.dumps({"task": name} | {key: round(value, 3) for key, value in facts(name, arguments.base).items()}),
            flush=True,
        )


if __name__ == "__main__":
    main()
