"""The option --reward: who judges, in each command that judges outside a training.

    --reward my_reward.py:compute_score --reward_kwargs worth=2
    --reward checkpoints/exgrpo       who judged that run's pool

Without it, what the command reads says by whom it was judged.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from exgrpo.math_verify_reward import GRADERS
from exgrpo.open_table import REFERENCES, is_reference, load_function
from exgrpo.provenance import Provenance, of_settings

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")  # of verl's rewards
SUCCESS = 0.5  # a reward above it is a right answer, the default of trainer.exp_success_threshold


@dataclass(frozen=True)
class Reward:
    """A grader of exgrpo's by its name, or a reward function as a training calls it.

    Attributes:
        name: one of GRADERS, or path/file.py:name or pkg://module:name.
        arguments: those of reward_kwargs.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.name in GRADERS

    @property
    def author(self) -> Provenance:
        """Who judges, as a trajectory records it; of a function of the user's."""
        path, _, name = self.name.rpartition(":")
        return of_settings({"path": path, "name": name, "reward_kwargs": dict(self.arguments)})

    def load(self, option: str = "--reward") -> None:
        """ValueError, in one line, unless it can be imported and takes what it is handed."""
        function = load_function(option, self.name)
        try:
            inspect.signature(function).bind(**dict.fromkeys(ARGUMENTS) | dict(self.arguments))
        except TypeError:
            names = ", ".join([*ARGUMENTS, *self.arguments])
            raise ValueError(f"{option}={self.name}: must take the arguments ({names})") from None

    def score(self, response: str, handed: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """The score of a response, and what the function says besides.

        Args:
            handed: data_source, ground_truth and extra_info of its row.

        Raises:
            ValueError: it raises, or gives no finite number; in one line.
        """
        function = load_function("--reward", self.name)
        try:
            given = function(**handed, solution_str=response, **self.arguments)
            given = asyncio.run(given) if inspect.iscoroutine(given) else given
            fields = given if isinstance(given, dict) else {"score": given}
            score = float(fields["score"])
        except Exception as error:  # of another author
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the reward function failed ({why})") from error
        if not math.isfinite(score):
            raise ValueError(f"the reward function gives {score}: must be a finite number")
        return score, fields


def add_to(parser: Any) -> None:
    """Add the two flags to a parser, or a group of it."""
    parser.add_argument(
        "--reward",
        metavar="REWARD",
        help=f"who judges: {', '.join(GRADERS)}, {REFERENCES}, or the checkpoint or pool that says "
        "it (default: as what is read was judged)",
    )
    parser.add_argument(
        "--reward_kwargs",
        nargs="+",
        metavar="KEY=VALUE",
        help="arguments of a reward function, as reward.custom_reward_function.reward_kwargs",
    )


def named(
    given: str | None, arguments: Sequence[str] | None, default: Path | None
) -> Reward | None:
    """The reward that the flags name, or the one that judged what is at `default`; None if neither
    says.

    Raises:
        ValueError: one line with the flag, the value and what is allowed.
    """
    read = dict(map(_argument, arguments or []))
    if given is None or Path(given).expanduser().is_dir():
        found = _judged(default if given is None else Path(given).expanduser())
        if given is not None and found is None:
            raise ValueError(f"--reward={given}: does not say who judged it; name the reward")
        return found and Reward(found.name, {**found.arguments, **read})
    if given not in GRADERS and not is_reference(given):
        allowed = f"{', '.join(GRADERS)}, {REFERENCES}, or a checkpoint's folder"
        raise ValueError(f"--reward={given}: must be one of {allowed}")
    return Reward(given, read)


def _argument(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"--reward_kwargs {text}: must be KEY=VALUE")
    return key, yaml.safe_load(value)


def _judged(folder: Path | None) -> Reward | None:
    """Who judged a pool: of a run's folder, a checkpoint or its model, or a pool."""
    if folder is None:
        return None
    # NumPy comes with them, which --help does without
    from exgrpo.saved.durable import newest
    from exgrpo.saved.pool_files import read_manifest
    from exgrpo_tools.find_pool import find_pool

    for place in [folder, *folder.absolute().parents[:2]]:
        try:
            manifest = read_manifest(newest(find_pool(place)))
        except FileNotFoundError:
            continue
        author = Provenance.read((manifest["replay_state"] or {}).get("judged_by"))
        known = author.is_ours or is_reference(author.grader)
        return Reward(author.grader, author.arguments) if known else None
    return None


def chosen(options: argparse.Namespace, default: Path | None) -> Reward | None:
    """As `named`, of a command's options; a function has been imported."""
    reward = named(options.reward, options.reward_kwargs, default)
    if reward is not None and not reward.is_ours:
        reward.load()
    return reward
