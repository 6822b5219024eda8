"""Observe: a step's fresh rows, after the log-prob pass, become the groups for the pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tensordict import TensorDict

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch, split_key
from exgrpo.provenance import Provenance

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FreshRow:
    """A rollout of this step after the log-prob pass.

    Attributes:
        uid, question: ids of its prompt and its question.
        reward: the sum of its token rewards.
        tokens, log_probs, entropies, loss_mask: [T], as sampled; natural log; nats; true at the
            policy's own tokens.
        rule: that accepted its answer; empty if the reward function does not say.
        prompt: int32 [P], tokens; None if it was not read.
    """

    uid: str
    question: str
    reward: float
    tokens: npt.NDArray[Any]
    log_probs: npt.NDArray[Any]
    entropies: npt.NDArray[Any]
    loss_mask: npt.NDArray[Any]
    rule: str = ""
    prompt: npt.NDArray[np.int32] | None = None

    def trajectory(
        self, step: int, vocab_size: int, judged_by: Provenance | None, bounded: bool
    ) -> Trajectory:
        """The rollout as a Trajectory; ValueError if it is not a valid one, or if its reward is
        ``bounded`` and not in 0..1.
        """
        if bounded and not 0 <= self.reward <= 1:
            raise ValueError(f"reward={self.reward}: must be a number between 0 and 1")
        entropy = float(np.mean(self.entropies[self.loss_mask.astype(bool)]))
        grader = None if judged_by is None else str(judged_by.by(self.rule))
        judged = {"loss_mask": self.loss_mask, "reward": self.reward, "grader": grader}
        trajectory = Trajectory(self.tokens, self.log_probs, step, entropy, **judged)
        trajectory.check_vocabulary(vocab_size)
        return trajectory


def fresh_positions(batch: Batch) -> list[int]:
    """Positions of the rows that this step generated: neither replayed nor padding."""
    others = ("is_replayed", "is_padding")
    return [i for i, tag in enumerate(batch.tags) if not any(map(tag.get, others))]


def scored_rows(
    batch: Batch, rollout_log_probs: bool, rules: bool = False, prompts: bool = False
) -> TensorDict:
    """The fields of a step's fresh rows that replay needs after the log-prob pass, in one read.

    Args:
        rules: also what the reward function says of each row besides its score.
        prompts: also the tokens of each row's prompt.
    """
    fields = ["question_id", "responses", "response_mask", "rm_scores", "old_log_probs", "entropy"]
    more = {"rollout_log_probs": rollout_log_probs, "extra_fields": rules, "prompts": prompts}
    fields += [name for name, is_read in more.items() if is_read]
    keys = [batch.keys[i] for i in fresh_positions(batch)]
    return queue.read(keys, batch.partition_id, fields)


def fresh_rows(batch: Batch, rows: TensorDict) -> list[FreshRow]:
    """What `scored_rows` has read, in the form from which the pool's groups are made."""
    fields = ("rm_scores", "responses", "old_log_probs", "entropy", "response_mask")
    columns = [list(rows["question_id"]), *(rows[name].unbind() for name in fields)]
    keys = [batch.keys[i] for i in fresh_positions(batch)]
    extras = list(rows["extra_fields"]) if "extra_fields" in rows else [None] * len(keys)
    prompts = rows["prompts"].unbind() if "prompts" in rows else [None] * len(keys)
    fresh = []
    for key, extra, prompt, *row in zip(keys, extras, prompts, *columns, strict=True):
        question, scores, tokens, log_probs, entropies, mask = row
        one = FreshRow(
            uid=split_key(key)[0],
            question=question,
            reward=float(scores.sum()),
            tokens=tokens.numpy(),
            log_probs=log_probs.float().numpy(),
            entropies=entropies.float().numpy(),
            loss_mask=mask.numpy(),
            rule=_rule(extra),
            prompt=None if prompt is None else prompt.numpy().astype(np.int32),
        )
        fresh.append(one)
    return fresh


def _rule(extra: Any) -> str:
    """The rule that the reward function names in its result; empty if it names none."""
    info = extra.get("reward_extra_info") if isinstance(extra, Mapping) else None
    return str((info or {}).get("rule") or "")


