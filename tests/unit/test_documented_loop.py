"""The interface as documented: whole loops, and each function on rows beside its form on
tensors.
"""

import ast
import importlib.util
import inspect
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from exgrpo import (
    DifficultyBucketer,
    SelectiveReplay,
    TrajectoryBuffer,
    compute_entropy,
    compute_grpo_loss,
    compute_importance_weights,
    mean_entropy,
)
from exgrpo.buffer.policies import CausalPolicy
from exgrpo.loss_settings import LossSettings

# the loop as its users' documents print it; every call, keyword and order is binding
DOCUMENTED = Path(__file__).parents[3] / "shared" / "golden" / "documented_loop.py"
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
    assert capsys.readouterr().out == "" and len(OWN_LOOP.read_text().splitlines()) <= 80


class Guesser(torch.nn.Module):
    """Six digits after any of 300 prompts, the last one masked; right if the first is below 5."""

    def __init__(self, tiled):
        super().__init__()
        self.tiled, self.written = tiled, {}
        self.scores = torch.nn.Parameter(torch.randn(300, 6, 10))

    def forward(self, prompts, tokens):
        log_probs = self.scores[[int(prompt) for prompt in prompts]].log_softmax(-1)
        return log_probs.gather(-1, torch.stack(tokens)[..., None])[..., 0]

    def rollout(self, prompts, num_rollouts, temperature=1.0):
        prompts = (
            [*prompts] * num_rollouts
            if self.tiled
            else [p for p in prompts for _ in range(num_rollouts)]
        )
        logits = self.scores[[int(prompt) for prompt in prompts]].detach() / temperature
        tokens = torch.distributions.Categorical(logits=logits).sample()
        rows = []
        for prompt, row, log_probs in zip(prompts, tokens, self(prompts, [*tokens]), strict=True):
            rows.append(
                {"prompt": prompt, "text": f"{row.tolist()}", "tokens": row, "log_probs": log_probs}
            )
            rows[-1]["loss_mask"] = torch.tensor([True] * 5 + [False])
            self.written[prompt, rows[-1]["text"]] = log_probs.detach()
        return rows


class Shuffled:
    """300 prompts an epoch, in batches of 50."""

    def __iter__(self):
        return (
            {"prompt": [str(prompt) for prompt in batch.tolist()]}
            for batch in torch.randperm(300).split(50)
        )


