"""The released scale in configurations: what the scripts resolve to, and what is refused."""

import os
import sys
from pathlib import Path

import pytest
import watched
from composed import job
from omegaconf import OmegaConf

from exgrpo.config import released_scale
from exgrpo.preflight import values
from exgrpo.preflight.checks import resolve

ROOT = Path(__file__).parents[2]
ACTOR = "actor_rollout_ref.actor"
SCALE = f"{ACTOR}.loss_scale_factor=${{exgrpo.released_scale:}}"


@pytest.mark.parametrize(
    ("length", "rows", "scale"), [(8192, 512, 128), (8192, 384, 8192 / 48), (48, 64, 6)]
)
def test_the_scale_by_hand(length, rows, scale):
    """rows * scale, by which verl divides the sum, is 8 * length."""
    assert released_scale(length, rows) == scale


def printed(script, *overrides, **environment):
    """What a recipe's --cfg job says of the actor."""
    command = ["bash", ROOT / "exp_scripts" / script, "--cfg", "job", *overrides]
    result = watched.run(command, env=os.environ | {"PYTHON": sys.executable} | environment)
    assert result.returncode == 0, result.stderr
    return OmegaConf.create(result.stdout).actor_rollout_ref.actor


def test_the_scripts_have_the_released_scale_whatever_else_is_set():
    actor = printed("run_exgrpo.sh", N_GPUS="1")
    assert (actor.loss_scale_factor, actor.policy_loss.entropy_agg, actor.entropy_coeff) == (
        128,
        "released",
        0.001,
    )
    actor = printed(
        "run_on_policy.sh", f"{ACTOR}.ppo_mini_batch_size=32", "data.max_response_length=4096"
    )
    assert (actor.loss_scale_factor, actor.policy_loss.entropy_agg) == (128, "released")


def test_one_override_brings_back_the_mean_over_rows():
    assert (
        printed(
            "run_exgrpo.sh", f"{ACTOR}.loss_scale_factor=${{data.max_response_length}}"
        ).loss_scale_factor
        == 8192
    )


def test_the_default_is_verls():
    config = job("data.max_response_length=48")
    actor = config.actor_rollout_ref.actor
    assert (actor.loss_scale_factor, actor.policy_loss.entropy_agg) == (48, "verl")


def test_what_the_workers_get_is_a_number():
    config = job(SCALE, "actor_rollout_ref.rollout.n=8", "trainer.experience=False")
    resolve(config)
    sent = OmegaConf.to_container(config, resolve=False)
    assert sent["actor_rollout_ref"]["actor"]["loss_scale_factor"] == 512 * 8 / (256 * 8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [f"{ACTOR}.policy_loss.entropy_agg=mean"],
            f"{ACTOR}.policy_loss.entropy_agg=mean: must be one of verl, released",
        ),
        (
            [f"{ACTOR}.policy_loss.entropy_agg=released", "distillation.enabled=True"],
            f"{ACTOR}.policy_loss.entropy_agg=released: must be verl with "
            "distillation.enabled=True",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(overrides, message):
    with pytest.raises(ValueError) as caught:
        config = job(*overrides, "trainer.experience=False")
        values.verify(config)
        values.verify_together(config)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
