"""What a run must remember beside its pool to go on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exgrpo.experience.config import ExperienceConfig


@dataclass
class ReplayState:
    """Phase, generator and the fresh questions that wait; owned by the trainer, saved in the pool's manifest.

    Attributes:
        mixing: whether replay has begun (delayed start); never goes back to False.
        rng: of every draw of replay: questions, order of the batch, random selection.
        deferred: questions fetched from the data but already in that step; next step's first fresh ones.
        skipped: so many of the retired questions, in order of retirement, are left out of this epoch's fresh ones.
    """

    mixing: bool
    rng: np.random.Generator
    deferred: list[str] = field(default_factory=list)
    skipped: int = 0

    @classmethod
    def start(cls, config: ExperienceConfig) -> ReplayState:
        """The state before step 1."""
        return cls(mixing=config.experience_start_sratio == 0, rng=np.random.default_rng(config.exp_seed))

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "mixing": self.mixing,
            "rng": self.rng.bit_generator.state,
            "deferred": self.deferred,
            "skipped": self.skipped,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> ReplayState:
        """The state that `to_json` gave; states from before `skipped` existed skip nothing until the next epoch."""
        rng = np.random.default_rng()
        rng.bit_generator.state = state["rng"]
        return cls(
            mixing=state["mixing"], rng=rng, deferred=list(state["deferred"]), skipped=int(state.get("skipped", 0))
        )
