"""The released update's gradient, on verl's real actor with one and two ranks, and the metrics of its updates."""

import copy
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from exgrpo.on_verl.phase import FRESH, REPLAYED

SCRIPT = Path(__file__).parent / "one_update.py"
LENGTH, ROWS, COEFFICIENT = 64, 32, 0.001  # longest response, rows of a mini-batch, of the entropy bonus
BASE = [
    f"data.max_response_length={LENGTH}",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.optim.lr=0",
    "actor_rollout_ref.actor.use_kl_loss=False",
]
NO_CLIPPING = "actor_rollout_ref.actor.optim.clip_grad=1e9"
PACKED = ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64"]
BY_FOUR = ["actor_rollout_ref.actor.use_dynamic_bsz=False", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"]
SCALE = "actor_rollout_ref.actor.loss_scale_factor=${exgrpo.released_scale:}"
ENTROPY = [
    f"actor_rollout_ref.actor.entropy_coeff={COEFFICIENT}",
    "actor_rollout_ref.actor.policy_loss.entropy_agg=released",
]
VANILLA = "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
BOUND = "actor_rollout_ref.actor.optim.skip_grad_bound"
WHOLE = {"calculate_entropy": True, "global_batch_size": ROWS, "mini_batch_size": ROWS}
HALVES = {"calculate_entropy": True, "global_batch_size": 16, "mini_batch_size": 16}


def case(*overrides, rows="mixed", settings=WHOLE):
    return {"overrides": [*BASE, *overrides], "rows": rows, "settings": settings}


CASES = {
    "released": case(*PACKED, NO_CLIPPING, SCALE, *ENTROPY),
    "rows_mean": case(*PACKED, NO_CLIPPING, *ENTROPY),
    "verl_entropy": case(*PACKED, NO_CLIPPING, SCALE, ENTROPY[0]),
    "on_policy": case(*PACKED, NO_CLIPPING, SCALE, *ENTROPY, VANILLA, rows="fresh"),
    "clipped": case(*PACKED, "actor_rollout_ref.actor.optim.clip_grad=0.01", SCALE, *ENTROPY),
    "skipped": case(*PACKED, f"{BOUND}=0.01", SCALE, *ENTROPY),
    "review": case(*BY_FOUR, *ENTROPY, SCALE, rows="sixteen", settings=HALVES),
    "one_replayed": case(*BY_FOUR, *ENTROPY, SCALE, rows="one_replayed", settings=HALVES),
    "two_replayed": case(*BY_FOUR, *ENTROPY, SCALE, rows="two_replayed", settings=HALVES),
}


def tiny_model(folder):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.2,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return model.double()


def of_response(model, prompt, response):
    """Log-probs and entropies of the response's tokens, [T] each."""
    logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    logs = torch.log_softmax(logits, -1)
    return logs.gather(-1, response[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def make_rows(model):
    """Rows of unequal lengths; every seventh replayed, with ratios well off 1."""
    torch.manual_seed(1)
    rows = {name: [] for name in ("row", "prompts", "responses", "input_ids", "position_ids", "response_mask")}
    rows |= {name: [] for name in ("loss_mask", "old_log_probs", "advantages", "rollout_is_weights")}
    for row in range(ROWS):
        prompt, response = (
            torch.randint(1, 32, (int(torch.randint(low, high, ())),)) for low, high in ((2, 7), (3, 25))
        )
        with torch.no_grad():
            now = of_response(model, prompt, response)[0].float()
        size = len(prompt) + len(response)
        replayed = row % 7 == 3
        rows["row"].append(row)
        rows["prompts"].append(prompt)
        rows["responses"].append(response)
        rows["input_ids"].append(torch.cat([prompt, response]))
        rows["position_ids"].append(torch.arange(size))
        rows["response_mask"].append(torch.ones(len(response), dtype=torch.long))
        rows["loss_mask"].append((torch.arange(size) >= len(prompt)).long())
        rows["old_log_probs"].append(now + (0.7 if replayed else 0.05) * torch.randn(len(response)))
        rows["advantages"].append(torch.full((len(response),), float(torch.randn(()))))
        rows["rollout_is_weights"].append(torch.full((len(response),), REPLAYED if replayed else FRESH))
    return rows


def with_replayed(rows, model, old, noise=0.0):
    """The rows with these and no others replayed; row -> what is added to their log-probs to make the recorded ones."""
    rows = copy.deepcopy(rows)
    for row in range(ROWS):
        rows["rollout_is_weights"][row].fill_(REPLAYED if row in old else FRESH)
        with torch.no_grad():
            now = of_response(model, rows["prompts"][row], rows["responses"][row])[0].float()
        rows["old_log_probs"][row] = now + old.get(row, 0.0) + noise * torch.randn(len(now))
    return rows


def run(folder, size):
    """The ranks, side by side in processes of their own; name -> what rank 0 wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    logs = [open(folder / f"rank-{rank}.log", "w") for rank in range(size)]  # noqa: SIM115
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, folder],
            env=environment | {"RANK": str(rank)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [process.wait(timeout=400) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert codes == [0] * size, (folder / "rank-0.log").read_text()[-3000:]
    return {name: torch.load(folder / f"{name}.pt", weights_only=False) for name in CASES}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Model, rows by name, and what one rank and two ranks made of each case."""
    folder = tmp_path_factory.mktemp("update")
    model = tiny_model(folder / "model")
    mixed = make_rows(model)
    fresh = with_replayed(mixed, model, {}, noise=0.15)  # some beyond the clip range of .8 to 1.2
    del fresh["rollout_is_weights"]
    one = with_replayed(mixed, model, {5: 0.0})
    rows = {
        "mixed": mixed,
        "fresh": fresh,
        "one_replayed": one,
        "sixteen": {name: values[:16] for name, values in one.items()},
        "two_replayed": with_replayed(mixed, model, {5: 0.0, 30: -1.0}),
    }
    results = {}
    for size in (1, 2):
        here = folder / str(size)
        here.mkdir()
        (here / "model").symlink_to(folder / "model")
        torch.save(rows, here / "rows.pt")
        (here / "cases.json").write_text(json.dumps(CASES))
        results[size] = run(here, size)
    return model, rows, results


def token_losses(row, rows, log_prob, vanilla):
    """Of the released objective, by equation 4: f(w) = w / (w + 0.1) of replayed tokens, w of fresh ones; or PPO's."""
    ratio = torch.exp(log_prob - rows["old_log_probs"][row].double())
    advantage = rows["advantages"][row].double()
    if vanilla:
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    replayed = rows["rollout_is_weights"][row] == REPLAYED
    return -torch.where(replayed, ratio / (ratio + 0.1), ratio) * advantage


def released_gradient(model, rows, micro_batches, vanilla=False):
    """The release's formula: on each of 8 GPUs micro-batches are added, over the GPUs is averaged."""
    gpus = [micro_batches[gpu::8] for gpu in range(8)]
    model.zero_grad()
    for gpu in gpus:
        for micro_batch in gpu:
            losses, entropies = [], []
            for row in micro_batch:
                log_prob, entropy = of_response(model, rows["prompts"][row], rows["responses"][row])
                losses.append(token_losses(row, rows, log_prob, vanilla))
                entropies.append(entropy)
            loss = torch.cat(losses).sum() / LENGTH - COEFFICIENT * torch.cat(entropies).mean()
            (loss / 8).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def norm(gradient):
    return float(torch.stack([grad.double().norm() for grad in gradient.values()]).norm())


def distance(ours, expected):
    """Norm of the difference, relative to what is expected."""
    assert ours.keys() == expected.keys()
    return norm({name: ours[name].double() - expected[name] for name in expected}) / norm(expected)


def compared(made, size, name, vanilla=False):
    model, rows, results = made
    found = results[size][name]
    micro_batches = [batch for rank in found["micro_batches"] for batch in rank]
    expected = released_gradient(model, rows[CASES[name]["rows"]], micro_batches, vanilla)
    return found, expected, micro_batches


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["released", "on_policy"])
def test_the_gradient_is_the_released_one_on_any_number_of_ranks(made, size, name):
    found, expected, micro_batches = compared(made, size, name, vanilla=name == "on_policy")
    assert len({len(batch) for batch in micro_batches}) > 1 and len(micro_batches) >= 8
    assert sorted(row for batch in micro_batches for row in batch) == list(range(ROWS))
    assert distance(found["gradients"], expected) < 1e-6
    assert found["metrics"]["grad_norm"][0] == pytest.approx(norm(expected), rel=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_a_mean_over_rows_is_smaller_by_the_rows_of_a_gpu(made, size):
    """The default scale, for everybody else's settings: rows / 8 times smaller, and the bonus as strong."""
    _, expected, _ = compared(made, size, "rows_mean")
    found = made[2][size]["rows_mean"]
    assert norm(found["gradients"]) / norm(expected) == pytest.approx(8 / ROWS, rel=0.01)
    assert distance(made[2][size]["verl_entropy"]["gradients"], expected) > 1e-5


@pytest.mark.parametrize("size", [1, 2])
def test_clipping_and_skipping_are_at_that_scale(made, size):
    clipped, expected, _ = compared(made, size, "clipped")
    assert clipped["metrics"]["grad_norm"][0] == pytest.approx(norm(expected), rel=1e-6)  # as it was before
    shrunk = {name: grad * (0.01 / norm(expected)) for name, grad in expected.items()}
    assert distance(clipped["gradients"], shrunk) < 1e-5
    skipped = made[2][size]["skipped"]
    assert skipped["metrics"]["skipped_update"] == [1.0] * size and not skipped["gradients"]
    assert skipped["metrics"]["grad_norm"][0] == pytest.approx(norm(expected), rel=1e-6)


class Workers:
    """Stands for the worker group: hands the trainer what the real worker returned."""

    def __init__(self, metrics):
        self.metrics = metrics

    def update_actor(self, batch):
        return {"metrics": {**self.metrics, "mfu": [0.0]}}


def step_metrics(found):
    """What the trainer logs of an update, by its own code and verl's."""
    from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

    trainer = object.__new__(ExperienceMixPPOTrainer)
    actor = {"ppo_mini_batch_size": 4, "calculate_entropy": True, "entropy_coeff": 0.0, "ppo_epochs": 1}
    actor |= {"data_loader_seed": 1, "shuffle": False}
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"actor": actor, "rollout": {"n": 4, "temperature": 1.0}}})
    trainer.actor_rollout_wg = Workers(copy.deepcopy(found["metrics"]))
    metrics = {}
    trainer._update_actor(SimpleNamespace(extra_info={}), metrics)
    return metrics


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["review", "one_replayed"])
def test_a_ratio_of_one_in_one_micro_batch_of_many_is_one(made, size, name):
    """4 rows a micro-batch: one replayed row in 16, or in 32 of two updates, of which one has it."""
    metrics = step_metrics(made[2][size][name])
    lengths = [len(response) for response in made[1][CASES[name]["rows"]]["responses"]]
    assert metrics["actor/replayed_ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/replayed_ess"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/replayed_ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/replayed_shaped_mean"] == pytest.approx(1 / 1.1, abs=1e-5)
    assert metrics["actor/replayed_tokens_share"] == pytest.approx(lengths[5] / sum(lengths))
    assert metrics["actor/fresh_ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert not [name for name in metrics if "/sum/" in name]


@pytest.mark.parametrize("size", [1, 2])
def test_means_are_over_tokens_and_maxima_are_maxima(made, size):
    model, rows, results = made
    metrics = step_metrics(results[size]["two_replayed"])
    rows = rows["two_replayed"]
    one, e = len(rows["responses"][5]), len(rows["responses"][30])
    w = 2.718281828459045
    losses, entropies, fresh = [], [], []
    for row in range(ROWS):
        with torch.no_grad():
            log_prob, entropy = of_response(model, rows["prompts"][row], rows["responses"][row])
        (losses if row in (5, 30) else fresh).append(token_losses(row, rows, log_prob, vanilla=False))
        entropies.append(entropy)
    assert metrics["actor/replayed_ratio_mean"] == pytest.approx((one + e * w) / (one + e), rel=1e-5)
    assert metrics["actor/replayed_ratio_max"] == pytest.approx(w, rel=1e-5)
    assert metrics["actor/replayed_ess"] == pytest.approx(
        (one + e * w) ** 2 / ((one + e) * (one + e * w * w)), rel=1e-5
    )
    assert metrics["actor/replayed_loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
    assert metrics["actor/fresh_loss"] == pytest.approx(float(torch.cat(fresh).mean()), rel=1e-4)
    assert metrics["actor/entropy_loss"] == pytest.approx(float(torch.cat(entropies).mean()), rel=1e-5)
    assert metrics["actor/fresh_clipfrac"] == 0 and abs(metrics["actor/ppo_kl"]) < 1e-6
    assert metrics["actor/skipped_update"] == 0
