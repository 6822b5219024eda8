"""Which of verl's ways to train pass with replay, and the line with which the others are refused;
docs/modes.md.
"""

import re
from pathlib import Path

import pytest
from composed import configuration
from omegaconf import OmegaConf

from exgrpo.on_verl import registered
from exgrpo.preflight import modes, values
from exgrpo.preflight.checks import resolve, verify

PAGE = (Path(__file__).parents[2] / "docs" / "modes.md").read_text()
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
SEPARATE = [
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
]
# the metric is given: its default is not the same in all versions of verl
REHEARSES = [
    "trainer.exp_place=beside",
    "actor_rollout_ref.actor.policy_loss.off_policy_loss=likelihood",
]
FILTERED = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"]
LENT = ["trainer.v1.separate_async.hybrid_rollout.enable_switch=True"]
REFUSED = {
    "algorithm.adv_estimator=gae": "algorithm.adv_estimator=gae: must be one of grpo, ",
    "algorithm.adv_estimator=gdpo": "with replay; gdpo needs the parts of each reward",
    "algorithm.adv_estimator=grop": "adv_estimator=grop: must be one of grpo, ",
    f"{LOSS}=gsop": "gpg, clip_cov, kl_cov, geo_mean, dro, cispo, "
    "with replay; or a name that a module of "
    "VERL_USE_EXT",
    "algorithm.rollout_correction.bypass_mode=True": "bypass_mode=True: must be False; the "
    "pool needs log-probs of",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay=True": "routing_replay=True: must be False",  # noqa: E501
    "distillation.enabled=True": "distillation.enabled=True: must be False",
    "actor_rollout_ref.actor.checkpoint.async_save=True": "async_save=True: must be False",
    "skip.rollout_tq.enable=True": "skip.rollout_tq.enable=True: must be False",
    "data.gen_batch_size=4": "data.gen_batch_size=4: must be 1",
    f"{LOSS}=bypass_mode": "loss_mode=bypass_mode: must be one of exgrpo, vanilla, ",
}


def test_every_key_of_the_table_is_one_of_the_configuration(files):
    config = configuration(files, *SEPARATE)
    together = [(key, rule) for key, rule in values.table() if key not in values.alone()]
    named = {other for key, rule in together for other in (key, *rule.get("when", {}))}
    parents = {
        key: OmegaConf.select(config, key.rpartition(".")[0]) or {} for key in named if "." in key
    }
    gone = {key for key, parent in parents.items() if key.rpartition(".")[2] not in parent}
    assert gone <= {"trainer.remove_previous_ckpt_in_save"}, "which older versions of verl have"


