"""What was replayed in each step and why, kept with the pool at about 300 bytes a replay.

The log is written anew with each checkpoint, so it is bounded: 1,562 steps of 64 replayed rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.replayed_group import NO_EFFECT, Effect, Odds, ReplayedGroup
from exgrpo.experience.trajectory import Trajectory

MAX_ROWS = 100_000  # of a log; the oldest are dropped first


class LoggedCandidate(NamedTuple):
    """A trajectory that could have been chosen.

    Attributes:
        step: that generated it.
        entropy: recorded then, mean nats a token.
        score: under the current policy; NaN if it was not compared: a single candidate, passed
            over, or chosen at random.
    """

    step: int
    entropy: float
    score: float


@dataclass(frozen=True)
class LoggedReplay:
    """What is kept of a ReplayedGroup; `chosen` is -1 if it is a whole past group.

    Attributes:
        step: that replayed it.
        question, grader: the question's id; who judged the trajectory (None: unknown).
        candidates: of the question, in the order of recording; `chosen` is a position in it.
        tokens, reward: the trajectory's length and reward; of a group the sum and the mean.
        digest: of its tokens, 48 bits: the same at the next replay of the same.
    """

    step: int
    question: str
    grader: str | None
    odds: Odds
    candidates: tuple[LoggedCandidate, ...]
    chosen: int
    tokens: int
    reward: float
    digest: int
    effect: Effect = NO_EFFECT

    @classmethod
    def of(cls, group: ReplayedGroup, step: int) -> LoggedReplay:
        """What is kept of a group, by the step that replayed it."""
        rollouts, scored = group.rollouts, zip(group.candidates, group.scores, strict=True)
        candidates = tuple(LoggedCandidate(one.step, one.entropy, score) for one, score in scored)
        return cls(
            step,
            group.question,
            grader=rollouts[0].grader,
            odds=group.odds,
            candidates=candidates,
            chosen=group.chosen,
            tokens=sum(map(len, rollouts)),
            reward=float(np.mean([each.reward for each in rollouts])),
            digest=digest_of(*rollouts),
            effect=group.effect,
        )

    @property
    def generated(self) -> int:
        """The step that generated the trajectory."""
        return self.candidates[self.chosen].step


EFFECTS = tuple(each.name for each in fields(Effect))
# the columns of numbers, in their order in an array
NUMBERS = ("step", *Odds._fields, "chosen", "tokens", "reward", "digest", *EFFECTS)


@dataclass(frozen=True)
class Block:
    """Rows as arrays: the form in which they are kept and saved.

    Attributes:
        questions, graders: [R].
        numbers: float64 [R, len(NUMBERS)].
        counts: int32 [R], candidates of each row; `candidates` has their fields, float64 [sum, 3].
    """

    questions: Sequence[str]
    graders: Sequence[str | None]
    numbers: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int32]
    candidates: npt.NDArray[np.float64]

    def newest(self, count: int) -> Block:
        """The last `count` rows; the block must have that many."""
        first = len(self.questions) - count
        names, numbers = (self.questions[first:], self.graders[first:]), self.numbers[first:]
        candidates = self.candidates[int(self.counts[:first].sum()) :]
        return Block(*names, numbers, self.counts[first:], candidates)

    def rows(self) -> Iterator[LoggedReplay]:
        ends = np.cumsum(self.counts)
        for i, (question, grader) in enumerate(zip(self.questions, self.graders, strict=True)):
            at = dict(zip(NUMBERS, self.numbers[i].tolist(), strict=True))
            odds = Odds(int(at["bucket"]), at["probability"], int(at["size"]), int(at["drawn"]))
            compared = self.candidates[ends[i] - self.counts[i] : ends[i]].tolist()
            candidates = tuple(LoggedCandidate(int(step), *known) for step, *known in compared)
            yield LoggedReplay(
                step=int(at["step"]),
                question=question,
                grader=grader,
                odds=odds,
                candidates=candidates,
                chosen=int(at["chosen"]),
                tokens=int(at["tokens"]),
                reward=at["reward"],
                digest=int(at["digest"]),
                effect=Effect(*(at[name] for name in EFFECTS)),
            )


class ReplayLog:
    """The newest MAX_ROWS replayed trajectories and groups, in the order of their steps."""

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self._blocks = list(blocks)

    def add(self, rows: Sequence[LoggedReplay]) -> None:
        """Rows of one step."""
        if rows:
            self._blocks.append(_packed(rows))
            if len(self) > MAX_ROWS:
                self._blocks = [self.joined().newest(MAX_ROWS)]

    def __len__(self) -> int:
        return sum(len(block.questions) for block in self._blocks)

    def __iter__(self) -> Iterator[LoggedReplay]:
        for block in self._blocks:
            yield from block.rows()

    def joined(self) -> Block:
        if len(self._blocks) != 1:
            parts = [_packed(()), *self._blocks]
            questions = [question for block in parts for question in block.questions]
            graders = [grader for block in parts for grader in block.graders]
            names = ("numbers", "counts", "candidates")
            arrays = (np.concatenate([getattr(block, name) for block in parts]) for name in names)
            self._blocks = [Block(questions, graders, *arrays)]
        return self._blocks[0]


def digest_of(*rollouts: Trajectory) -> int:
    """A checksum of the rollouts' tokens and their number, 48 bits: as many as a float64 holds."""
    tokens = sum(map(len, rollouts))
    return zlib.crc32(b"".join(each.key for each in rollouts)) << 16 | tokens & 0xFFFF


def _packed(rows: Sequence[LoggedReplay]) -> Block:
    numbers: list[tuple[Any, ...]] = [
        (row.step, *row.odds, row.chosen, row.tokens, row.reward, row.digest, *astuple(row.effect))
        for row in rows
    ]
    candidates = [candidate for row in rows for candidate in row.candidates]
    return Block(
        [row.question for row in rows],
        [row.grader for row in rows],
        np.array(numbers, np.float64).reshape(-1, len(NUMBERS)),
        np.array([len(row.candidates) for row in rows], np.int32),
        np.array(candidates, np.float64).reshape(-1, len(LoggedCandidate._fields)),
    )
