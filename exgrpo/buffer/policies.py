"""Rollouts as rows, padded to tensors, and their log-probs under a policy. Requires torch only.

A row is a mapping, such as `ReplayBatch.rollouts` has and TrajectoryBuffer.add takes as `rollout`:

prompt        the question's text; rows with the same prompt are a group
tokens        int [T], the response
log_probs     float [T] in nats, under the tokens' policy; with a gradient if it is the current one
loss_mask     bool [T], true at the policy's own tokens; absent or None: all are
step          the number of the policy that generated it; absent: the current one
is_replayed   whether it is a past success; absent: it is not

The buffer also keeps its text, and `compute_entropy` reads logits, entropies or entropy.
B rows; T is the number of tokens of the longest response.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from exgrpo.refusal import refuse_as

Row = Mapping[str, Any]
Rollouts = Sequence[Row]
# (prompts, tokens of each, int64 [T_i]) -> log-probs in nats, float[B, T or more] padded right, or
# a float[T_i] each
Policy = Callable[[list[str], list[Tensor]], Tensor | Sequence[Tensor]]


class CausalPolicy:
    """A causal language model, such as transformers', as a policy.

    Args:
        model: called with `input_ids`, `attention_mask`, [B, L]; returns `.logits`, [B, L, V].
        encode: a prompt's text -> its token ids: a tokenizer's `encode`, or a chat template.
    """

    def __init__(self, model: Callable[..., Any], encode: Callable[[str], Sequence[int]]) -> None:
        self.model, self.encode = model, encode

    def __call__(self, prompts: list[str], tokens: list[Tensor]) -> list[Tensor]:
        """Log-probs of each response's tokens after its prompt, with the model's gradient."""
        device = getattr(self.model, "device", None)
        encoded = [torch.tensor(self.encode(prompt)) for prompt in prompts]
        sequences = [torch.cat(pair) for pair in zip(encoded, tokens, strict=True)]
        ids = pad_sequence(sequences, batch_first=True).to(device)
        ones = [torch.ones_like(sequence) for sequence in sequences]
        attention = pad_sequence(ones, batch_first=True).to(device)
        logits = self.model(input_ids=ids, attention_mask=attention).logits[:, :-1].float()
        next_log_probs = logits.gather(2, ids[:, 1:, None])[..., 0] - logits.logsumexp(dim=-1)
        of_responses = []
        for row, prompt, response in zip(next_log_probs, encoded, tokens, strict=True):
            start = len(prompt) - 1
            of_responses.append(row[start : start + len(response)])
        return of_responses


def _rows_of(rollouts: Rollouts) -> list[Row]:
    """The rollouts as checked rows; ValueError names what is missing."""
    if not isinstance(rollouts, Sequence):
        allowed = "must be a list of rows, such as a ReplayBatch's rollouts"
        raise ValueError(f"rollouts is a {type(rollouts).__name__}: {allowed}")
    rows = list(rollouts)
    if not rows:
        refuse_as("rollouts is empty", "have one row or more")
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            refuse_as(f"rollouts[{index}] is a {type(row).__name__}", "be a row, a mapping")
        for key in ("prompt", "tokens"):
            if row.get(key) is None:
                refuse_as(f"rollouts[{index}] without {key!r}", "have prompt, tokens and log_probs")
        for key in ("log_probs", "loss_mask"):
            if row.get(key) is not None and len(row[key]) != len(row["tokens"]):
                lengths = f"{len(row[key])} entries for {len(row['tokens'])} tokens"
                raise ValueError(f"rollouts[{index}][{key!r}] has {lengths}: must be as many")
    return rows


def _mask_of(rows: Sequence[Row]) -> Tensor:
    """bool[B, T], true at the policies' own tokens."""
    masks = []
    for row in rows:
        mask = row.get("loss_mask")
        masks.append(np.ones(len(row["tokens"])) if mask is None else mask)
    return _padded(masks).bool()


def _recorded(rows: Sequence[Row]) -> Tensor:
    """float[B, T], the rows' own log-probs with their gradients; ValueError if a row has none."""
    for index, row in enumerate(rows):
        if row.get("log_probs") is None:
            allowed = "must have those of the policy that wrote it"
            raise ValueError(f"rollouts[{index}] without 'log_probs': {allowed}")
    return _padded(vector(row["log_probs"]).float() for row in rows)


