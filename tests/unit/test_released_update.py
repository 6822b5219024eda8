"""The released update's gradient, on verl's real actor with one and two ranks, and the metrics of
its updates.
"""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from released_updates import (
    CASES,
    ROWS,
    make_rows,
    of_response,
    released_gradient,
    run,
    tiny_model,
    token_losses,
    with_replayed,
)


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
    of_sizes = [folder / "1", folder / "2"]
    for here in of_sizes:
        here.mkdir()
        (here / "model").symlink_to(folder / "model")
        torch.save(rows, here / "rows.pt")
        (here / "cases.json").write_text(json.dumps(CASES))
    return model, rows, dict(enumerate(run(*of_sizes), start=1))


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
def test_a_policy_loss_that_a_user_registered_is_that_of_fresh_tokens(made, size):
    found, expected, _ = compared(made, size, "users_loss")
    assert distance(found["gradients"], expected) < 1e-6
    assert set(found["metrics"]["actor/users_loss"]) == {1.0}  # it is what has run


@pytest.mark.parametrize("size", [1, 2])
def test_a_mean_over_rows_is_smaller_by_the_rows_of_a_gpu(made, size):
    """The default scale, for everybody else's settings: rows / 8 times smaller, and the bonus as
    strong.
    """
    _, expected, _ = compared(made, size, "rows_mean")
    found = made[2][size]["rows_mean"]
    assert norm(found["gradients"]) / norm(expected) == pytest.approx(8 / ROWS, rel=0.01)
    assert distance(made[2][size]["verl_entropy"]["gradients"], expected) > 1e-5


@pytest.mark.parametrize("size", [1, 2])
def test_clipping_and_skipping_are_at_that_scale(made, size):
    clipped, expected, _ = compared(made, size, "clipped")
    assert clipped["metrics"]["grad_norm"][0] == pytest.approx(
        norm(expected), rel=1e-6
    )  # as it was before
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
    actor = {
        "ppo_mini_batch_size": 4,
        "calculate_entropy": True,
        "entropy_coeff": 0.0,
        "ppo_epochs": 1,
    }
    actor |= {"data_loader_seed": 1, "shuffle": False}
    trainer.config = OmegaConf.create(
        {
            "actor_rollout_ref": {"actor": actor, "rollout": {"n": 4, "temperature": 1.0}},
            "trainer": {"save_freq": -1},
        }
    )
    trainer.actor_rollout_wg = Workers(copy.deepcopy(found["metrics"]))
    metrics = {}
    trainer._update_actor(SimpleNamespace(extra_info={}), metrics)
    return metrics


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["review", "one_replayed"])
def test_a_ratio_of_one_in_one_micro_batch_of_many_is_one(made, size, name):
    """4 rows a micro-batch: one replayed row in 16, or in 32 of two updates, of which one
    has it.
    """
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
        (losses if row in (5, 30) else fresh).append(
            token_losses(row, rows, log_prob, vanilla=False)
        )
        entropies.append(entropy)
    assert metrics["actor/replayed_ratio_mean"] == pytest.approx(
        (one + e * w) / (one + e), rel=1e-5
    )
    assert metrics["actor/replayed_ratio_max"] == pytest.approx(w, rel=1e-5)
    assert metrics["actor/replayed_ess"] == pytest.approx(
        (one + e * w) ** 2 / ((one + e) * (one + e * w * w)), rel=1e-5
    )
    assert metrics["actor/replayed_loss"] == pytest.approx(
        float(torch.cat(losses).mean()), rel=1e-5
    )
    assert metrics["actor/fresh_loss"] == pytest.approx(float(torch.cat(fresh).mean()), rel=1e-4)
    assert metrics["actor/entropy_loss"] == pytest.approx(
        float(torch.cat(entropies).mean()), rel=1e-5
    )
    assert metrics["actor/fresh_clipfrac"] == 0 and abs(metrics["actor/ppo_kl"]) < 1e-6
    assert metrics["actor/skipped_update"] == 0
