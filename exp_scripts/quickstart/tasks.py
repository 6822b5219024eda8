"""The quickstart's task: add five numbers from 0 to 5, the answer in \\boxed{}.

    python exp_scripts/quickstart/tasks.py --output_dir DIR  # train.parquet and test.parquet

All 7,776 questions are shuffled once, with a fixed seed, and split into a test set, a training set
for reinforcement learning, and the rest for the base model's supervised training. No question is in
two of them.
"""

from __future__ import annotations

import argparse
import itertools
import random
from pathlib import Path
from typing import Any

from exgrpo.experience.question_id import question_id
from exgrpo.saved import durable

TEST, TRAIN = 256, 3072


def split_questions() -> dict[str, list[str]]:
    """``test``, ``train`` and ``supervised``: disjoint lists of questions such as "3+5+1+4+4",
    always the same.
    """
    questions = ["+".join(terms) for terms in itertools.product("012345", repeat=5)]
    random.Random(20510).shuffle(questions)
    return {
        "test": questions[:TEST],
        "train": questions[TEST : TEST + TRAIN],
        "supervised": questions[TEST + TRAIN :],
    }


def answer(question: str) -> int:
    """The sum the question asks for."""
    return sum(int(term) for term in question.split("+"))


def row(question: str, index: int, split: str) -> dict[str, Any]:
    """One row of verl's schema."""
    return {
        "data_source": "sum5",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"ground_truth": str(answer(question)), "style": "rule"},
        "extra_info": {"index": index, "question_id": question_id(question), "split": split},
    }


def write(folder: Path) -> None:
    """Write ``train.parquet`` and ``test.parquet``, each renamed into place when it is complete."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    for split, questions in split_questions().items():
        if split == "supervised":
            continue
        with durable.replaced(folder / f"{split}.parquet") as temporary:
            pd.DataFrame(
                [row(question, i, split) for i, question in enumerate(questions)]
            ).to_parquet(temporary)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    write(parser.parse_args().output_dir)
