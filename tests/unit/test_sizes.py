"""Numbers of GPUs that do not fit are refused before Ray starts; verl notices after the first
step's generation.
"""

import re

import pytest
from composed import configuration

from exgrpo.preflight.checks import verify

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
PREFIXES = [f"{ACTOR}{prefix}ulysses_sequence_parallel_size" for prefix in ("", "fsdp_config.")]
SDPA = "actor_rollout_ref.model.override_config.attn_implementation=sdpa"


@pytest.fixture
def run(files):
    """8 rollouts of each of 16 questions, a mini-batch of 8."""

    def check(nodes, gpus, *overrides):
        sizes = [
            f"trainer.nnodes={nodes}",
            f"trainer.n_gpus_per_node={gpus}",
            f"{ACTOR}ppo_mini_batch_size=8",
        ]
        verify(configuration(files, *sizes, *overrides))

    return check


def test_numbers_that_fit(run):
    run(1, 8)
    run(8, 8)
    run(2, 8, f"{ROLLOUT}tensor_model_parallel_size=4", f"{ROLLOUT}data_parallel_size=2")


@pytest.mark.parametrize(
    ("nodes", "gpus", "overrides", "said"),
    [
        (
            3,
            8,
            [],
            f"{ACTOR}ppo_mini_batch_size=8: 64 rows with rollout.n=8; must be a multiple of "
            "the 24 data-parallel",
        ),
        (
            1,
            6,
            [f"{ACTOR}ppo_mini_batch_size=12", f"{ROLLOUT}tensor_model_parallel_size=4"],
            "n_gpus_per_node=6: must be",
        ),
        (
            1,
            8,
            [f"{each}=3" for each in PREFIXES],
            f"must be a multiple of 3 GPUs, by {PREFIXES[0]}=3",
        ),
        (1, 8, [f"{ACTOR}fsdp_config.fsdp_size=3"], "must divide the 8 GPUs of"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(run, nodes, gpus, overrides, said):
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        run(nodes, gpus, *overrides)
    assert f"trainer.nnodes={nodes} trainer.n_gpus_per_node={gpus}" in str(caught.value)


def test_a_share_of_less_than_one_question_is_refused(run):
    run(1, 8, "trainer.experience_ratio=0")
    run(1, 8, "trainer.experience_ratio=0.125")
    run(1, 8, "trainer.experience_ratio=0.1", "trainer.experience=False")
    said = (
        "trainer.experience_ratio=0.1: must be 0, or at least 1 question of data.train_batch_size=8"
    )
    with pytest.raises(ValueError, match=said):
        run(1, 8, "trainer.experience_ratio=0.1")


def test_rollout_servers_of_their_own_have_their_own_gpus(files):
    more = [
        "trainer.v1.trainer_mode=separate_async",
        f"{ROLLOUT}nnodes=1",
        f"{ROLLOUT}n_gpus_per_node=3",
    ]
    more += [f"{ROLLOUT}tensor_model_parallel_size=2", f"{ROLLOUT}checkpoint_engine.backend=nccl"]
    more += [
        "trainer.n_gpus_per_node=8",
        f"{ACTOR}ppo_mini_batch_size=8",
        "data.train_batch_size=8",
    ]
    more += ["trainer.v1.separate_async.parameter_sync_step=1"]
    with pytest.raises(
        ValueError, match=r"rollout\.n_gpus_per_node=3: must be a multiple of 2 GPUs"
    ):
        verify(configuration(files, *more))
