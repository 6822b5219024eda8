"""On which buckets the draws of a step fell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


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
        """How many were drawn from each bucket, and from the hard (k <= K/4), the medium and the easy ones (k >= 3K/4).

        Always the same keys; counting begins anew. Where more hard or easy questions than medium ones are drawn, the
        pool has run out of medium ones, or the question rule prefers others (section 2.2: medium ones teach most).
        """
        counts, rollout_n = self._counts, len(self._counts) - 1
        share = np.arange(rollout_n + 1) / rollout_n
        levels = {"hard": share <= 0.25, "medium": (share > 0.25) & (share < 0.75), "easy": share >= 0.75}
        self._counts = np.zeros_like(counts)
        return {
            **{f"drawn_bucket_{bucket}": float(count) for bucket, count in enumerate(counts)},
            **{f"drawn_{level}": float(counts[members].sum()) for level, members in levels.items()},
        }
