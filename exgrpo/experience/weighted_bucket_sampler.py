"""Which questions are replayed (section 4.1): the buckets' odds, and a draw without replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from exgrpo.experience.rules import BUCKET_WEIGHTS
from exgrpo.refusal import refuse


def bucket_weights(
    method: str | Literal[False],
    buckets: Sequence[int],
    rollout_n: int,
    mean: float = 0.5,
    sigma: float = 1.0,
) -> npt.NDArray[np.float64]:
    """Probabilities [len(buckets)] of success counts, summing to 1, whatever the buckets' sizes.

    A bucket of log-weight -inf has probability 0; if the rule forbids all of them so, all are 0.

    The paper writes N(k/K; 0.5, 1) (section 4.1); its code and its Table 3 use counts, as here.

    Args:
        method: a name in exgrpo.experience.rules.BUCKET_WEIGHTS (normal, linear, sqrt,
            linear_clip), or a reference.
        buckets: distinct success counts, 1..K, of the non-empty buckets; the density is
            renormalised over them.
        rollout_n: K.
        mean: of `normal`, as a fraction of K.
        sigma: of `normal`, in counts.

    Raises:
        ValueError: the method is unknown (False has no bucket probabilities), a bucket is out of
            range, or the rule does not return a log-weight for each bucket, finite or -inf.
    """
    k = np.asarray(buckets, dtype=np.float64)
    if k.size == 0 or k.min() < 1 or k.max() > rollout_n:
        refuse("buckets", list(buckets), f"one or more counts between 1 and {rollout_n}")
    rule = BUCKET_WEIGHTS.load("method", str(method))
    log_weights = np.asarray(rule(k, rollout_n, mean, sigma), dtype=np.float64)
    highest = log_weights.max() if log_weights.shape == k.shape else np.nan
    if np.isnan(highest) or highest == np.inf:
        # as lists: an array's own text may have line breaks
        given = f"gives {log_weights.tolist()} for buckets {list(buckets)}"
        raise ValueError(f"{method}: {given}: must be a log-weight for each")
    if highest == -np.inf:
        return np.zeros(k.size)
    # Scaling by the largest keeps buckets far from the mean from underflowing to 0 / 0 when no
    # other is left.
    weights = np.exp(log_weights - highest)
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities


class WeightedBucketSampler:
    """Draws distinct questions: first how many from each bucket, then uniformly inside each.

    Args:
        method: as in bucket_weights; False draws uniformly, whatever the buckets.
        rollout_n, mean, sigma: as in bucket_weights.

    Raises:
        ValueError: as bucket_weights for the counts 1..K, or the rule forbids all of them.
    """

    def __init__(
        self, method: str | Literal[False], rollout_n: int, mean: float = 0.5, sigma: float = 1.0
    ) -> None:
        counts = range(1, rollout_n + 1)
        # Refuses an unknown method, or a rule that is wrong for some count, before any draw.
        if method is not False and not bucket_weights(method, counts, rollout_n, mean, sigma).any():
            given = f"method={method}: gives -inf for all counts 1 to {rollout_n}"
            raise ValueError(f"{given}: must allow one or more")
        self._method = method
        self._rule = rollout_n, mean, sigma

    def probabilities(self, room: Mapping[int, int]) -> dict[int, float]:
        """Bucket with room -> probability that the first draw of a step falls on it."""
        open_buckets = [bucket for bucket, free in room.items() if free > 0]
        if self._method is False or not open_buckets:
            total = sum(room[bucket] for bucket in open_buckets)
            return {bucket: room[bucket] / total for bucket in open_buckets}
        weights = bucket_weights(self._method, open_buckets, *self._rule)
        return dict(zip(open_buckets, weights.tolist(), strict=True))

    def allot(
        self, room: Mapping[int, int], count: int, rng: np.random.Generator
    ) -> dict[int, int]:
        """How many of `count` draws fall on each bucket, at most its room; all if that is little.

        None falls on a bucket that the rule forbids (-inf): without others there are fewer draws.

        A multinomial draws the counts; what exceeds a bucket is redistributed over the buckets with
        room, in proportion to their probabilities. Repeating this has the same distribution as
        redistributing one by one: both read one stream of independent draws and skip those that
        fall on a full bucket. Every round but the last fills a bucket: at most K + 1 rounds.
        """
        taken = {bucket: 0 for bucket, free in room.items() if free > 0}
        missing = min(count, sum(room[bucket] for bucket in taken))
        if self._method is False and missing:
            drawn = rng.multivariate_hypergeometric([room[bucket] for bucket in taken], missing)
            return dict(zip(taken, drawn.tolist(), strict=True))
        # Each round throws what is missing on the buckets with room, and puts back what exceeds it.
        while missing:
            unfilled = [bucket for bucket in taken if taken[bucket] < room[bucket]]
            weights = bucket_weights(self._method, unfilled, *self._rule)
            if not weights.any():  # the rule forbids all that are left
                break
            more = rng.multinomial(missing, weights).tolist()
            for bucket, extra in zip(unfilled, more, strict=True):
                accepted = min(extra, room[bucket] - taken[bucket])
                taken[bucket] += accepted
                missing -= accepted
        return taken

    def sample(
        self,
        buckets: Mapping[int, Sequence[str]],
        count: int,
        rng: np.random.Generator,
        excluded: Mapping[int, Sequence[int]] | None = None,
    ) -> list[str]:
        """Up to `count` distinct questions in random order.

        The cost depends on `count` and the exclusions alone; buckets are never scanned.

        Args:
            buckets: success count -> questions; their order matters only for reproducing a draw.
            excluded: success count -> distinct positions in that bucket that must not be drawn.
        """
        barred = {bucket: sorted(positions) for bucket, positions in (excluded or {}).items()}
        room = {each: len(buckets[each]) - len(barred.get(each, ())) for each in buckets}
        drawn: list[str] = []
        for bucket, number in self.allot(room, count, rng).items():
            if number:
                free = rng.choice(room[bucket], number, replace=False, shuffle=False)
                positions = _skip(free, barred.get(bucket, []))
                drawn.extend(buckets[bucket][position] for position in positions)
        return [drawn[index] for index in rng.permutation(len(drawn))]


def _skip(free: npt.NDArray[np.int64], barred: list[int]) -> list[int]:
    """Convert indices among the free positions into positions; `barred` is sorted."""
    # Below barred[j] there are barred[j] - j free positions: a free index of at least that many
    # lies beyond it.
    free_below = np.asarray(barred, dtype=np.int64) - np.arange(len(barred))
    positions: list[int] = (free + np.searchsorted(free_below, free, side="right")).tolist()
    return positions
