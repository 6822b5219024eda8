"""What the updates of a training step have brought so far; in verl's modes only separate_async has
several a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_helpers import ratio_metrics
from exgrpo.experience.trajectory import RolloutGroup
from exgrpo.experience.trajectory_selector import Choice
from exgrpo.on_verl.queue import Batch


@dataclass
class StepMetrics:
    """Filled by each update, read after the last one.

    Attributes:
        groups: the fresh rollouts, by question.
        choices: what was replayed, one entry an update.
        log_ratios: [tokens] of each replayed row, before its update; natural log.
        generated_tokens: response tokens of the fresh rollouts.
        seconds: that replay took.
    """

    groups: list[RolloutGroup] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    log_ratios: list[npt.NDArray[np.float32]] = field(default_factory=list)
    generated_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, batch: Batch, choice: Choice) -> None:
        """A batch as it was generated, and what is replayed with it."""
        self.choices.append(choice)
        self.generated_tokens += sum(tag["response_len"] for tag in batch.tags)

    def metrics(self, step: int) -> dict[str, float]:
        """Of choices and importance ratios, over all updates."""
        ratios = np.concatenate([np.empty(0, np.float32), *self.log_ratios])
        return Choice.together(self.choices).metrics(step) | ratio_metrics(ratios)
