"""Finished groups outlive a kill (``trainer.rollout_ledger_bytes``), in verl's synchronous mode.

Each time the trainer looks at the queue, the groups that have finished meanwhile are appended to a
ledger beside the checkpoints, with all columns and tags of their rows. After a kill the same
prompts come in the same places: those that are answered in the ledger get their rows back in the
queue, and nothing is generated for them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load, save
from tensordict import TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from exgrpo.experience.config import ExperienceConfig
from exgrpo.on_verl import checkpoints, queue, seals
from exgrpo.on_verl.queue import split_key
from exgrpo.saved import durable
from exgrpo.saved.ledger import Finished, Ledger

FILE = "finished_groups.ledger"  # in trainer.default_local_dir
PARTITION = "train"  # verl's, of the queue
# sections of the configuration that decide, with trainer's keys of ours, what a step generates
SETTINGS = ("actor_rollout_ref", "algorithm", "critic", "data", "reward")
logger = logging.getLogger(__name__)


class KeepsFinishedGroups(PPOTrainer):
    """verl's synchronous trainer, or one that extends it, with a ledger if the key is set."""

    finished_groups: FinishedGroups | None = None

    def _build_replay_buffer(self) -> ReplayBuffer:
        """The buffer, whose every look at the queue is followed by ours."""
        buffer = super()._build_replay_buffer()
        keys = self.config.trainer
        limit = int(keys.get("rollout_ledger_bytes") or 0)
        if not limit:
            return buffer
        path = Path(keys.default_local_dir) / FILE
        self.finished_groups = groups = FinishedGroups(Ledger(path, limit))
        look = buffer._sync_metadata_from_transfer_queue

        def look_and_keep() -> None:
            look()
            groups.keep(buffer.finished_keys[PARTITION], buffer.partitions[PARTITION])

        # not a class of ours: verl takes one, which may be the group filter's or the user's
        buffer._sync_metadata_from_transfer_queue = look_and_keep
        return buffer

    def _load_checkpoint(self) -> None:
        """verl's checkpoint, and the groups that were finished after it."""
        super()._load_checkpoint()
        if self.finished_groups is None:
            return
        keys = self.config.trainer
        folder = checkpoints.step_folder(Path(keys.default_local_dir), self.global_steps)
        if keys.resume_mode == "resume_path":
            folder = Path(keys.resume_from_path)
        self.finished_groups.open(self._header(folder), keys.resume_mode == "disable")

    def _save_checkpoint(self) -> None:
        """As it was; the checkpoint holds what came of the groups so far."""
        super()._save_checkpoint()
        if self.finished_groups is not None:
            root = Path(self.config.trainer.default_local_dir)
            folder = checkpoints.step_folder(root, self.global_steps)
            self.finished_groups.ledger.begin(self._header(folder))

    def _header(self, folder: Path) -> dict[str, str]:
        """The checkpoint, by its seal, and the settings that the groups after it belong to."""
        seal = folder / seals.SEAL
        sealed = durable.sha256(seal) if seal.is_file() else "without a seal"
        checkpoint = f"step {self.global_steps}, {sealed if self.global_steps else 'new'}"
        return {"checkpoint": checkpoint, "settings": settings(self.config)}

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        """verl's, of the prompts whose groups are not in the ledger."""
        if self.finished_groups is None:
            return super()._submit_batch_to_rollout(batch)
        left = self.finished_groups.put_back(batch, self.global_steps)
        if left is not None:
            super()._submit_batch_to_rollout(left)
        return len(batch)


def settings(config: DictConfig) -> str:
    """A digest of what decides, besides weights and data, which groups a step generates."""
    sections = {name: config.get(name) for name in SETTINGS}
    keys = [*ExperienceConfig.meanings(), "rollout_seeded"]
    sections["trainer"] = {key: config.trainer.get(key) for key in keys}
    plain = OmegaConf.to_container(OmegaConf.create(sections), resolve=True)
    return _digest(plain)


