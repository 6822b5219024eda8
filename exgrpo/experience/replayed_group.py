"""What a step replays of a question, as one record: chosen, filled in, then logged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory import Trajectory


class Odds(NamedTuple):
    """How likely a question was when it was drawn.

    Attributes:
        bucket: its success count then.
        probability: of the bucket, among the buckets that had a question to draw.
        size: questions of the bucket that could be drawn.
        drawn: questions drawn for replay in the step, from all buckets.
    """

    bucket: int
    probability: float
    size: int
    drawn: int


NO_ODDS = Odds(-1, math.nan, 0, 0)  # of a question that was not drawn here
WHOLE_GROUP = -1  # instead of a position among the candidates


@dataclass(frozen=True)
class Effect:
    """What a replayed trajectory weighs in its step, before the first update; NaN if unknown.

    Attributes:
        ratio_mean, ratio_low, ratio_high, ratio_ess: of its tokens' importance ratios: mean, least,
            greatest, effective sample size as a share.
        group_mean: mean reward of its group, its own included.
        advantage: of its tokens.
        group_share, step_share: of the absolute token losses of its group and of the whole step.
    """

    ratio_mean: float = math.nan
    ratio_low: float = math.nan
    ratio_high: float = math.nan
    ratio_ess: float = math.nan
    group_mean: float = math.nan
    advantage: float = math.nan
    group_share: float = math.nan
    step_share: float = math.nan


NO_EFFECT = Effect()


@dataclass(eq=False)
class ReplayedGroup:
    """A question that a step replays, as one record: the choice makes it, the step fills it.

    Owned by the ExperienceReplay that made it; at the end of the step it keeps `logged`.

    Attributes:
        question: its id.
        candidates: its trajectories then, in the order of recording; of a group its rollouts.
        chosen: position of the one that is replayed; WHOLE_GROUP: all of them are.
        scores: of the candidates under the current policy; NaN for those that were not compared.
        stored: the past group, if it is one.
        odds: of the question when it was drawn.
        uid: of its group in the batch; empty where the loop has none.
        rows: key of a row in the batch -> the trajectory that is replayed there.
        displaced: reward of the failure in whose place it is (`exp_rescue`); None: of none.
        effect: what it weighs in the step.
    """

    question: str
    candidates: Sequence[Trajectory]
    chosen: int
    scores: Sequence[float]
    stored: StoredGroup | None = None
    odds: Odds = NO_ODDS
    uid: str = ""
    rows: dict[str, Trajectory] = field(default_factory=dict)
    displaced: float | None = None
    effect: Effect = NO_EFFECT

    @classmethod
    def whole(cls, stored: StoredGroup) -> ReplayedGroup:
        unknown = [math.nan] * len(stored.rollouts)
        return cls(stored.question, stored.rollouts, WHOLE_GROUP, unknown, stored)

    @property
    def rollouts(self) -> Sequence[Trajectory]:
        """What is replayed of the candidates: the chosen one, or all."""
        return self.candidates if self.chosen == WHOLE_GROUP else [self.candidates[self.chosen]]