def surroundings(tiled):
    """What the documents leave undefined; `updates`: rows, weights and gradient of replays."""
    torch.manual_seed(0)
    model, updates = Guesser(tiled), []

    def loss_that_is_kept(*arguments, **more):
        loss = compute_grpo_loss(*arguments, **more)
        if "importance_weights" in more:
            updates.append((more["rollouts"], more["importance_weights"], gradient(loss, model)))
        return loss

    return {
        "model": model,
        "verifier": SimpleNamespace(
            evaluate=lambda rows: [float(row["tokens"][0] < 5) for row in rows]
        ),
        "on_policy_dataloader": Shuffled(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "compute_grpo_loss": loss_that_is_kept,
        "compute_importance_weights": compute_importance_weights,
        "compute_entropy": compute_entropy,
        "np": SimpleNamespace(random=np.random.RandomState(0)),
        "num_epochs": 14,
        "replay_start_epoch": 10,
        "updates": updates,
    }


def printed(variables):
    exec(compile(DOCUMENTED.read_text(), DOCUMENTED, "exec"), variables)


def in_own_words(
    model,
    verifier,
    on_policy_dataloader,
    optimizer,
    compute_grpo_loss,
    compute_importance_weights,
    compute_entropy,
    np,
    num_epochs,
    replay_start_epoch,
    updates,
):
    """The documents' calls in a shorter loop; returns the buffer and the bucketer beside it."""
    trajectory_buffer = TrajectoryBuffer(
        max_size=5_000, difficulty_tiers=4, entropy_percentiles=[25, 50]
    )
    difficulty_bucketer = DifficultyBucketer(metric="correctness_rate", window_size=100)
    manager = SelectiveReplay(
        strategy="entropy_guided", replay_probability=0.5, medium_difficulty_range=(0.3, 0.7)
    )
    trajectory_buffer.clear()
    for epoch in range(num_epochs):
        for batch in on_policy_dataloader:
            replays = epoch >= replay_start_epoch and np.random.rand() < manager.replay_probability
            if replays and len(trajectory_buffer) > 1_000:
                past = trajectory_buffer.sample(
                    strategy="medium_difficulty_low_entropy",
                    size=len(batch["prompt"]),
                    difficulty_range=(0.3, 0.7),
                    entropy_percentile=25,
                )
                prompts, rollouts, rewards = past["prompts"], past["rollouts"], past["rewards"]
                weights = compute_importance_weights(
                    old_policy=trajectory_buffer.policy_snapshot,
                    current_policy=model,
                    rollouts=rollouts,
                )
                loss = compute_grpo_loss(
                    rollouts=rollouts, rewards=rewards, importance_weights=weights
                )
            else:
                prompts = batch["prompt"]
                if epoch == 0:
                    rollouts = model.rollout(prompts=prompts, num_rollouts=4, temperature=1.0)
                else:
                    rollouts = model.rollout(prompts, num_rollouts=4)
                rewards = verifier.evaluate(rollouts)
                loss = compute_grpo_loss(rollouts, rewards)
            loss.backward()
            optimizer.step()
            for prompt, rollout, reward in zip(prompts, rollouts, rewards, strict=False):
                trajectory = {"prompt": prompt, "rollout": rollout, "reward": reward}
                trajectory |= {"is_correct": reward > 0.5, "entropy": compute_entropy(rollout)}
                trajectory_buffer.add(trajectory)
    return trajectory_buffer, difficulty_bucketer


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("text", ["printed", "in our own words"])
def test_the_documented_loop_runs_letter_by_letter(text, tiled, tmp_path):
    variables = surroundings(tiled)
    if text == "in our own words":
        buffer, beside = in_own_words(**variables)
    elif DOCUMENTED.is_file():
        printed(variables)
        buffer, beside = variables["trajectory_buffer"], variables["difficulty_bucketer"]
    else:
        pytest.skip("the documented loop is not beside this checkout")
    assert len(buffer) > 1_000 and len(variables["updates"]) >= 3
    written, model = variables["model"].written, variables["model"]
    for rows, weights, slope in variables["updates"]:
        assert (
            slope.abs().sum() > 0 and weights.shape == (len(rows), 6) and (weights[:, 5] == 0).all()
        )
        assert all(
            row["is_replayed"] and row["loss_mask"].tolist() == [True] * 5 + [False] for row in rows
        )
    buffer.save(tmp_path / "buffer")
    for each in (buffer, TrajectoryBuffer.load(tmp_path / "buffer")):
        for row in each.sample("uniform_random", 300)["rollouts"]:
            assert row["text"] == str(row["tokens"].tolist()) and row["tokens"][0] < 5
            assert np.array_equal(row["log_probs"], written[row["prompt"], row["text"]])
            assert row["loss_mask"].tolist() == [True] * 5 + [False] and model.scores.requires_grad
    # the bucketer that was made beside the buffer does nothing; the buffer's own is such a one
    assert len(beside) == 0 and len(buffer.bucketer) > 250
    assert (buffer.bucketer.metric, buffer.bucketer.window_size) == (
        beside.metric,
        beside.window_size,
    )


def calls(source):
    """(function, number of positional arguments, *keywords) of each call but of builtins."""
    found = [
        node for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Call)
    ]
    named = [(ast.unparse(c.func), len(c.args), *sorted(k.arg for k in c.keywords)) for c in found]
    return {call for call in named if call[0] not in ("zip", "range", "len")}


@pytest.mark.skipif(
    not DOCUMENTED.is_file(), reason="the documented loop is not beside this checkout"
)
def test_our_own_words_have_every_call_that_is_documented():
    assert calls(DOCUMENTED.read_text()) - calls(inspect.getsource(in_own_words)) == set()


def test_the_loss_is_a_tensor_with_metrics():
    rows, rewards, model, _ = mixed()
    loss = compute_grpo_loss(rows[:6], rewards[:6])
    assert (
        type(loss) is torch.Tensor
        and loss.shape == ()
        and loss.metrics["fresh_loss"].requires_grad is False
    )
    loss.backward()
    assert model.scores.grad.abs().sum() > 0


