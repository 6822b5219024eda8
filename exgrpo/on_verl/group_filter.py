"""verl's filter of groups whose rollouts all have the same reward (DAPO), together with replay.

verl filters before a replayed trajectory joins its group, and clears what it filters out. So a
group that will get one is kept if its fresh rollouts all failed: with a success among them it has
something to learn. What is filtered out is still observed. ``trainer.v1.sampler.custom_sampler``
names the classes (exgrpo.preflight.modes.use_group_filter).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from exgrpo.experience.trajectory import RolloutGroup
from exgrpo.on_verl import observe
from exgrpo.on_verl.in_flight import InFlight
from exgrpo.on_verl.queue import split_key


class GroupFilter(ReplayBuffer):
    """The synchronous buffer; `follow` tells it what is replayed.

    Args:
        sampler_kwargs: the arguments that verl gives to its own buffers alone.
    """

    def __init__(self, sampler_kwargs: Mapping[str, Any], **others: Any) -> None:
        super().__init__(sampler_kwargs=sampler_kwargs, **others, **sampler_kwargs)
        self._filtered: set[str] = set()  # uids, by the latest classification
        self._observed: list[RolloutGroup] = []

    def follow(self, prompts: InFlight, threshold: float) -> None:
        """Call once, before the first prompt.

        Args:
            prompts: those in flight; read only.
            threshold: a reward above it is a success; so is a shared value of the filter's metric.
        """
        self._prompts, self._threshold = prompts, threshold

    def take(self) -> list[RolloutGroup]:
        """The groups that were filtered out since the last call."""
        taken, self._observed = self._observed, []
        return taken

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter]:
        """verl's groups to filter out, without those that a replayed success will complete."""
        uids, counts = super()._dapo_filtered_keys(partition_id)
        shared = self._dapo_classification_cache[partition_id]
        joined = filter(self._prompts.is_replayed, uids)
        kept = {uid for uid in joined if shared[uid] <= self._threshold}
        self._filtered = uids - kept
        return self._filtered, counts - Counter(shared[uid] for uid in kept)

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        filtered = uids & self._filtered  # not those that are stale, failed or too many
        keys = [key for key in self.partitions[partition_id] if split_key(key)[0] in filtered]
        if keys:
            threshold, is_replayed = self._threshold, self._prompts.is_replayed
            judged = observe.judged_groups(keys, partition_id, threshold, is_replayed)
            self._observed += judged.values()
        super()._clear_groups(partition_id, uids)


class GroupFilterAsync(GroupFilter, ReplayBufferAsync):
    """The same for the asynchronous modes."""
