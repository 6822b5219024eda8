"""Rescue (trainer.exp_rescue): a stored success joins a group whose rollouts all failed.

A batch has K rows a group, so the success stands where one of the failures was: the rollout with
the highest session, which is as good as one drawn at random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.replay_log import ReplayedGroup
from exgrpo.on_verl import queue
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
    size = Counter(map(_uid, batch.keys))
    solved = {uid: False for uid, rollouts in size.items() if uid in uids and rollouts > 1}
    rows = [key for key in batch.keys if _uid(key) in solved]
    if not rows:
        return []
    for key, reward in _rewards(batch, rows).items():
        solved[_uid(key)] |= reward > threshold
    return [uid for uid, has_success in solved.items() if not has_success]


def make_room(batch: Batch, groups: Sequence[ReplayedGroup], session: int) -> Batch:
    """The batch without this session's failure in these groups; their rewards are noted."""
    group_of = {f"{group.uid}_{session}_0": group for group in groups}
    gone = sorted(group_of.keys() & set(batch.keys))
    if not gone:
        return batch
    for key, reward in _rewards(batch, gone).items():
        group_of[key].displaced = reward
    queue.clear(gone, batch.partition_id)
    return batch.select_keys([key for key in batch.keys if key not in gone])


def _rewards(batch: Batch, keys: list[str]) -> dict[str, float]:
    scores = queue.read(keys, batch.partition_id, ["rm_scores"])["rm_scores"].unbind()
    return {key: float(scores_T.sum()) for key, scores_T in zip(keys, scores, strict=True)}


def _uid(key: str) -> str:
    return split_key(key)[0]