def test_a_rollout_may_be_a_mapping_and_keeps_all_but_what_is_beside_it():
    buffer = TrajectoryBuffer()
    mapping = {
        "text": "a b",
        "tokens": torch.tensor([3, 4]),
        "log_probs": torch.tensor([-1.0, -2.0]).requires_grad_(),
    }
    mapping |= {
        "loss_mask": [0, 1],
        "step": 5,
        "logits": torch.zeros(2, 9),
        "reward": 7.0,
        "entropy": 7.0,
    }
    assert buffer.add(
        {"prompt": "p", "rollout": mapping, "reward": 0.5, "is_correct": True, "entropy": 0.25}
    )
    (row,) = buffer.sample("uniform_random")["rollouts"]
    arrays = {name: row.pop(name).tolist() for name in ("tokens", "log_probs", "loss_mask")}
    assert arrays == {"tokens": [3, 4], "log_probs": [-1, -2], "loss_mask": [False, True]}
    expected = {
        "prompt": "p",
        "text": "a b",
        "reward": 0.5,
        "entropy": 0.25,
        "step": 5,
        "is_replayed": True,
    }
    assert row == expected and buffer.policy_snapshot == 5


def test_a_rollout_is_filed_under_the_prompt_that_it_answers():
    buffer, beside = TrajectoryBuffer(), DifficultyBucketer("token_count")
    trajectory = {
        "prompt": "q",
        "rollout": {"prompt": "p", "tokens": [1] * 500},
        "reward": 1,
        "is_correct": True,
    }
    assert buffer.add(trajectory | {"entropy": 0.5}) and beside.observe(trajectory) == 0.5
    assert [*buffer.pool] == [*buffer.bucketer.windows()] == [*beside.windows()] == ["p"]


def test_a_replayed_row_counts_once():
    buffer, _ = filled()
    batch = buffer.sample("uniform_random")
    before = len(buffer), buffer.bucketer.windows()
    for prompt, rollout in zip(batch["prompts"], batch["rollouts"], strict=True):
        five = {"prompt": prompt, "rollout": rollout, "reward": 1.0, "is_correct": True}
        assert buffer.add(five | {"entropy": compute_entropy(rollout)})
    assert (len(buffer), buffer.bucketer.windows()) == before
    assert (
        buffer.add(five | {"rollout": "another", "entropy": 0.5})
        and buffer.bucketer.windows() != before[1]
    )


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
    """A buffer with one success of each of three questions, of one to three tokens, one of them
    masked.
    """
    buffer, past = TrajectoryBuffer(), Table(0)
    for length, mask in ((1, None), (2, None), (3, [True, False, True])):
        tokens = torch.arange(length) + 4
        (log_probs,) = past([str(length - 1)], [tokens])
        row = {
            "prompt": str(length - 1),
            "rollout": str(tokens),
            "reward": 1,
            "is_correct": True,
            "entropy": 0.5,
        }
        buffer.add(
            row | {"tokens": tokens, "log_probs": log_probs, "loss_mask": mask, "step": length}
        )
    return buffer, past


def tensors(rows, model):
    """The same rows as the tensor forms take them."""
    shape = (len(rows), max(len(row["tokens"]) for row in rows))
    log_prob, past, mask = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for number, row in enumerate(rows):
        length = len(row["tokens"])
        (log_prob[number, :length],) = model(
            [row["prompt"]], [torch.as_tensor(row["tokens"]).long()]
        )
        past[number, :length] = torch.as_tensor(row["log_probs"]).detach()
        mask[number, :length] = torch.tensor(
            [1] * length if row.get("loss_mask") is None else row["loss_mask"]
        )
    return log_prob, past, mask


def test_weights_by_policies_are_those_by_tensors():
    (buffer, past), model = filled(), Table(1)
    batch = buffer.sample("uniform_random")
    log_prob, recorded, mask = tensors(batch.rollouts, model)
    expected = compute_importance_weights(log_prob, recorded, mask)
    for old in (buffer.policy_snapshot, past):
        weights = compute_importance_weights(
            old_policy=old, current_policy=model, rollouts=batch.rollouts
        )
        assert torch.allclose(weights, expected, rtol=1e-5) and weights.shape == (3, 3)
    grads = [torch.autograd.grad(each.sum(), model.scores)[0] for each in (weights, expected)]
    assert (
        torch.allclose(*grads, rtol=1e-5) and grads[0].abs().sum() > 0 and past.scores.grad is None
    )

    def padded(prompts, tokens):
        """As one tensor, padded beyond the longest."""
        return torch.nn.utils.rnn.pad_sequence(
            [*model(prompts, tokens), torch.zeros(9)], batch_first=True
        )[:-1]

    again = compute_importance_weights(old_policy=3, current_policy=padded, rollouts=batch.rollouts)
    plain = compute_importance_weights(
        log_prob, recorded, mask, LossSettings(off_policy_reshape="no_reshape")
    )
    assert torch.equal(again, weights) and not torch.allclose(plain, weights)


