"""The difficulty of a question: a level between 0 and 1, measured on its recent trajectories."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from exgrpo.buffer.records import flat
from exgrpo.refusal import refuse

Measure = Callable[[Mapping[str, Any]], float]

# lengths with level one half; x / (x + half) maps lengths of any order of magnitude to 0..1
HALF_QUESTION, HALF_TOKENS = 200, 500  # characters; tokens
_CODE = re.compile(
    r"```|^\s*(def |class |import |from \w+ import |#include|public |function |SELECT )",
    re.MULTILINE,
)


def _question_length(trajectory: Mapping[str, Any]) -> float:
    length = len(trajectory["prompt"])
    return length / (length + HALF_QUESTION)


def _token_count(trajectory: Mapping[str, Any]) -> float:
    tokens = trajectory.get("tokens")
    count = len(trajectory["rollout"].split() if tokens is None else tokens)
    return count / (count + HALF_TOKENS)


METRICS: dict[str, Measure] = {
    "correctness_rate": lambda trajectory: float(trajectory["is_correct"]),
    "question_length": _question_length,
    "token_count": _token_count,
    "has_code": lambda trajectory: float(_CODE.search(trajectory["prompt"]) is not None),
}


class DifficultyBucketer:
    """The mean of a measure over each question's last `window_size` trajectories, right or wrong.

    correctness_rate  share of correct trajectories (section 4.1): 0 if never solved, 1 if always
    question_length   c / (c + 200), c the question's characters
    token_count       t / (t + 500), t the rollout's tokens, or its words if there are no tokens
    has_code          1 for a question with a fenced block or a line that begins like code, else 0

    Keeps a window for each question seen, whether or not a trajectory of it is stored.

    A buffer observes with the bucketer that it was given, `TrajectoryBuffer(bucketer=...)`, else
    with one of its own; one made beside it and not given to it stays empty and changes no draw.

    Args:
        metric: a name above, or a function from the trajectory to 0..1: the mapping of
            TrajectoryBuffer.add as `exgrpo.buffer.records.flat` returns it, with the text as
            `rollout` and tokens beside it.
        window_size: number of a question's latest trajectories that count.

    Raises:
        ValueError: one line with the name, the value and what is allowed.
    """

    def __init__(self, metric: str | Measure = "correctness_rate", window_size: int = 100) -> None:
        if not callable(metric) and metric not in METRICS:
            refuse("metric", repr(metric), f"one of {', '.join(METRICS)}, or a function")
        if isinstance(window_size, bool) or not isinstance(window_size, int) or window_size < 1:
            refuse("window_size", repr(window_size), "an integer of at least 1")
        self.metric = metric
        self.window_size = window_size
        self._measure: Measure = metric if callable(metric) else METRICS[metric]
        self._windows: dict[str, deque[float]] = {}

    def __len__(self) -> int:
        """Number of questions seen."""
        return len(self._windows)

    def __contains__(self, prompt: object) -> bool:
        return prompt in self._windows

    def observe(self, trajectory: Mapping[str, Any]) -> float:
        """Add a trajectory to its question's window; returns the question's new level.

        Args:
            trajectory: as for TrajectoryBuffer.add.

        Raises:
            ValueError: the measure is not between 0 and 1; nothing has changed.
        """
        trajectory = flat(trajectory)
        value = float(self._measure(trajectory))
        if not 0 <= value <= 1:
            allowed = "must be between 0 and 1"
            raise ValueError(f"metric of question {trajectory['prompt']!r} is {value}: {allowed}")
        window = self._windows.setdefault(trajectory["prompt"], deque(maxlen=self.window_size))
        window.append(value)
        return self.level(trajectory["prompt"])

    def level(self, prompt: str) -> float:
        """The question's mean measure; KeyError for a question that was never observed."""
        window = self._windows[prompt]
        return math.fsum(window) / len(window)  # exact: a restored window gives the same bits

    def tier(self, prompt: str, tiers: int) -> int:
        """The index of the level among `tiers` equal ranges; a boundary is in the higher one."""
        return min(int(self.level(prompt) * tiers), tiers - 1)

    def clear(self) -> None:
        """Forget every question."""
        self._windows.clear()

    def windows(self) -> dict[str, list[float]]:
        """Question -> its measures, oldest first, as `restore` takes them."""
        return {prompt: list(window) for prompt, window in self._windows.items()}

    def restore(self, windows: Mapping[str, list[float]]) -> None:
        """Replace all windows with these, from `windows`."""
        self._windows = {each: deque(window, self.window_size) for each, window in windows.items()}
