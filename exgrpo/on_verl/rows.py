"""Convert rows of verl's TransferQueue to the pool's types and back, without accessing the
queue.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from verl.utils.model import compute_position_id_with_mask

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.replay_log import ReplayedGroup
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.judged_by import JudgedBy

logger = logging.getLogger(__name__)


def split_key(key: str) -> tuple[str, int, int]:
    """The parts of a rollout's key ``{uid}_{session}_{output}``, as verl's agent loop writes it."""
    uid, session, output = key.rsplit("_", 2)
    return uid, int(session), int(output)


def sequence_fields(prompt: torch.Tensor, trajectory: Trajectory) -> dict[str, torch.Tensor]:
    """The tensor fields of a row whose response is the trajectory: int64 [P], [T] and [P+T]."""
    tokens = torch.from_numpy(trajectory.tokens.astype(np.int64))
    input_ids = torch.cat([prompt, tokens])
    mask = torch.ones_like(tokens)
    if trajectory.loss_mask is not None:
        mask = torch.from_numpy(trajectory.loss_mask.astype(np.int64))
    return {
        "prompts": prompt,
        "responses": tokens,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": input_ids,
        "position_ids": compute_position_id_with_mask(
            torch.ones_like(input_ids).unsqueeze(0)
        ).squeeze(0),
    }


def replayed_row(
    sibling: Mapping[str, Any],
    trajectory: Trajectory,
    session: int,
    prompt: torch.Tensor | None = None,
) -> dict[str, Any]:
    """The row that adds ``trajectory`` to its question's group: a copy of a fresh sibling, to keep
    verl's schema.

    Tokens, log-probs, mask and reward are the trajectory's, everything else is the sibling's.

    Args:
        prompt: int64 [P]; default: the sibling's.
    """
    row = {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in sibling.items()
    }
    fields = sequence_fields(row["prompts"] if prompt is None else prompt, trajectory)
    row.update({name: value for name, value in fields.items() if name in row})
    log_probs = torch.from_numpy(np.nan_to_num(trajectory.log_probs))
    if "rollout_log_probs" in row:
        row["rollout_log_probs"] = log_probs
    row["rm_scores"] = torch.zeros_like(log_probs)
    row["rm_scores"][-1] = trajectory.reward
    if "session_id" in row:
        row["session_id"] = session
    if "num_turns" in row:
        turns, named = row["num_turns"], number_of_turns(trajectory)
        row["num_turns"] = (
            torch.full_like(turns, named) if isinstance(turns, torch.Tensor) else named
        )
    return row


def stored_row(
    template: Mapping[str, Any],
    of_data: Mapping[str, Any],
    uid: str,
    trajectory: Trajectory,
    session: int,
    prompt: torch.Tensor,
) -> dict[str, Any]:
    """A row of a past group: with the columns of a fresh row of any question, and the data set's
    values of its own.

    Args:
        template: a fresh row; what it says of its own rollout's reward is left out.
        of_data: the data set's row of the question.
        prompt: int64 [P], as recorded with the group: the recorded log-probs are of responses to
            these tokens.
    """
    row = replayed_row(template, trajectory, session, prompt)
    row.update(
        {
            name: value
            for name, value in of_data.items()
            if name in row and not torch.is_tensor(value)
        }
    )
    row["uid"] = uid
    extra = getattr(row.get("extra_fields"), "data", None)  # of a TensorDict's row
    if isinstance(extra, dict):
        row["extra_fields"] = {
            name: value for name, value in extra.items() if name != "reward_extra_info"
        }
    return row


def number_of_turns(trajectory: Trajectory) -> int:
    """As verl's agent loops count: the prompt, and each run of the policy's own tokens or of others
    between them.
    """
    if trajectory.loss_mask is None:
        return 2
    return 2 + int(np.count_nonzero(np.diff(trajectory.loss_mask)))


def refuse_several_outputs(keys: Sequence[str]) -> None:
    """RuntimeError if an agent loop returned a list of outputs: a trajectory is one row."""
    if several := [key for key in keys if split_key(key)[2]]:
        raise RuntimeError(
            f"rollout {several[0]}: the agent loop returned several outputs of one session: must "
            "be one"
        )


def replayed_tag(
    sibling: Mapping[str, Any], trajectory: Trajectory, prompt_length: int | None = None
) -> dict[str, Any]:
    """The queue's tag of a replayed row; its staleness is the trajectory's, by the weights that
    generated it.

    Args:
        prompt_length: default: the sibling's.
    """
    length = len(trajectory.tokens)
    before = sibling["prompt_len"] if prompt_length is None else prompt_length
    tag = dict(
        sibling, prompt_len=before, response_len=length, seq_len=before + length, is_replayed=True
    )
    tag["min_global_steps"] = tag["max_global_steps"] = trajectory.step - 1
    return tag


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
        self, step: int, vocab_size: int, judge: JudgedBy | None = None, bounded: bool = True
    ) -> Trajectory:
        """The rollout as a Trajectory; ValueError if tokens and log-probs do not match, or the
        reward is not in 0..1.

        Args:
            bounded: False: any finite reward will do.
        """
        if bounded and not 0 <= self.reward <= 1:
            raise ValueError(f"reward={self.reward}: must be a number between 0 and 1")
        entropy = float(np.mean(self.entropies[self.loss_mask.astype(bool)]))
        judged = None if judge is None else str(judge.by(self.rule))
        trajectory = Trajectory(
            self.tokens, self.log_probs, step, entropy, self.loss_mask, self.reward, None, judged
        )
        trajectory.check_vocabulary(vocab_size)
        return trajectory


def rollout_groups(
    rows: Sequence[FreshRow],
    joined: Iterable[ReplayedGroup],
    step: int,
    vocab_size: int,
    config: ExperienceConfig,
    judge: JudgedBy | None = None,
) -> list[RolloutGroup]:
    """One group per question, from the step's fresh rows in their order.

    A success that is not a valid trajectory is refused, with a warning: it counts for difficulty
        but is not stored.
    A failure in whose place a replayed row is counts as a fresh row.

    Args:
        joined: of the groups that have a replayed row besides the fresh ones.
        step: the global step that generated the rows.
        vocab_size: tokens are 0..vocab_size-1.
        config: what a success is; for replay of whole groups failures are kept too.
        judge: of the rewards.
    """
    threshold, whole = config.exp_success_threshold, config.exp_unit == "group"
    past_of = {group.uid: group for group in joined}
    rows_of: dict[str, list[FreshRow]] = {}
    for row in rows:
        rows_of.setdefault(row.uid, []).append(row)
    groups = []
    for uid, siblings in rows_of.items():
        past = past_of.get(uid)
        displaced = [past.displaced] if past is not None and past.displaced is not None else []
        solved = [row for row in siblings if row.reward > threshold]
        failed = [row for row in siblings if whole and not row.reward > threshold]
        successes = _trajectories(
            solved, "success", step, vocab_size, judge, config.bounded_rewards
        )
        failures = _trajectories(failed, "failure", step, vocab_size, judge, config.bounded_rewards)
        rewards = [row.reward for row in siblings] + displaced
        groups.append(
            RolloutGroup(
                siblings[0].question,
                len(rewards),
                successes,
                int(past is not None and not displaced),
                len(solved) - len(successes),
                failures,
                tuple(rewards),
                1.0 if past is None else past.rollouts[0].reward,
                siblings[0].prompt,
            )
        )
    return groups


def _trajectories(
    rows: Sequence[FreshRow],
    kind: str,
    step: int,
    vocab_size: int,
    judge: JudgedBy | None,
    bounded: bool,
) -> tuple[Trajectory, ...]:
    """Those of the rows that are valid trajectories; a warning for each of the others."""
    valid = []
    for row in rows:
        try:
            valid.append(row.trajectory(step, vocab_size, judge, bounded))
        except ValueError as error:
            logger.warning(
                "step %d, question %s: a %s is not stored: %s", step, row.question, kind, error
            )
    return tuple(valid)