class FinishedGroups:
    """Rows of the queue in a ledger, and back."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._step = 0
        self._asked = 0  # prompts of the step so far
        # uid -> position in the step and digest of a prompt that is being answered
        self._out: dict[str, tuple[int, str]] = {}

    def open(self, header: Mapping[str, str], anew: bool) -> None:
        """Before the first step; `anew`: what an interrupted run has left is deleted."""
        if anew:
            self.ledger.begin(header)
        elif there := self.ledger.open(header):
            print(f"exgrpo: {there} groups were finished before the run ended", flush=True)

    def put_back(self, batch: TensorDict, step: int) -> TensorDict | None:
        """Put the groups of these prompts that are in the ledger into the queue as finished.

        Returns:
            The prompts that must be generated; None without any.
        """
        if step != self._step:
            self._step, self._asked = step, 0
            self._out.clear()
        left = []
        for row, (uid, prompt) in enumerate(zip(batch["uid"], prompts(batch), strict=True)):
            position, self._asked = self._asked, self._asked + 1
            data = self.ledger.take(step, position, prompt)
            if data is None or not _put_back(data, step):
                left.append(row)
                self._out[uid] = position, prompt
        if found := len(batch) - len(left):
            print(f"exgrpo: step {step}: {found} of {len(batch)} groups are there", flush=True)
        if not left:
            return None
        if dropped := self.ledger.generated(step):
            logger.warning("step %d is generated, %d groups after it are dropped", step, dropped)
        return tu.index_select_tensor_dict(batch, left) if found else batch

    def keep(self, finished: Collection[str], tags: Mapping[str, dict[str, Any]]) -> None:
        """Append the groups that have finished since the last call.

        Args:
            finished: uids of the groups in the queue whose rollouts have all ended well.
            tags: key -> tag of the rows in the queue.
        """
        new = {uid: self._out.pop(uid) for uid in sorted(self._out.keys() & finished)}
        if not new:
            return
        keys: dict[str, list[str]] = {uid: [] for uid in new}
        for key in tags:
            if (uid := split_key(key)[0]) in new:
                keys[uid].append(key)
        rows = queue.read([key for uid in new for key in keys[uid]], PARTITION)
        names = list(rows.keys())
        columns = {name: _values(rows[name]) for name in names}
        groups, first = [], 0
        for uid, (position, prompt) in new.items():
            own = slice(first, first + len(keys[uid]))
            first = own.stop
            group = {name: values[own] for name, values in columns.items()}
            data = packed(uid, [(key, tags[key]) for key in keys[uid]], group)
            groups.append(Finished(position, prompt, data))
        self.ledger.keep(self._step, groups)


def prompts(batch: TensorDict) -> list[str]:
    """A digest of each prompt: all columns but its uid, which plain verl draws anew each time."""
    columns = {}
    for name in sorted(set(batch.keys()) - {"uid"}):
        values = batch[name]
        alone = isinstance(values, list) or torch.is_tensor(values)
        columns[name] = _values(values) if alone else [values] * len(batch)
    return [_digest({name: columns[name][row] for name in columns}) for row in range(len(batch))]


def packed(
    uid: str, tags: Sequence[tuple[str, dict[str, Any]]], group: Mapping[str, list[Any]]
) -> bytes:
    """The rows of a group: their tensors, one after the other, and the rest as JSON.

    Args:
        tags: key and tag of each row.
        group: column -> its value in each row.
    """
    tensors, shapes, others = {}, {}, {}
    for name, values in group.items():
        if not all(map(torch.is_tensor, values)):
            others[name] = values
            continue
        flat = torch.cat([value.reshape(-1) for value in values])
        shapes[name] = [[*value.shape] for value in values], flat.dtype is torch.int64
        # ids, masks and positions: half of the bytes
        narrow = flat.dtype is torch.int64 and bool((flat == flat.int()).all())
        tensors[f"column {name}"] = flat.int() if narrow else flat
    text = _json({"uid": uid, "tags": tags, "shapes": shapes, "others": others})
    tensors["group"] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return save(tensors)


def unpacked(data: bytes) -> tuple[str, list[Any], list[dict[str, Any]]]:
    """uid, keys with their tags, and rows of what `packed` has made."""
    tensors = load(data)
    group = json.loads(tensors["group"].numpy().tobytes())
    columns = dict(group["others"])
    for name, (shapes, wide) in group["shapes"].items():
        flat = tensors[f"column {name}"]
        flat = flat.long() if wide else flat
        parts = flat.split([int(np.prod(shape)) for shape in shapes])
        columns[name] = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    rows = [
        {name: values[row] for name, values in columns.items()} for row in range(len(group["tags"]))
    ]
    return group["uid"], group["tags"], rows


def _put_back(data: bytes, step: int) -> bool:
    """Whether the group could be put into the queue."""
    try:
        uid, tags, rows = unpacked(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("step %d: a finished group cannot be read: %s", step, error)
        return False
    fields = tu.list_of_dict_to_tensordict(rows)
    queue.write([key for key, _ in tags], PARTITION, fields, [tag for _, tag in tags])
    done = {"is_prompt": True, "status": "finished", "global_steps": step}
    queue.write([uid], PARTITION, None, [done])
    return True


def _values(column: Any) -> list[Any]:
    return list(column.unbind()) if torch.is_tensor(column) else list(column)


def _json(value: Any) -> str:
    """numpy's and torch's values as Python's."""
    return json.dumps(value, sort_keys=True, default=lambda each: each.tolist())


def _digest(value: Any) -> str:
    return hashlib.sha256(_json(value).encode()).hexdigest()
