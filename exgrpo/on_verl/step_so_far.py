"""What the updates of a training step have brought so far; in verl's modes only separate_async has several a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exgrpo.experience.choice import Choice, ratio_metrics, step_metrics
from exgrpo.experience.replay_log import Effect
from exgrpo.experience.trajectory import RolloutGroup


@dataclass
class StepSoFar:
    """Filled by each update, read after the last one.

    Attributes:
        groups: the fresh rollouts, by question.
        effects: replayed question -> what its trajectory weighs.
        choices: what was replayed, one entry an update.
        log_ratios: [tokens] of each replayed row, before its update; natural log.
        generated_tokens: response tokens of the fresh rollouts.
        seconds: that the step has waited for replay.
    """

    groups: list[RolloutGroup] = field(default_factory=list)
    effects: dict[str, Effect] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    log_ratios: list[npt.NDArray[np.float32]] = field(default_factory=list)
    generated_tokens: float = 0.0
    seconds: float = 0.0

    def metrics(self, step: int) -> dict[str, float]:
        """Of choices and importance ratios, over all updates."""
        return step_metrics(self.choices, step) | ratio_metrics(
            np.concatenate([np.empty(0, np.float32), *self.log_ratios])
        )
