"""Keys below `trainer.` that are not of replay: default, check and meaning of each in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from exgrpo.experience import key_checks as check


@dataclass(frozen=True)
class TrainerKeys:
    """Raises ValueError, one line with the key, the value and what is allowed."""

    max_optim_to_keep: int | None = field(
        default=None,
        metadata={
            "check": check.optional_integer(1),
            "meaning": "this many checkpoints, the latest, keep their optimizer states, "
            "two thirds of their size; null: all do",
        },
    )
    rollout_seeded: bool = field(
        default=False,
        metadata={
            "check": check.boolean,
            "meaning": "each rollout has its own sampling seed, which follows from "
            "rollout.seed, step and position",
        },
    )
    rollout_poll_interval: float = field(
        default=2.0,
        metadata={
            "check": check.positive,
            "meaning": "seconds between two looks at the queue while generation runs; "
            "use 0.05 for small runs",
        },
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            checked = each.metadata["check"](f"trainer.{each.name}", given)
            object.__setattr__(self, each.name, checked)

    @classmethod
    def from_mapping(cls, trainer: Mapping[str, Any]) -> TrainerKeys:
        """Pick these keys out of verl's `trainer` node; other keys are ignored."""
        names = [each.name for each in fields(cls) if each.name in trainer]
        return cls(**{name: trainer[name] for name in names})