def rollout_groups(
    rows: Sequence[FreshRow],
    joined: Iterable[ReplayedGroup],
    step: int,
    vocab_size: int,
    config: ExperienceConfig,
    judged_by: Provenance | None = None,
) -> list[RolloutGroup]:
    """One group per question, from the step's fresh rows in their order.

    A success that is not a valid trajectory is refused, with a warning: it counts for difficulty
    but is not stored. A failure in whose place a replayed row is counts as a fresh row.

    Args:
        joined: of the groups that have a replayed row besides the fresh ones.
        step: the global step that generated the rows.
        config: what a success is; for replay of whole groups failures are kept too.
        judged_by: the author of the rewards, without a rule.
    """
    threshold, whole = config.exp_success_threshold, config.keeps_groups
    continues = config.exp_unit == "prefix"

    def make(row: FreshRow) -> Trajectory:
        return row.trajectory(step, vocab_size, judged_by, config.bounded_rewards)

    past_of = {group.uid: group for group in joined}
    rows_of: dict[str, list[FreshRow]] = {}
    for row in rows:
        rows_of.setdefault(row.uid, []).append(row)
    groups = []
    for uid, siblings in rows_of.items():
        past = past_of.get(uid)
        # of a rescued group: the failure whose row the success took was sampled, and counts
        displaced = [past.displaced] if past is not None and past.displaced is not None else []
        solved = [row for row in siblings if row.reward > threshold]
        # failures are kept for whole groups alone; a NaN reward is one
        failed = [row for row in siblings if whole and not row.reward > threshold]
        successes = _trajectories(solved, "success", step, make)
        failures = _trajectories(failed, "failure", step, make)
        rewards = [row.reward for row in siblings] + displaced
        group = RolloutGroup(
            siblings[0].question,
            size=len(rewards),
            successes=successes,
            replayed=int(past is not None and not displaced),
            refused=len(solved) - len(successes),
            failures=failures,
            rewards=tuple(rewards),
            replayed_reward=1.0 if past is None else past.rollouts[0].reward,
            prompt=siblings[0].prompt,
            # the agent loop masks the prefix, and nothing else before the policy's first token
            prefix=int(np.argmax(siblings[0].loss_mask != 0)) if continues else 0,
        )
        groups.append(group)
    return groups


def judged_groups(
    keys: Sequence[str],
    partition: str,
    threshold: float,
    is_replayed: Callable[[str], bool] = lambda uid: False,
) -> dict[str, RolloutGroup]:
    """uid -> group of fresh rows that are not trained on: without log-probs of the actor, successes
    count for difficulty and are not stored.

    Args:
        threshold: a reward above it is a success.
        is_replayed: whether a replayed row was to join the group of a uid.
    """
    rows = queue.read(keys, partition, ["question_id", "rm_scores"])
    rewards: dict[tuple[str, str], list[float]] = {}
    columns = list(rows["question_id"]), rows["rm_scores"].unbind()
    for key, question, scores in zip(keys, *columns, strict=True):
        rewards.setdefault((split_key(key)[0], question), []).append(float(scores.sum()))
    groups = {}
    for (uid, question), each in rewards.items():
        # the stored row has not joined: as rewarded as the others, it adds no spread to theirs
        mean_reward = sum(each) / len(each)
        groups[uid] = RolloutGroup(
            question,
            size=len(each),
            successes=(),
            replayed=int(is_replayed(uid)),
            refused=sum(reward > threshold for reward in each),
            rewards=tuple(each),
            replayed_reward=mean_reward,
        )
    return groups


def _trajectories(
    rows: Sequence[FreshRow], kind: str, step: int, make: Callable[[FreshRow], Trajectory]
) -> tuple[Trajectory, ...]:
    """Those of the rows that are valid trajectories; a warning for each of the others."""
    valid = []
    for row in rows:
        try:
            valid.append(make(row))
        except ValueError as error:
            at = f"step {step}, question {row.question}"
            logger.warning("%s: a %s is not stored: %s", at, kind, error)
    return tuple(valid)
