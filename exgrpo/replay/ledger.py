"""What the pool does not keep of its trajectories: text, reward, and the entropies in one place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import Trajectory
from exgrpo.replay.records import Record


class Entry(NamedTuple):
    """Beside one trajectory of the pool.

    Attributes:
        text: the rollout; None where the tokens are its code points.
        reward: as it went in.
        entropy: the trajectory's, in nats; NaN if unknown.
    """

    text: str | None
    reward: float
    entropy: float


class Ledger:
    """Entries by question and tokens, in the order in which questions came in.

    The pool decides what is kept. It evicts without a word, so entries outlive their trajectories until `reconcile`;
    their number is bounded all the same, since `note` reconciles once there are twice as many as trajectories.
    """

    def __init__(self) -> None:
        self._entries: dict[str, dict[bytes, Entry]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def note(self, record: Record, pool: ExperiencePool) -> bool:
        """Enter what was just recorded in the pool; returns whether the pool has kept it."""
        key = digest(record.trajectory)
        text = record.rollout if record.has_tokens else None
        entries = self._entries.setdefault(record.prompt, {})
        self._count += key not in entries
        entries[key] = Entry(text, record.reward, record.trajectory.entropy)
        self._keep(record.prompt, pool)
        if self._count > 2 * trajectories_in(pool) + 64:
            self.reconcile(pool)
        return key in self._entries.get(record.prompt, {})

    def reconcile(self, pool: ExperiencePool) -> None:
        """Drop the entries of trajectories that the pool holds no more; O(1) if there are none."""
        if self._count != trajectories_in(pool):
            for prompt in list(self._entries):
                self._keep(prompt, pool)

    def restore(self, prompt: str, key: bytes, entry: Entry) -> None:
        """Enter a saved entry; the order of questions is that of the calls."""
        entries = self._entries.setdefault(prompt, {})
        self._count += key not in entries
        entries[key] = entry

    def items(self) -> Iterator[tuple[str, dict[bytes, Entry]]]:
        """(question, its entries), in the order of entry."""
        return iter(self._entries.items())

    def of(self, prompt: str, trajectory: Trajectory) -> Entry:
        """The entry of one of the question's trajectories. KeyError if there is none."""
        return self._entries[prompt][digest(trajectory)]

    def _keep(self, prompt: str, pool: ExperiencePool) -> None:
        held = {digest(trajectory) for trajectory in candidates_in(pool, prompt)}
        entries = self._entries[prompt]
        for key in [key for key in entries if key not in held]:
            del entries[key]
            self._count -= 1
        if not entries:
            del self._entries[prompt]


def digest(trajectory: Trajectory) -> bytes:
    """16 bytes that stand for the tokens."""
    return hashlib.blake2b(trajectory.key, digest_size=16).digest()


def trajectories_in(pool: ExperiencePool) -> int:
    """How many the pool holds."""
    return int(pool.metrics()["pool_trajectories"])


def candidates_in(pool: ExperiencePool, prompt: str) -> tuple[Trajectory, ...]:
    """The question's trajectories, none if the pool does not know it."""
    try:
        return pool.candidates(prompt)
    except KeyError:
        return ()
