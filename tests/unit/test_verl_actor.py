"""What verl 0.9.1's actor hands to a policy loss and takes from it, from the engine and from
metrics.
"""

import ast
import inspect
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.metric import AggregationType, Metric, reduce_metrics
from verl.workers import engine_workers
from verl.workers.config import FSDPOptimizerConfig, PolicyLossConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.base import BaseEngine
from verl.workers.utils import losses

from exgrpo.loss_settings import LossSettings
from exgrpo.on_verl import mix_actor


def test_the_loss_is_found_by_its_name():
    assert get_policy_loss_fn("exgrpo") is mix_actor.compute_policy_loss_exgrpo


def test_a_policy_loss_gets_the_arguments_ours_has_one_channel_a_token_among_them():
    source = inspect.getsource(losses.ppo_loss)
    (call,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "policy_loss_fn"
    ]
    ours = inspect.signature(mix_actor.compute_policy_loss_exgrpo).parameters
    assert not call.args and sorted(each.arg for each in call.keywords) == sorted(ours)
    assert 'fields.append("rollout_is_weights")' in source, (
        "no channel for the phase codes of tokens"
    )


def test_what_the_aggregation_is_told_travels_with_the_configuration():
    told = set(inspect.signature(mix_actor.agg_loss).parameters) - {
        "loss_mat",
        "loss_mask",
        "loss_agg_mode",
    }
    source = inspect.getsource(losses.ppo_loss)
    assert all(f'config.global_batch_info["{name}"] = ' in source for name in told)


def test_the_entropy_bonus_is_left_out_where_there_is_no_entropy():
    source = inspect.getsource(losses.ppo_loss)
    assert 'model_output.get("entropy", None)' in source and "if entropy is not None" in source, (
        "mix_actor removes it"
    )
    assert list(inspect.signature(losses.ppo_loss).parameters) == [
        "config",
        "model_output",
        "data",
        "dp_group",
    ]


def test_the_engine_is_handed_a_partial_whose_configuration_can_be_read():
    source = inspect.getsource(engine_workers)
    assert "partial(ppo_loss, config=actor_config)" in source, (
        "with_released_entropy reads keywords['config']"
    )


def test_a_policy_losses_numbers_are_metrics_with_values_that_can_be_added_up():
    found = Metric.from_dict({"sum": 2.0}, aggregation=AggregationType.MEAN)["sum"]
    assert found.values == [2.0]
    for kind, value in ((AggregationType.SUM, 5.0), (AggregationType.MAX, 3.0)):
        metric = Metric(kind)
        metric.extend([2.0, 3.0])
        assert reduce_metrics({"it": metric}) == {"it": value}
    assert "Metric.from_dict(pg_metrics, aggregation=AggregationType.MEAN)" in inspect.getsource(
        losses.ppo_loss
    )


def test_an_update_steps_the_optimizer_by_the_method_we_override():
    source = inspect.getsource(BaseEngine.train_batch)
    assert "grad_norm = self.optimizer_step()" in source
    assert 'outputs["metrics"]["grad_norm"]' in source, "skipped_update is put beside it"


@pytest.mark.parametrize("scale", [None, 2.0**16])
def test_the_bound_on_the_gradient_norm_is_on_gradients_as_they_are(scale):
    """In fp16 they are multiplied by the scale until verl's own step; a bound of 500 must not see
    that.
    """
    engine = object.__new__(mix_actor.SkippingFSDPEngine)
    engine.module, engine._qat_enabled = torch.nn.Linear(1, 1, bias=False), False
    engine.optimizer_config = SimpleNamespace(clip_grad=1e9, skip_grad_bound=500.0)
    engine.optimizer = torch.optim.SGD(engine.module.parameters(), lr=1.0)
    engine.scaler = scale and torch.amp.GradScaler("cpu", init_scale=scale)
    skipped = []
    for gradient in (400.0, 600.0):
        engine.optimizer.zero_grad()
        loss = engine.module(torch.ones(1, 1)).sum() * gradient
        (engine.scaler.scale(loss) if scale else loss).backward()
        assert float(engine.optimizer_step()) == pytest.approx(gradient)
        skipped.append(engine._skipped)
    assert skipped == [False, True]


@pytest.mark.parametrize(
    ("vendor", "name"), [("exgrpo", "SkippingFSDPEngine"), (None, "FSDPEngineWithLMHead")]
)
@pytest.mark.parametrize("backend", ["fsdp", "fsdp2"])
def test_the_environment_chooses_the_engine(monkeypatch, vendor, name, backend):
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    monkeypatch.delenv("VERL_ENGINE_VENDOR", raising=False)
    if vendor:
        monkeypatch.setenv("VERL_ENGINE_VENDOR", vendor)
    assert EngineRegistry.get_engine_cls("language_model", backend).__name__ == name


def test_no_setting_of_ours_has_the_name_of_one_of_verls():
    for ours, verls in (
        (mix_actor.MixPolicyLossConfig, PolicyLossConfig),
        (mix_actor.SkipFSDPOptimizerConfig, FSDPOptimizerConfig),
    ):
        added = set(inspect.get_annotations(ours))
        assert added and not added & {each.name for each in fields(verls)}
    assert "loss_mode" in {each.name for each in fields(PolicyLossConfig)}


def test_every_setting_of_the_loss_is_a_key():
    keys = {each.name: each.default for each in fields(mix_actor.MixPolicyLossConfig)}
    ours = {
        each.name: each.default
        for each in fields(LossSettings)
        if not each.name.startswith("cliprange_")
    }
    assert {name: keys.get(name) for name in ours} == ours
