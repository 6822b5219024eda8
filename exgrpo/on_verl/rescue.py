"""Rescue (trainer.exp_rescue): a stored success joins a group whose rollouts all failed.

A batch has K rows a group, so the success stands where one of the failures was: the rollout with
the highest session, which is as good as one drawn at random.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.on_verl import observe, queue
from exgrpo.on_verl.in_flight import Prompt
from exgrpo.on_verl.queue import Batch, split_key


def questions(
    batch: Batch, arrived: Mapping[str, Prompt], replay: ExperienceReplay
) -> dict[str, str]:
    """uid -> fresh question whose rollouts all failed and that a past success may rescue."""
    keys = replay.config
    if not keys.exp_rescue:
        return {}
    fresh = [uid for uid, each in arrived.items() if each.mixed and not each.is_replayed]
    uids = failed(batch, fresh, keys.exp_success_threshold)
    uid_of = {arrived[uid].question: uid for uid in uids}
    return {uid_of[question]: question for question in replay.rescuable(uid_of)}


def failed(batch: Batch, uids: Collection[str], threshold: float) -> list[str]:
    """Those of the uids whose rollouts in the batch, two or more, have no reward above the
    threshold, in its order.

    A single rollout is left alone: with the success in its place, nothing fresh would be left.
    """
    rows = [key for key in batch.keys if split_key(key)[0] in uids]
    if not rows:
        return []
    judged = observe.judged_groups(rows, batch.partition_id, threshold)
    return [uid for uid, group in judged.items() if group.size > 1 and not group.solved]


def make_room(batch: Batch, groups: Sequence[ReplayedGroup], session: int) -> Batch:
    """The batch without this session's failure in these groups; their rewards are noted."""
    group_of = {f"{group.uid}_{session}_0": group for group in groups}
    gone = sorted(group_of.keys() & set(batch.keys))
    if not gone:
        return batch
    scores = queue.read(gone, batch.partition_id, ["rm_scores"])["rm_scores"].unbind()
    for key, token_rewards in zip(gone, scores, strict=True):
        group_of[key].displaced = float(token_rewards.sum())
    return queue.without(batch, gone)
