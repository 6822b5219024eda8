"""What a run must remember beside its pool to go on as if it had never stopped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from exgrpo.config import ExperienceConfig


@dataclass
class ReplayState:
    """Phase, generator and the fresh questions that wait; owned by the trainer.

    Attributes:
        mixing: whether replay has begun (delayed start); never goes back to False.
        rng: of every draw of replay: questions, order of the batch, random selection.
        deferred: questions fetched from the data but already in that step; next step's first fresh ones.
    """

    mixing: bool
    rng: np.random.Generator
    deferred: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, config: ExperienceConfig) -> ReplayState:
        """The state before step 1."""
        return cls(mixing=config.experience_start_sratio == 0, rng=np.random.default_rng(config.exp_seed))

    def save(self, path: Path) -> None:
        """Write it as JSON: beside its target, to the disk, then renamed, so that no half file ever stands there."""
        state = {"mixing": self.mixing, "rng": self.rng.bit_generator.state, "deferred": self.deferred}
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> ReplayState:
        """Raises FileNotFoundError where the checkpoint has none, ValueError where it cannot be read."""
        try:
            state = json.loads(path.read_text())
            rng = np.random.default_rng()
            rng.bit_generator.state = state["rng"]
            return cls(mixing=state["mixing"], rng=rng, deferred=state["deferred"])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: not a saved replay state ({error})") from error
