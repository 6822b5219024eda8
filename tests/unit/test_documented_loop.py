"""The interface with rollouts as rows: a loop that learns, and each function beside its form on tensors."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from exgrpo import (
    SelectiveReplay,
    TrajectoryBuffer,
    compute_entropy,
    compute_grpo_loss,
    compute_importance_weights,
    mean_entropy,
)
from exgrpo.loss_settings import LossSettings
from exgrpo.replay.policies import CausalPolicy

OWN_LOOP = Path(__file__).parents[2] / "exp_scripts" / "own_loop.py"


def own_loop():
    spec = importlib.util.spec_from_file_location("own_loop", OWN_LOOP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_the_loop_learns_and_replays(probability, capsys):
    torch.manual_seed(0)
    curve, replayed = own_loop().train(30, SelectiveReplay(replay_probability=probability))
    assert np.mean(curve[:3]) < 0.2 and np.mean(curve[-3:]) > 0.9
    assert replayed == 0 if probability == 0 else replayed >= 10
    assert capsys.readouterr().out == "" and len(OWN_LOOP.read_text().splitlines()) <= 60


class Table(torch.nn.Module):
    """Log-probs of digits after a prompt, by position."""

    def __init__(self, seed, scale=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.scores = torch.nn.Parameter(scale * torch.randn(3, 4, 10, generator=generator))

    def forward(self, prompts, tokens):
        rows = zip(prompts, tokens, strict=True)
        return [self.scores[int(p)].log_softmax(-1)[torch.arange(len(t)), t] for p, t in rows]


def filled():
    """A buffer with one success of each of three questions, of one to three tokens, one of them masked."""
    buffer, past = TrajectoryBuffer(), Table(0)
    for length, mask in ((1, None), (2, None), (3, [True, False, True])):
        tokens = torch.arange(length) + 4
        (log_probs,) = past([str(length - 1)], [tokens])
        row = {"prompt": str(length - 1), "rollout": str(tokens), "reward": 1, "is_correct": True, "entropy": 0.5}
        buffer.add(row | {"tokens": tokens, "log_probs": log_probs, "loss_mask": mask, "step": length})
    return buffer, past


def tensors(rows, model):
    """The same rows as the tensor forms take them."""
    shape = (len(rows), max(len(row["tokens"]) for row in rows))
    log_prob, past, mask = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for number, row in enumerate(rows):
        length = len(row["tokens"])
        (log_prob[number, :length],) = model([row["prompt"]], [torch.as_tensor(row["tokens"]).long()])
        past[number, :length] = torch.as_tensor(row["log_probs"]).detach()
        mask[number, :length] = torch.tensor([1] * length if row.get("loss_mask") is None else row["loss_mask"])
    return log_prob, past, mask


def test_weights_by_policies_are_those_by_tensors():
    (buffer, past), model = filled(), Table(1)
    batch = buffer.sample("uniform_random")
    log_prob, recorded, mask = tensors(batch.rows(), model)
    expected = compute_importance_weights(log_prob, recorded, mask)
    for rollouts in (batch, batch.rows()):
        for old in (buffer.policy_snapshot, past):
            weights = compute_importance_weights(old_policy=old, current_policy=model, rollouts=rollouts)
            assert torch.allclose(weights, expected, rtol=1e-5) and weights.shape == (3, 3)
    grads = [torch.autograd.grad(each.sum(), model.scores)[0] for each in (weights, expected)]
    assert torch.allclose(*grads, rtol=1e-5) and grads[0].abs().sum() > 0 and past.scores.grad is None

    def padded(prompts, tokens):
        """As one tensor, padded beyond the longest."""
        return torch.nn.utils.rnn.pad_sequence([*model(prompts, tokens), torch.zeros(9)], batch_first=True)[:-1]

    again = compute_importance_weights(old_policy=3, current_policy=padded, rollouts=batch)
    plain = compute_importance_weights(log_prob, recorded, mask, LossSettings(off_policy_reshape="no_reshape"))
    assert torch.equal(again, weights) and not torch.allclose(plain, weights)


def mixed():
    """Three questions with two fresh rows each, some right, and a past success."""
    (buffer, _), model = filled(), Table(1)
    fresh = []
    for prompt, rewards in (("0", (0.0, 1.0)), ("1", (1.0, 1.0)), ("2", (0.0, 0.0))):
        for number, reward in enumerate(rewards):
            tokens = torch.tensor([1, 2 + number])
            (log_probs,) = model([prompt], [tokens])
            fresh.append({"prompt": prompt, "tokens": tokens, "log_probs": log_probs, "reward": reward})
    batch = buffer.sample("uniform_random")
    rows = fresh + batch.rows()
    return rows, [row["reward"] for row in rows], model, buffer


def gradient(loss, model):
    return torch.autograd.grad(loss, model.scores, retain_graph=True)[0]


def test_the_loss_of_rows_is_that_of_tensors():
    rows, rewards, model, buffer = mixed()
    log_prob, past, mask = tensors(rows, model)
    given = {"log_prob": log_prob, "old_log_prob": past, "response_mask": mask}
    given |= {"group": [row["prompt"] for row in rows], "is_replayed": torch.arange(9) >= 6}
    expected, measured = compute_grpo_loss(given, torch.tensor(rewards), length=7)
    weights = compute_importance_weights(old_policy=buffer.policy_snapshot, current_policy=model, rollouts=rows)
    assert gradient(weights[:2].sum(), model).abs().sum() > 0  # also where the rows' own log-probs have one
    by_weights, some = compute_grpo_loss(rows, rewards, weights, length=7)
    by_policy, all_ = compute_grpo_loss(rows, np.array(rewards), length=7, current_policy=model)
    for loss in (by_weights, by_policy):
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert torch.allclose(gradient(loss, model), gradient(expected, model), rtol=1e-4, atol=1e-7)
    assert {name: pytest.approx(value.item(), rel=1e-5) for name, value in measured.items()} == {
        name: value.item() for name, value in all_.items()
    }
    unknown = {name for name, value in some.items() if value.isnan()}
    assert unknown == {name for name in some if name.startswith("replayed_")} - {"replayed_tokens_share"}


def test_on_policy_rows_need_nothing_beside():
    rows, rewards, model, _ = mixed()
    loss, metrics = compute_grpo_loss(rows[:6], rewards[:6])
    expected = rows[0]["log_probs"].sum() - rows[1]["log_probs"].sum()  # the other groups teach nothing
    assert torch.allclose(gradient(loss, model), gradient(0.5 * expected / 12, model), atol=1e-7)
    assert metrics["fresh_ratio_mean"] == 1 and metrics["replayed_loss"] == 0
    with torch.no_grad():
        plain = [row | {"log_probs": row["log_probs"].detach()} for row in rows[:6]]
        assert compute_grpo_loss(plain, rewards[:6])[0] == loss


def test_log_probs_may_be_of_any_number_type():
    rows = [row(log_probs=[-1, 0]), row(log_probs=np.array([-0.5, -0.25])), row(log_probs=torch.tensor([-0.5, -0.25]))]
    weights = compute_importance_weights(old_policy=0, current_policy=lambda *_: torch.zeros(3, 2), rollouts=rows)
    expected = np.exp([[1, 0], [0.5, 0.25], [0.5, 0.25]])
    assert weights.dtype == torch.float32 and np.allclose(weights.numpy(), expected / (expected + 0.1), rtol=1e-6)


def test_entropy_of_a_rollout_as_it_is_computed_or_was_recorded():
    logits, mask = torch.randn(4, 6, requires_grad=True), [1, 0, 0, 1]
    each = compute_entropy(logits).detach().numpy()
    assert compute_entropy({"logits": logits}) == pytest.approx(mean_entropy(each))
    assert compute_entropy({"logits": logits, "loss_mask": mask}) == pytest.approx((each[0] + each[3]) / 2)
    assert compute_entropy({"entropies": each, "loss_mask": None, "entropy": 7}) == pytest.approx(mean_entropy(each))
    assert compute_entropy({"entropy": 0.25}) == 0.25 and math.isnan(compute_entropy({"entropy": None}))
    assert compute_entropy(filled()[0].sample("uniform_random").rows()[0]) == 0.5


def test_a_causal_language_model_is_a_policy():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, **sizes)).eval()
    policy = CausalPolicy(model, lambda prompt: [15] * (1 + int(prompt)))
    buffer, _ = filled()
    batch = buffer.sample("uniform_random")
    weights = compute_importance_weights(old_policy=3, current_policy=policy, rollouts=batch)
    for row, weight in zip(batch.rows(), weights, strict=True):
        head, tokens = policy.encode(row["prompt"]), torch.tensor(row["tokens"]).long()
        logits = model(torch.tensor([[*head, *tokens]])).logits[0, len(head) - 1 : -1]
        now = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
        ratio = (now - torch.tensor(row["log_probs"])).exp()
        expected = ratio / (ratio + 0.1)
        if row["loss_mask"] is not None:
            expected = expected * torch.tensor(row["loss_mask"])
        assert torch.allclose(weight[: len(tokens)], expected, rtol=1e-4) and not weight[len(tokens) :].any()
    weights.sum().backward()
    assert model.lm_head.weight.grad.abs().sum() > 0
    with pytest.raises(
        ValueError, match=r"current_policy is a LlamaForCausalLM, which takes input_ids: must be Causal"
    ):
        compute_importance_weights(old_policy=3, current_policy=model, rollouts=batch)


def weigh(**changes):
    buffer, _ = filled()
    given = {"old_policy": 3, "current_policy": Table(1), "rollouts": buffer.sample("uniform_random").rows()}
    return compute_importance_weights(**given | changes)


def row(**changes):
    return {"prompt": "0", "tokens": [1, 2], "log_probs": [-1.0, -2.0], **changes}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: weigh(current_policy=None),
            "current_policy is missing: must be given, old_policy, current_policy and",
        ),
        (lambda: weigh(old_policy=2), r"rollouts\[.\]\['step'\]=3: must be at most old_policy=2"),
        (
            lambda: weigh(current_policy=5),
            r"current_policy is a int: must be a policy, \(prompts, tokens\) -> log-probs",
        ),
        (
            lambda: weigh(current_policy=lambda *_: torch.zeros(3, 2)),
            r"of shape \(3, 2\): must be \[B, T\], here \(3, 3\)",
        ),
        (lambda: weigh(log_prob=torch.zeros(1, 1)), "log_prob and old_policy: must be tensors, or policies"),
        (
            lambda: compute_importance_weights(torch.zeros(1, 1)),
            "past_log_prob is missing: must be given, log_prob",
        ),
        (lambda: weigh(rollouts=[]), "rollouts is empty"),
        (
            lambda: weigh(rollouts=["text"]),
            r"rollouts\[0\] is a str: must be a row \(a mapping\), or rollouts a ReplayB",
        ),
        (
            lambda: weigh(rollouts=[row(tokens=None)]),
            r"rollouts\[0\] without 'tokens': must have prompt, tokens and log",
        ),
        (lambda: weigh(rollouts=[row(), row(log_probs=None)]), r"rollouts\[1\] without 'log_probs': must have those"),
        (lambda: weigh(rollouts=[row(loss_mask=[1])]), r"rollouts\[0\]\['loss_mask'\] has 1 entries for 2 tokens"),
        (lambda: compute_grpo_loss([row()], [1.0]), r"rollouts\[0\]\['log_probs'\] has no gradient: must have one, or"),
        (
            lambda: compute_grpo_loss([row(is_replayed=True)], [1.0], torch.zeros(1, 2)),
            "no gradient: must have one, or come with current_policy or importance_weights that have one",
        ),
        (lambda: compute_grpo_loss([row()], [1.0, 0.0], current_policy=Table(1)), "rewards has 2 entries for 1 rows"),
        (lambda: compute_grpo_loss({}, [1.0], current_policy=Table(1)), "current_policy is given with tensors"),
        (lambda: compute_entropy({"text": "r"}), "rollout without 'entropy': must have logits, entropies or entropy"),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
