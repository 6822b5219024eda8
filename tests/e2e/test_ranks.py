"""Two FSDP ranks, each with a vLLM of its own, train as one rank does: the same draws, and losses up to rounding."""

import pytest
from conftest import Run
from test_exact_resume import EXACT

RANKS = ["trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2", "ray_kwargs.ray_init.num_cpus=16"]
# verl deals the rows out to the ranks before it cuts mini-batches; with one update a step they hold the same rows
STEPS = ["trainer.total_training_steps=4", "trainer.save_freq=-1", "actor_rollout_ref.actor.ppo_mini_batch_size=8"]


@pytest.fixture
def runs(make_settings, tmp_path):
    def run(name, *more):
        arguments = ["exgrpo.main_mix_ppo", *make_settings(tmp_path), *STEPS, *EXACT, *more]
        started = Run(tmp_path, arguments, name)
        started.wait()
        return started

    return run("one"), run("two", *RANKS)


def test_two_ranks_draw_and_learn_as_one(runs):
    one, two = (run.metrics() for run in runs)
    assert sorted(two) == [1, 2, 3, 4]
    assert one[4]["experience/replayed_groups"] == two[4]["experience/replayed_groups"] == 4
    for step in range(1, 5):
        assert runs[0].drawn(step) == runs[1].drawn(step)
        for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "experience/ratio_mean"):
            assert two[step][name] == pytest.approx(one[step][name], rel=1e-3), (step, name)