def mixed():
    """Three questions with two fresh rows each, some right, and a past success."""
    (buffer, _), model = filled(), Table(1)
    fresh = []
    for prompt, rewards in (("0", (0.0, 1.0)), ("1", (1.0, 1.0)), ("2", (0.0, 0.0))):
        for number, reward in enumerate(rewards):
            tokens = torch.tensor([1, 2 + number])
            (log_probs,) = model([prompt], [tokens])
            fresh.append(
                {"prompt": prompt, "tokens": tokens, "log_probs": log_probs, "reward": reward}
            )
    batch = buffer.sample("uniform_random")
    rows = fresh + batch.rollouts
    return rows, [row["reward"] for row in rows], model, buffer


def gradient(loss, model):
    return torch.autograd.grad(loss, model.scores, retain_graph=True)[0]


def test_the_loss_of_rows_is_that_of_tensors():
    rows, rewards, model, buffer = mixed()
    log_prob, past, mask = tensors(rows, model)
    given = {"log_prob": log_prob, "old_log_prob": past, "response_mask": mask}
    given |= {"group": [row["prompt"] for row in rows], "is_replayed": torch.arange(9) >= 6}
    expected = compute_grpo_loss(given, torch.tensor(rewards), length=7)
    weights = compute_importance_weights(
        old_policy=buffer.policy_snapshot, current_policy=model, rollouts=rows
    )
    assert (
        gradient(weights[:2].sum(), model).abs().sum() > 0
    )  # also where the rows' own log-probs have one
    by_weights = compute_grpo_loss(rows, rewards, weights, length=7)
    by_policy = compute_grpo_loss(rows, np.array(rewards), length=7, current_policy=model)
    for loss in (by_weights, by_policy):
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert torch.allclose(
            gradient(loss, model), gradient(expected, model), rtol=1e-4, atol=1e-7
        )
    assert {
        name: pytest.approx(value.item(), rel=1e-5) for name, value in expected.metrics.items()
    } == {name: value.item() for name, value in by_policy.metrics.items()}
    some = by_weights.metrics
    unknown = {name for name, value in some.items() if value.isnan()}
    assert unknown == {name for name in some if name.startswith("replayed_")} - {
        "replayed_tokens_share"
    }


def test_on_policy_rows_need_nothing_beside():
    rows, rewards, model, _ = mixed()
    loss = compute_grpo_loss(rows[:6], rewards[:6])
    expected = (
        rows[0]["log_probs"].sum() - rows[1]["log_probs"].sum()
    )  # the other groups teach nothing
    assert torch.allclose(gradient(loss, model), gradient(0.5 * expected / 12, model), atol=1e-7)
    assert loss.metrics["fresh_ratio_mean"] == 1 and loss.metrics["replayed_loss"] == 0
    with torch.no_grad():
        plain = [row | {"log_probs": row["log_probs"].detach()} for row in rows[:6]]
        assert compute_grpo_loss(plain, rewards[:6]) == loss


def test_log_probs_may_be_of_any_number_type():
    rows = [
        row(log_probs=[-1, 0]),
        row(log_probs=np.array([-0.5, -0.25])),
        row(log_probs=torch.tensor([-0.5, -0.25])),
    ]
    weights = compute_importance_weights(
        old_policy=0, current_policy=lambda *_: torch.zeros(3, 2), rollouts=rows
    )
    expected = np.exp([[1, 0], [0.5, 0.25], [0.5, 0.25]])
    assert weights.dtype == torch.float32 and np.allclose(
        weights.numpy(), expected / (expected + 0.1), rtol=1e-6
    )


