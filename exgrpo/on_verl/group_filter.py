"""verl's filter of groups whose rollouts all have the same reward (DAPO), together with replay.

verl filters before a replayed trajectory joins its group, and clears what it filters out. So a
group that will get one
is kept if its fresh rollouts all failed: with a success among them it has something to learn. What
    is filtered out is
still a result: of all successes the question is retired, of none it is filed.
"""

from __future__ import annotations

from collections import Counter

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from exgrpo.experience.trajectory import RolloutGroup
from exgrpo.on_verl import queue
from exgrpo.on_verl.in_flight import InFlight
from exgrpo.on_verl.queue import split_key


class GroupFilter:
    """Stands between verl's buffer and its filter, from construction on.

    Args:
        buffer: two of its methods are replaced, for this instance.
        prompts: those in flight; read only.
        threshold: a reward above it is a success, and a shared value of the filter's metric too.
    """

    def __init__(self, buffer: ReplayBuffer, prompts: InFlight, threshold: float) -> None:
        self._buffer, self._prompts, self._threshold = buffer, prompts, threshold
        self._filtered_keys, self._clear_groups = buffer._dapo_filtered_keys, buffer._clear_groups
        self._filtered: set[str] = set()  # uids, by the latest classification
        self._observed: list[RolloutGroup] = []
        buffer._dapo_filtered_keys = self._without_replayed
        buffer._clear_groups = self._observe_and_clear

    def take(self) -> list[RolloutGroup]:
        """The groups that were filtered out since the last call."""
        taken, self._observed = self._observed, []
        return taken

    def _without_replayed(self, partition: str) -> tuple[set[str], Counter]:
        """verl's groups to filter out, without those that a replayed success will complete."""
        uids, counts = self._filtered_keys(partition)
        shared = self._buffer._dapo_classification_cache[partition]
        kept = {
            uid for uid in uids if self._prompts.is_replayed(uid) and shared[uid] <= self._threshold
        }
        self._filtered = uids - kept
        return self._filtered, counts - Counter(shared[uid] for uid in kept)

    def _observe_and_clear(self, partition: str, uids: set[str]) -> None:
        filtered = uids & self._filtered  # not those that are stale, failed or too many
        keys = [key for key in self._buffer.partitions[partition] if split_key(key)[0] in filtered]
        if keys:
            self._observed += self._groups(keys, partition)
        self._clear_groups(partition, uids)

    def _groups(self, keys: list[str], partition: str) -> list[RolloutGroup]:
        """Successes have no log-probs of the actor: they count, and are not stored."""
        rows = queue.read(keys, partition, ["question_id", "rm_scores"])
        rewards: dict[str, list[float]] = {}
        question_of: dict[str, str] = {}
        for key, question, scores in zip(
            keys, list(rows["question_id"]), rows["rm_scores"].unbind(), strict=True
        ):
            uid = split_key(key)[0]
            question_of[uid] = question
            rewards.setdefault(uid, []).append(float(scores.sum()))
        groups = []
        for uid, each in rewards.items():
            solved, replayed = (
                sum(reward > self._threshold for reward in each),
                int(self._prompts.is_replayed(uid)),
            )
            groups.append(
                RolloutGroup(question_of[uid], len(each), (), replayed, solved, rewards=tuple(each))
            )
        return groups
