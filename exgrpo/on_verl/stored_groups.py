"""Replay of whole past groups in a step of verl's trainer (trainer.exp_unit=group)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from exgrpo.experience.choice import mean_square
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replay_log import Effect
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import queue
from exgrpo.on_verl import queue_ops as ops
from exgrpo.on_verl.effects import Current, log_ratios, ratios_of
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import replayed_tag, split_key, stored_row


class StoredGroups:
    """The past groups of the step that is under way: drawn before generation, and in the batch after it.

    Attributes:
        drawn: not in the batch yet; the trainer waits for as many finished prompts fewer.
        joined: uid -> a group of the batch.
        rows: key -> trajectory of each of their rows.
    """

    def __init__(self) -> None:
        self.drawn: list[StoredGroup] = []
        self.joined: dict[str, StoredGroup] = {}
        self.rows: dict[str, Trajectory] = {}

    @property
    def prompts(self) -> dict[str, torch.Tensor]:
        """Question of a drawn group -> the tokens of its prompt, int64 [P]."""
        return {group.question: _prompt(group) for group in self.drawn}

    def join(
        self,
        batch: Batch,
        admitted: Sequence[StoredGroup],
        row_of: Callable[[str], Mapping[str, Any]],
    ) -> Batch:
        """The batch with these of the drawn groups, each under a uid of its own; none is waiting any more.

        They are spread evenly among the fresh groups, so that each mini-batch has a similar mix.

        Args:
            batch: in the order of its prompts; at least one row.
            row_of: question -> its row of the data set.
        """
        self.drawn = []
        fresh = list(dict.fromkeys(split_key(key)[0] for key in batch.keys))
        places = [fresh[position * len(fresh) // len(admitted)] for position in range(len(admitted))]
        uids = [f"{place}s{position:05d}" for position, place in enumerate(places)]
        self.joined = dict(zip(uids, admitted, strict=True))
        self.rows = {
            _key(uid, session): rollout
            for uid, group in self.joined.items()
            for session, rollout in enumerate(group.rollouts)
        }
        if not admitted:
            return batch
        (template,) = queue.read(batch.keys[:1], batch.partition_id).unbind(0)
        fields, tags = [], []
        for uid, group in self.joined.items():
            prompt, of_data = _prompt(group), row_of(group.question)
            for session, rollout in enumerate(group.rollouts):
                fields.append(stored_row(template, of_data, uid, rollout, session, prompt))
                tags.append(replayed_tag(batch.tags[0], rollout, len(prompt)))
        return ops.in_order(ops.with_rows(batch, list(self.rows), fields, tags))

    def metrics(self, current: Current, step: int) -> dict[str, float]:
        """Of the batch's past groups, before the first update.

        Args:
            current: by the keys of `rows`.
        """
        ages = [step - group.step for group in self.joined.values()] or [0]
        drifts = [mean_square(ratios) for ratios in self._log_ratios(current).values()]
        return {
            "stored_groups": float(len(self.joined)),
            "stored_group_age": float(np.mean(ages)),
            "stored_group_drift": float(np.mean(drifts or [0.0])),
            "stored_group_tokens": float(sum(map(len, self.rows.values()))),
        }

    def effects(self, current: Current) -> dict[str, Effect]:
        """Question -> what its past group weighs, before the first update; arguments as above."""
        ratios = self._log_ratios(current)
        rewards = {uid: [rollout.reward for rollout in group.rollouts] for uid, group in self.joined.items()}
        return {
            group.question: Effect(*ratios_of(ratios[uid]), float(np.mean(rewards[uid])))
            for uid, group in self.joined.items()
        }

    def _log_ratios(self, current: Current) -> dict[str, npt.NDArray[np.float32]]:
        """uid of a past group -> of all its tokens, [tokens]."""
        of_row = log_ratios(self.rows, {key: values for key, values in current.items() if key in self.rows})
        return {
            uid: np.concatenate([of_row[_key(uid, session)] for session in range(len(group.rollouts))])
            for uid, group in self.joined.items()
        }


def _key(uid: str, session: int) -> str:
    return f"{uid}_{session}_0"


def _prompt(group: StoredGroup) -> torch.Tensor:
    assert group.prompt is not None  # the trainer stores it, and drops groups without one when it resumes
    return torch.from_numpy(group.prompt.astype(np.int64))