def test_entropy_of_a_rollout_as_it_is_computed_or_was_recorded():
    logits, mask = torch.randn(4, 6, requires_grad=True), [1, 0, 0, 1]
    each = compute_entropy(logits).detach().numpy()
    assert compute_entropy({"logits": logits}) == pytest.approx(mean_entropy(each))
    assert compute_entropy({"logits": logits, "loss_mask": mask}) == pytest.approx(
        (each[0] + each[3]) / 2
    )
    assert compute_entropy({"entropies": each, "loss_mask": None, "entropy": 7}) == pytest.approx(
        mean_entropy(each)
    )
    sampled = torch.tensor([-1.0, -2.0, -9.0], requires_grad=True)
    assert compute_entropy({"log_probs": sampled, "loss_mask": [1, 1, 0], "entropy": None}) == 1.5
    assert compute_entropy({"log_probs": [1e-7, 0]}) == 0
    assert (
        compute_entropy({"entropy": 0.25, "log_probs": sampled}) == 0.25
        and compute_entropy({"entropy": None}) is None
    )
    assert compute_entropy(filled()[0].sample("uniform_random").rollouts[0]) == 0.5


def test_a_causal_language_model_is_a_policy():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, **sizes)).eval()
    policy = CausalPolicy(model, lambda prompt: [15] * (1 + int(prompt)))
    buffer, _ = filled()
    batch = buffer.sample("uniform_random")
    weights = compute_importance_weights(
        old_policy=3, current_policy=policy, rollouts=batch.rollouts
    )
    for row, weight in zip(batch.rollouts, weights, strict=True):
        head, tokens = policy.encode(row["prompt"]), torch.tensor(row["tokens"]).long()
        logits = model(torch.tensor([[*head, *tokens]])).logits[0, len(head) - 1 : -1]
        now = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
        ratio = (now - torch.tensor(row["log_probs"])).exp()
        expected = ratio / (ratio + 0.1)
        if row["loss_mask"] is not None:
            expected = expected * torch.tensor(row["loss_mask"])
        assert (
            torch.allclose(weight[: len(tokens)], expected, rtol=1e-4)
            and not weight[len(tokens) :].any()
        )
    weights.sum().backward()
    assert model.lm_head.weight.grad.abs().sum() > 0
    with pytest.raises(
        ValueError,
        match=r"current_policy is a LlamaForCausalLM, which takes input_ids: must be Causal",
    ):
        compute_importance_weights(old_policy=3, current_policy=model, rollouts=batch.rollouts)


def weigh(**changes):
    buffer, _ = filled()
    given = {
        "old_policy": 3,
        "current_policy": Table(1),
        "rollouts": buffer.sample("uniform_random").rollouts,
    }
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
        (
            lambda: weigh(log_prob=torch.zeros(1, 1)),
            "log_prob and old_policy: must be tensors, or policies",
        ),
        (
            lambda: compute_importance_weights(torch.zeros(1, 1)),
            "past_log_prob is missing: must be given, log_prob",
        ),
        (lambda: weigh(rollouts=[]), "rollouts is empty"),
        (
            lambda: weigh(rollouts=filled()[0].sample("uniform_random")),
            "rollouts is a ReplayBatch: must be a list of rows, such as a ReplayBatch's rollouts",
        ),
        (
            lambda: weigh(rollouts=["text"]),
            r"rollouts\[0\] is a str: must be a row, a mapping",
        ),
        (
            lambda: weigh(rollouts=[row(tokens=None)]),
            r"rollouts\[0\] without 'tokens': must have prompt, tokens and log",
        ),
        (
            lambda: weigh(rollouts=[row(), row(log_probs=None)]),
            r"rollouts\[1\] without 'log_probs': must have those",
        ),
        (
            lambda: weigh(rollouts=[row(loss_mask=[1])]),
            r"rollouts\[0\]\['loss_mask'\] has 1 entries for 2 tokens",
        ),
        (
            lambda: compute_grpo_loss([row()], [1.0]),
            r"rollouts\[0\]\['log_probs'\] has no gradient: must have one, or",
        ),
        (
            lambda: compute_grpo_loss([row(is_replayed=True)], [1.0], torch.zeros(1, 2)),
            "no gradient: must have one, or come with current_policy or importance_weights "
            "that have one",
        ),
        (
            lambda: compute_grpo_loss([row()], [1.0, 0.0], current_policy=Table(1)),
            "rewards has 2 entries for 1 rows",
        ),
        (
            lambda: compute_grpo_loss({}, [1.0], current_policy=Table(1)),
            "current_policy is given with tensors",
        ),
        (
            lambda: compute_entropy({"text": "r"}),
            "rollout without 'entropy': must have logits, entropies or entropy",
        ),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