def _log_probs_of(name: str, policy: Policy, rows: Sequence[Row]) -> Tensor:
    """float[B, T], the rows' log-probs under a policy, with its gradient; `name`: for messages."""
    kind = type(policy).__name__
    if not callable(policy):
        refuse_as(f"{name} is a {kind}", "be a policy, (prompts, tokens) -> log-probs [B, T]")
    if "input_ids" in inspect.signature(getattr(policy, "forward", policy)).parameters:
        allowed = "must be CausalPolicy(model, tokenizer.encode)"
        raise ValueError(f"{name} is a {kind}, which takes input_ids: {allowed}")
    tokens = [vector(row["tokens"]).long() for row in rows]
    answer = policy([row["prompt"] for row in rows], tokens)
    log_probs = answer if isinstance(answer, Tensor) else _padded(answer)
    longest = max(map(len, tokens))
    if log_probs.dim() != 2 or len(log_probs) != len(rows) or log_probs.shape[1] < longest:
        shape = tuple(log_probs.shape)
        allowed = f"must be [B, T], here ({len(rows)}, {longest})"
        raise ValueError(f"{name} gave log-probs of shape {shape}: {allowed}")
    return log_probs[:, :longest]


def both_log_probs(
    old_policy: int | Policy | None, current_policy: Policy | None, rollouts: Rollouts | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs float[B, T] under the current policy and the rows' own, and the rows' mask.

    The arguments are those of `exgrpo.buffer.tensors.compute_importance_weights`.
    """
    if old_policy is None or current_policy is None or rollouts is None:
        needed = ("old_policy", old_policy), ("current_policy", current_policy)
        missing = next((name for name, value in needed if value is None), "rollouts")
        allowed = "must be given, old_policy, current_policy and rollouts together"
        raise ValueError(f"{missing} is missing: {allowed}")
    rows = _rows_of(rollouts)
    if isinstance(old_policy, (int, np.integer)):
        for index, row in enumerate(rows):
            if (row.get("step") or 0) > old_policy:
                allowed = f"must be at most old_policy={old_policy}"
                raise ValueError(f"rollouts[{index}]['step']={row['step']}: {allowed}")
        past = _recorded(rows)
    else:
        with torch.no_grad():
            past = _log_probs_of("old_policy", old_policy, rows)
    current = _log_probs_of("current_policy", current_policy, rows)
    return current, past.detach().to(current), _mask_of(rows).to(current.device)


def loss_tensors(
    rollouts: Rollouts, current_policy: Policy | None, importance_weights: Tensor | None
) -> tuple[dict[str, Any], bool]:
    """Rows as the tensors that `exgrpo.buffer.tensors.compute_grpo_loss` takes.

    Returns:
        The tensors, and whether some replayed rows have importance weights alone.
    """
    rows = _rows_of(rollouts)
    past = _recorded(rows)
    replayed = torch.tensor([bool(row.get("is_replayed")) for row in rows])
    without_gradient = [
        current_policy is None and not getattr(row["log_probs"], "requires_grad", False)
        for row in rows
    ]
    weighted = importance_weights is not None and importance_weights.requires_grad
    for index, without in enumerate(without_gradient):
        if torch.is_grad_enabled() and without and not (replayed[index] and weighted):
            other = " or importance_weights that have one" if replayed[index] else ""
            allowed = f"must have one, or come with current_policy{other}"
            raise ValueError(f"rollouts[{index}]['log_probs'] has no gradient: {allowed}")
    current = (
        past if current_policy is None else _log_probs_of("current_policy", current_policy, rows)
    )
    tensors = {
        "log_prob": current,
        "old_log_prob": past.detach().to(current),
        "response_mask": _mask_of(rows).to(current.device),
        "group": [row["prompt"] for row in rows],
        "is_replayed": replayed.to(current.device),
    }
    weights_only = bool((replayed & torch.tensor(without_gradient)).any())
    return tensors, weights_only


def _padded(rows: Iterable[Any]) -> Tensor:
    return pad_sequence([vector(row) for row in rows], batch_first=True)


def vector(values: Any) -> Tensor:
    """A tensor as it is, with its gradient; anything else copied, so that it may be read-only."""
    return values if isinstance(values, Tensor) else torch.tensor(np.asarray(values))