@pytest.mark.parametrize(("wrong", "line"), REFUSED.items())
def test_what_replay_cannot_be_combined_with_is_named(files, wrong, line):
    with pytest.raises(ValueError) as caught:
        verify(configuration(files, wrong))
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert wrong.split("=")[0].rpartition(".")[2] in PAGE, "docs/modes.md has no line for it"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["trainer.v1.trainer_mode=other"],
            "trainer_mode=other: must be one of exgrpo, sync, colocate_async, ",
        ),
        (
            ["trainer.v1.trainer_mode=colocate_async", "trainer.rollout_seeded=True"],
            "rollout_seeded=True: must be",
        ),
        (
            [
                "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
                "trainer.rollout_seeded=True",
            ],
            "agent.default_agent_loop=tool_agent: must be single_turn_agent with "
            "trainer.rollout_seeded=True",
        ),
        (
            [*SEPARATE[:-1]],
            "checkpoint_engine.backend=naive: must be nccl or another channel between GPUs with",
        ),
        (
            [*SEPARATE, "actor_rollout_ref.rollout.nnodes=0"],
            "actor_rollout_ref.rollout.nnodes=0: must be 1 or more",
        ),
        (
            [*SEPARATE, "actor_rollout_ref.rollout.n_gpus_per_node=0"],
            "n_gpus_per_node=0: must be 1 or more",
        ),
        (
            [*SEPARATE, "actor_rollout_ref.hybrid_engine=False"],
            "actor_rollout_ref.hybrid_engine=False: must be True",
        ),
        (
            [*SEPARATE, "actor_rollout_ref.actor.ppo_mini_batch_size=8"],
            "data.train_batch_size=8: must be 16",
        ),
        (
            [
                "algorithm.rollout_correction.rollout_is=token",
                "actor_rollout_ref.rollout.calculate_log_probs=False",
            ],
            "rollout_is=token: must be null with "
            "actor_rollout_ref.rollout.calculate_log_probs=False",
        ),
        (
            [*SEPARATE, "trainer.exp_unit=group", "trainer.experience_ratio=0.8"],
            "trainer.experience_ratio=0.8: must leave 2 of data.train_batch_size=8 groups "
            "fresh with",
        ),
        (
            [
                *SEPARATE,
                *LENT,
                "trainer.exp_unit=group",
                "trainer.v1.separate_async.num_warmup_batches=0.25",
            ],
            "trainer.v1.separate_async.num_warmup_batches=0.25: must be at least "
            "trainer.experience_ratio=0.5 with",
        ),
        (
            ["trainer.exp_place=beside"],
            "policy_loss.off_policy_loss=shaped: must be likelihood with trainer.exp_place=beside",
        ),
        (
            ["actor_rollout_ref.actor.policy_loss.off_policy_loss=likelihood"],
            "trainer.exp_place=share: must be beside with",
        ),
        (
            [*REHEARSES, "actor_rollout_ref.rollout.multi_turn.enable=True"],
            "multi_turn.enable=True: must be False with trainer.exp_place=beside",
        ),
        (
            [
                "trainer.exp_unit=prefix",
                "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
            ],
            "default_agent_loop=tool_agent: must be single_turn_agent with trainer.exp_unit=prefix",
        ),
        (
            ["trainer.exp_unit=prefix", *FILTERED],
            "trainer.exp_unit=prefix: must be trajectory, group or prompt with",
        ),
        (
            [*FILTERED, "trainer.exp_unit=group", "trainer.exp_place=dead"],
            "trainer.exp_place=dead: must be share with algorithm.filter_groups.enable=True",
        ),
        (
            [*FILTERED, "trainer.exp_rescue=True"],
            "trainer.exp_rescue=True: must be False with algorithm.filter_groups.enable=True",
        ),
        (
            ["algorithm.use_kl_in_reward=True", "trainer.exp_missing_log_probs=one"],
            "algorithm.use_kl_in_reward=True: must be False with trainer.exp_missing_log_probs=one",
        ),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=null"],
            "algorithm.filter_groups.metric=null: must be reward, or a name",
        ),
        (
            [*FILTERED, "trainer.v1.sampler.custom_sampler.path=pkg://json"],
            "trainer.v1.sampler.custom_sampler.path=pkg://json: must be null with "
            "algorithm.filter_groups.enable=True",
        ),
        (
            [*FILTERED, "reward.reward_model.enable=True"],
            "reward.reward_model.enable_resource_pool=False: must be True with "
            "algorithm.filter_groups.enable=True",
        ),
    ],
)
def test_a_combination_that_cannot_work_is_named(files, overrides, line):
    with pytest.raises(ValueError) as caught:
        verify(configuration(files, *overrides))
    assert line in str(caught.value) and "\n" not in str(caught.value)
    name = line.partition("=")[0].rpartition(".")[2]
    assert re.search(rf"\b{name}\b", PAGE), "docs/modes.md does not say it"


def test_every_key_that_is_refused_with_replay_is_tested_and_passes_without(files):
    alone = [key for key, rule in values.table() if rule.get("replay") and "when" not in rule]
    for key in (
        key for key in alone if not key.startswith("trainer.")
    ):  # those in test_preflight.py
        assert any(wrong.startswith(f"{key}=") for wrong in REFUSED), key
    for wrong in set(REFUSED) - {f"{LOSS}=bypass_mode"}:
        verify(configuration(files, wrong, "trainer.experience=False"))


