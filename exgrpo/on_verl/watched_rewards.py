"""Rewards that raise, or are no number, are counted and shown; verl loses their rollouts without a
word, and advises on another key once none is left.

`reward.reward_manager.module.path` names this file (exgrpo.preflight.modes.watch_rewards): its
attribute NAME is verl's reward manager of that name, watched. The trainer's side is `Rewards`.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Mapping
from typing import Any

from verl.experimental.reward_loop.reward_manager.registry import get_reward_manager_cls

from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch
from exgrpo.refusal import shown

logger = logging.getLogger(__name__)
WRONG = "reward_error"  # of what the reward says of a rollout besides its score
FLAT = 3  # steps without an advantage, until it is said


def __getattr__(name: str) -> type:
    """verl's reward manager of a name, watched."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(f"Watched_{name}", (_Watched, get_reward_manager_cls(name)), {})


class _Watched:
    async def run_single(self, data: Any) -> dict[str, Any]:
        """verl's; a rollout without a reward gets 0, and the reason beside it."""
        try:
            judged: dict[str, Any] = await super().run_single(data)  # type: ignore[misc]
        except Exception as error:  # a user's reward may raise any error
            at = traceback.extract_tb(error.__traceback__)[-1]
            why = shown(f"{type(error).__name__} ({error}) at {at.filename}:{at.lineno}", 400)
            return _unjudged(f"raised {why}")
        score = judged["reward_score"]
        if isinstance(score, int | float) and math.isfinite(score):
            return judged
        return _unjudged(f"was {shown(repr(score))}, which is no finite number")


def _unjudged(why: str) -> dict[str, Any]:
    return {"reward_score": 0.0, "reward_extra_info": {WRONG: why}}


class Rewards:
    """What the trainer finds in the rewards of its rollouts."""

    def __init__(self) -> None:
        self._said = False
        self._flat = 0

    def judged_alone(self, batch: Batch, metrics: dict[str, Any]) -> Batch:
        """The batch without the rollouts that have no reward.

        Raises:
            ValueError: none is left.
        """
        rows = queue.read(batch.keys, batch.partition_id, ["extra_fields"])
        extras = list(rows["extra_fields"]) if "extra_fields" in rows else []
        # without the column there is nothing to say of any row
        wrong = {key: why for key, why in zip(batch.keys, map(_why, extras), strict=False) if why}
        metrics["training/reward_errors"] = len(wrong)
        if not wrong:
            return batch
        first = next(iter(wrong.values()))
        said = f"exgrpo: {len(wrong)} of {len(batch)} rollouts have no reward"
        if len(wrong) == len(batch):
            raise ValueError(f"{said}, nothing is left to train on; the first {first}")
        if not self._said:
            logger.warning(
                "%s and are left out (training/reward_errors): the first %s", said, first
            )
        self._said = True
        return queue.without(batch, wrong)

    def look(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Say it once when several steps in a row have taught nothing; call with verl's metrics."""
        advantages = [metrics.get(f"critic/advantages/{end}") for end in ("min", "max")]
        self._flat = self._flat + 1 if advantages == [0, 0] else 0
        if self._flat == FLAT:
            logger.warning(
                "exgrpo: step %d: no rollout of the last %d steps has an advantage, the rewards of "
                "each question are all equal (mean %.3g): nothing is learned; look at the reward, "
                "and whether the questions are too easy or too hard",
                step,
                FLAT,
                metrics.get("critic/score/mean", math.nan),
            )


def _why(extra: Any) -> str | None:
    info = extra.get("reward_extra_info") if isinstance(extra, Mapping) else None
    return (info or {}).get(WRONG)
