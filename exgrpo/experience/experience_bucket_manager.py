"""Questions in buckets by success count, with O(1) moves."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.refusal import refuse_as


class BucketState(NamedTuple):
    """Everything an ExperienceBucketManager holds, as parallel lists in the order of entry."""

    questions: list[str]
    buckets: list[int]
    positions: list[int]
    retired: list[str]


class ExperienceBucketManager:
    """Puts each question into the bucket of its latest success count k out of K (section 4.1).

    A bucket is a list. A question that leaves is replaced by the bucket's last one, so every change
    is O(1) and the order inside a bucket follows from the calls. Retired ones are in no bucket.

    Args:
        rollout_n: K; buckets are 0..K.
    """

    def __init__(self, rollout_n: int) -> None:
        self._members: list[list[str]] = [[] for _ in range(rollout_n + 1)]
        # A dict keeps the order of entry: updating a value does not move its key, removing and
        # re-adding it does.
        self._place: dict[str, tuple[int, int]] = {}
        self._retired: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, question: str) -> bool:
        return question in self._place

    def __iter__(self) -> Iterator[str]:
        """Questions in their order of entry."""
        return iter(self._place)

    def place(self, question: str) -> tuple[int, int]:
        """(bucket, position in that bucket) of a question. KeyError if it is in no bucket."""
        return self._place[question]

    def members(self, bucket: int) -> Sequence[str]:
        """The questions of a bucket in internal order: no copy; read it before the next change."""
        return self._members[bucket]

    def positions(self, questions: Collection[str]) -> dict[int, list[int]]:
        """Bucket -> the distinct positions in it of those questions that are in a bucket."""
        positions: dict[int, list[int]] = {}
        for question in set(questions):
            if question in self._place:
                bucket, position = self._place[question]
                positions.setdefault(bucket, []).append(position)
        return positions

    def sizes(self) -> list[int]:
        """Questions in each bucket, [K + 1]."""
        return [len(members) for members in self._members]

    def half(self, buckets: range, *, first: bool, exclude: Container[str]) -> dict[int, list[str]]:
        """Bucket -> its questions in one half of those in `buckets`, by entry; O(questions).

        The middle one of an odd number is in the last half, as released; then come exclusions.
        """
        eligible = [question for question, (bucket, _) in self._place.items() if bucket in buckets]
        middle = len(eligible) // 2
        chosen = eligible[:middle] if first else eligible[middle:]
        members: dict[int, list[str]] = {bucket: [] for bucket in buckets}
        for question in chosen:
            if question not in exclude:
                members[self._place[question][0]].append(question)
        return members

    def is_retired(self, question: str) -> bool:
        return question in self._retired

    @property
    def retired(self) -> list[str]:
        """The retired questions in order of retirement; new ones come at its end."""
        return list(self._retired)

    @property
    def retired_count(self) -> int:
        return len(self._retired)

    def put(self, question: str, bucket: int) -> None:
        """Add a question, or move it to another bucket.

        Raises:
            ValueError: the bucket is not in 0..K, or the question is retired.
        """
        if not 0 <= bucket < len(self._members):
            highest = len(self._members) - 1
            refuse_as(f"bucket={bucket} of question {question!r}", f"be between 0 and {highest}")
        if question in self._retired:
            refuse_as(f"question {question!r} is retired", f"not enter bucket {bucket}")
        if question in self._place:
            if self._place[question][0] == bucket:
                return
            self._leave(question)
        self._place[question] = (bucket, len(self._members[bucket]))
        self._members[bucket].append(question)

    def remove(self, question: str) -> None:
        """Remove a question; it may enter again, as the last. KeyError if it is in no bucket."""
        self._leave(question)
        del self._place[question]

    def retire(self, question: str) -> None:
        """Remove a question, whether or not it is in a bucket, for good."""
        if question in self._place:
            self.remove(question)
        self._retired[question] = None

    def state(self) -> BucketState:
        buckets = [bucket for bucket, _ in self._place.values()]
        positions = [position for _, position in self._place.values()]
        return BucketState(list(self._place), buckets, positions, list(self._retired))

    @classmethod
    def from_state(cls, rollout_n: int, state: BucketState) -> ExperienceBucketManager:
        """Restore the manager that `state` came from, including the order inside each bucket.

        Raises:
            ValueError: the state is inconsistent.
        """
        manager = cls(rollout_n)
        places = zip(state.buckets, state.positions, strict=True)
        manager._place = dict(zip(state.questions, places, strict=True))
        manager._retired = dict.fromkeys(state.retired)
        for question, (bucket, _) in sorted(manager._place.items(), key=lambda item: item[1]):
            if not 0 <= bucket <= rollout_n:
                allowed = f"must be between 0 and {rollout_n}"
                raise ValueError(f"bucket={bucket} of question {question!r}: {allowed}")
            manager._members[bucket].append(question)
        if len(manager._place) != len(state.questions):
            given = f"{len(state.questions)} questions, {len(manager._place)} of them distinct"
            raise ValueError(f"{given}: must be all")
        manager.check_invariants()
        return manager

    def check_invariants(self) -> None:
        """ValueError unless the position map, the buckets and the retired questions agree."""
        if sum(self.sizes()) != len(self._place):
            refuse_as(f"buckets hold {sum(self.sizes())} questions", f"be {len(self._place)}")
        for bucket, members in enumerate(self._members):
            for position, question in enumerate(members):
                place = self._place.get(question)
                if place != (bucket, position):
                    allowed = f"must be {(bucket, position)}"
                    raise ValueError(f"place of question {question!r} is {place}: {allowed}")
        both = self._place.keys() & self._retired.keys()
        if both:
            refuse_as(f"retired question {min(both)!r} is in a bucket", "be in none")

    def _leave(self, question: str) -> None:
        bucket, position = self._place[question]
        last = self._members[bucket].pop()
        if last != question:
            self._members[bucket][position] = last
            self._place[last] = (bucket, position)


class DrawCount:
    """Counts the questions drawn since the last report, by the bucket that each was in.

    Args:
        rollout_n: K; buckets are 0..K.
    """

    def __init__(self, rollout_n: int) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(rollout_n + 1, np.int64)

    def add(self, buckets: Iterable[int]) -> None:
        """Count a question of each of these buckets."""
        np.add.at(self._counts, np.fromiter(buckets, np.int64), 1)

    def metrics(self) -> dict[str, float]:
        """How many of each bucket, hard (k <= K/4), medium and easy (k >= 3K/4) ones were drawn.

        Always the same keys; counting begins anew. Where more hard or easy questions than medium
        ones are drawn, the pool has run out of medium ones, or the question rule prefers others
        (section 3.2: medium ones teach most).
        """
        counts, rollout_n = self._counts, len(self._counts) - 1
        share = np.arange(rollout_n + 1) / rollout_n
        levels = {
            "hard": share <= 0.25,
            "medium": (share > 0.25) & (share < 0.75),
            "easy": share >= 0.75,
        }
        self._counts = np.zeros_like(counts)
        return {
            **{f"drawn_bucket_{bucket}": float(count) for bucket, count in enumerate(counts)},
            **{f"drawn_{level}": float(counts[members].sum()) for level, members in levels.items()},
        }
