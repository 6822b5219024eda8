"""Rows as verl's agent loop writes them, on a real queue, and an actor that scores what it is
given.
"""

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import complete


def rollout(uid, session, tokens, reward):
    """One row as the agent loop writes it, its old log-probs and entropies as the trainer does."""
    prompt, response = torch.tensor([7, 8, 9]), torch.tensor(tokens)
    ones = torch.ones_like(response)
    scores = torch.zeros(len(tokens))
    scores[-1] = reward
    return {
        "uid": uid,
        "question_id": f"question of {uid}",
        "session_id": session,
        "prompts": prompt,
        "responses": response,
        "response_mask": ones,
        "loss_mask": ones,
        "input_ids": torch.cat([prompt, response]),
        "position_ids": torch.arange(3 + len(tokens)),
        "rm_scores": scores,
        "rollout_log_probs": torch.full((len(tokens),), -0.5),
        "old_log_probs": torch.full((len(tokens),), -0.25 * (session + 1)),
        "entropy": torch.full((len(tokens),), 0.125 * (session + 1)),
        "multi_modal_inputs": {},
        "raw_prompt": [{"role": "user", "content": "?"}],
        "num_turns": 2,
    }


def put(partition, rows):
    keys = [f"{row['uid']}_{row['session_id']}_0" for row in rows]
    tags = [
        {
            "prompt_len": 3,
            "response_len": len(row["responses"]),
            "seq_len": len(row["input_ids"]),
            "min_global_steps": 4,
        }
        for row in rows
    ]
    tags = [tag | {"max_global_steps": 4, "global_steps": 5, "status": "success"} for tag in tags]
    tq.kv_batch_put(
        keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(rows), tags=tags
    )
    return KVBatchMeta(keys=keys, tags=tags, partition_id=partition)


def group(uid, *rewards):
    return [rollout(uid, i, [11 + i] * (2 + i), reward) for i, reward in enumerate(rewards)]


def trajectory(*tokens, step=2):
    return Trajectory(np.array(tokens), np.full(len(tokens), -2.0), step=step, entropy=1.0)


def record(uid, trajectory):
    """That a question of one candidate is replayed."""
    return ReplayedGroup(f"question of {uid}", [trajectory], 0, [np.nan], uid=uid)


def completed(batch, chosen, session):
    """The batch in which the trajectories (by uid) have joined their groups, and the records of
    these.
    """
    groups = [record(uid, trajectory) for uid, trajectory in chosen.items()]
    siblings = complete.first_siblings(batch, {group.uid: group.question for group in groups})
    return complete.inject(batch, groups, siblings, session), groups


def rows_of(groups):
    """Key of a replayed row -> its trajectory."""
    return {key: trajectory for group in groups for key, trajectory in group.rows.items()}


class Model:
    """Fills entropy and log_probs of the rows it is given, as the actor does.

    The entropy of a token is its id, its log-prob minus the id over the temperature.
    """

    def __init__(self, ranks=1):
        self.calls = []
        self._dispatch_info = {"actor": list(range(ranks))}

    def compute_log_prob(self, batch):
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"]
        )
        temperature = batch.extra_info.get("temperature", 1.0)
        self.calls.append([row.tolist() for row in data["input_ids"].unbind()])
        entropies = [
            torch.roll(row.float(), -1) for row in data["input_ids"].unbind()
        ]  # of the token that comes next
        fields = {
            "entropy": torch.nested.as_nested_tensor(entropies, layout=torch.jagged),
            "log_probs": torch.nested.as_nested_tensor(
                [-row / temperature for row in entropies], layout=torch.jagged
            ),
        }
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, len(batch))
        )
        return batch