def test_what_users_register_passes_with_one_line_that_it_is_untested(files, caplog):
    import users_functions

    assert users_functions
    for wanted in ("algorithm.adv_estimator=users_estimator", f"{LOSS}=users_loss"):
        caplog.clear()
        verify(configuration(files, wanted))
        assert (
            caplog.messages[-1] == f"exgrpo: {wanted}: registered with verl, untested with replay"
        )


def test_every_estimator_of_verls_is_known_to_work_or_not_to():
    names = registered.estimators() - {"users_estimator"}  # which another test may have registered
    assert names == {*modes.ESTIMATORS, *modes.UNFIT_ESTIMATORS}


def test_what_is_supported_passes_and_stands_in_the_page(files):
    for estimator in modes.ESTIMATORS:
        verify(configuration(files, f"algorithm.adv_estimator={estimator}"))
    for loss in modes.FRESH_LOSSES:
        verify(configuration(files, f"{LOSS}={loss}"))
    others = [*FILTERED, "algorithm.rollout_correction.rollout_is=sequence"]
    verify(configuration(files, *others, "actor_rollout_ref.model.lora_rank=8"))
    rollout = "actor_rollout_ref.rollout"
    verify(
        configuration(
            files,
            f"{rollout}.multi_turn.enable=True",
            f"{rollout}.agent.default_agent_loop=tool_agent",
        )
    )
    verify(configuration(files, "trainer.exp_unit=group", "trainer.exp_rescue=True"))
    verify(configuration(files, "trainer.exp_unit=group", *FILTERED))
    for mode in (SEPARATE, ["trainer.v1.trainer_mode=colocate_async"]):
        verify(configuration(files, *mode, "trainer.exp_unit=group", "trainer.exp_rescue=True"))
    unbounded = [
        "trainer.v1.sampler.max_off_policy_threshold=null",
        "trainer.v1.separate_async.num_warmup_batches=0.5",
    ]
    verify(configuration(files, *SEPARATE, *LENT, *unbounded, "trainer.exp_unit=group"))
    dead = ["trainer.exp_unit=group", "trainer.exp_place=dead", "trainer.experience_ratio=0.9"]
    verify(
        configuration(
            files, *SEPARATE, *LENT, "trainer.v1.separate_async.num_warmup_batches=0.25", *dead
        )
    )
    names = set(re.findall(r"`(\w+)`", PAGE))
    assert {*modes.ESTIMATORS, *modes.FRESH_LOSSES, *modes.TRAINERS} - names == set()


@pytest.mark.parametrize("mode", modes.TRAINERS)
def test_verls_name_of_a_mode_becomes_our_trainers(files, mode):
    config = configuration(
        files, *(SEPARATE if mode == "separate_async" else [f"trainer.v1.trainer_mode={mode}"])
    )
    verify(config)
    resolve(config)
    assert config.trainer.v1.trainer_mode == modes.TRAINERS[mode]


@pytest.mark.parametrize(
    ("mode", "name"), [("sync", "GroupFilter"), ("colocate_async", "GroupFilterAsync")]
)
def test_verls_filter_has_a_buffer_of_ours_with_replay_alone(files, mode, name):
    keys = [f"trainer.v1.trainer_mode={mode}", *FILTERED]
    config, without = (
        configuration(files, *keys),
        configuration(files, *keys, "trainer.experience=False"),
    )
    resolve(config)
    resolve(without)
    sampler = config.trainer.v1.sampler
    assert (sampler.custom_sampler.name, sampler.sampler_kwargs.filter_groups_metric) == (
        name,
        "reward",
    )
    assert without.trainer.v1.sampler.custom_sampler.name is None


@pytest.mark.parametrize("loss", ["exgrpo", "gspo"])
def test_the_policy_loss_is_of_fresh_tokens_with_replay_and_of_all_without(files, loss):
    config = configuration(files, f"{LOSS}={loss}")
    without = configuration(files, f"{LOSS}={loss}", "trainer.experience=False")
    resolve(config)
    resolve(without)
    settings = config.actor_rollout_ref.actor.policy_loss
    assert (settings.loss_mode, settings.fresh_loss_mode) == ("exgrpo", loss)
    assert without.actor_rollout_ref.actor.policy_loss.loss_mode == {"exgrpo": "vanilla"}.get(
        loss, loss
    )
