"""Metrics of replay in verl's log: of a training step, and of a validation."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
import numpy.typing as npt
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics

from exgrpo.experience.experience_helpers import ratio_metrics
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory import RolloutGroup
from exgrpo.experience.trajectory_selector import Choice
from exgrpo.on_verl.correct import log_ratios
from exgrpo.on_verl.observe import fresh_positions
from exgrpo.on_verl.queue import Batch

# with "reward" where the reward function gives no "acc"
_MEAN = re.compile(r"val-core/(?P<source>.+)/(?:acc|reward)/mean@\d+")


@dataclass
class StepMetrics:
    """Filled by each update, read after the last one.

    Attributes:
        groups: the fresh rollouts, by question.
        choices: what was replayed, one entry an update.
        replayed: what was replayed, one record a group.
        current: key of a replayed row -> its log-probs before its update, [T].
        generated_tokens: response tokens of the fresh rollouts.
        seconds: that replay took.
    """

    groups: list[RolloutGroup] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    replayed: list[ReplayedGroup] = field(default_factory=list)
    current: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    generated_tokens: float = 0.0
    seconds: float = 0.0

    @property
    def questions(self) -> set[str]:
        """The questions of the step so far."""
        fresh, replayed = self.groups, self.replayed
        return {each.question for each in fresh} | {each.question for each in replayed}

    def add(self, batch: Batch, choice: Choice) -> None:
        """A batch as it was generated, and what is replayed with it."""
        self.choices.append(choice)
        self.generated_tokens += sum(tag["response_len"] for tag in batch.tags)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time spent within it counts as replay's."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics of choices and importance ratios, over all updates of the step."""
        past = {key: each for group in self.replayed for key, each in group.rows.items()}
        ratios = np.concatenate([np.empty(0, np.float32), *log_ratios(past, self.current).values()])
        return Choice.together(self.choices).metrics(step) | ratio_metrics(ratios)

    def work(self) -> dict[str, float]:
        """Cost of the whole step, which verl would otherwise average over the updates."""
        given = sum(group.prefix * group.size for group in self.groups)
        return {
            "experience/generated_tokens": self.generated_tokens - given,
            "experience/seconds": self.seconds,
        }


def staleness(batch: Batch, step: int) -> dict[str, float]:
    """How many updates older than this step's the weights of fresh rollouts are: mean, maximum."""
    ages = [step - 1 - batch.tags[i]["max_global_steps"] for i in fresh_positions(batch)] or [0]
    return {"fresh_staleness": float(np.mean(ages)), "fresh_staleness_max": float(max(ages))}


def debug_metrics(rows: TensorDict) -> dict[str, float]:
    """verl's comparison of rollout and actor log-probs, of the fresh rows alone."""
    fields = ("responses", "response_mask", "rollout_log_probs", "old_log_probs")
    padded = DataProto(batch=rows.select(*fields).to_padded_tensor())
    metrics: dict[str, float] = calculate_debug_metrics(padded)
    return metrics


def with_averages(metrics: Mapping[str, float]) -> dict[str, float]:
    """verl's validation metrics with ``val-core/avg_score``, the mean over data sources of the mean
    scores, and ``val-core/avg_score_stable``, that without the sources whose name contains
    "minerva"; each only if it has a source.
    """
    matches = [(_MEAN.fullmatch(key), score) for key, score in metrics.items()]
    sources = [(match["source"], score) for match, score in matches if match]
    means = {
        "avg_score": [score for _, score in sources],
        "avg_score_stable": [score for source, score in sources if "minerva" not in source],
    }
    averages = {f"val-core/{name}": fmean(scores) for name, scores in means.items() if scores}
    return {**metrics, **averages}
