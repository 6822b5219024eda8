"""A run that was killed and resumed is, to the last bit, the run that never stopped: draws, pool, weights, metrics.

Its pool is on a disk; that such a pool decides as one in memory is shown in tests/unit/test_disk_bodies.py.
"""

import filecmp
import json

import pytest
import torch
from conftest import Run

STEPS = 12
# vLLM adds up in another order when other requests share its batch: one at a time, and each with a seed of its own.
EXACT = [
    "trainer.rollout_seeded=True",
    "actor_rollout_ref.rollout.max_num_seqs=1",
    "actor_rollout_ref.rollout.enable_prefix_caching=False",
]
FEW = ["data.train_max_samples=24"]  # so that epochs end in these steps, and retired questions leave the fresh ones
MEASURES_TIME = ("timing", "perf/", "seconds", "throughput", "training/rollout_actor_probs")


@pytest.fixture(scope="module")
def arguments(make_settings, tmp_path_factory):
    def of(folder):
        steps = [f"trainer.total_training_steps={STEPS}", "trainer.save_freq=5", "trainer.max_optim_to_keep=2"]
        disk = [f"trainer.experience_disk={folder}/disk", "trainer.experience_max_disk_bytes=1000000"]
        return ["exgrpo.main_mix_ppo", *make_settings(folder), *steps, *disk, *FEW, *EXACT]

    return of


@pytest.fixture(scope="module")
def unbroken(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    run = Run(folder, arguments(folder), "run")
    run.wait()
    return run


@pytest.fixture(scope="module")
def killed_twice(arguments, tmp_path_factory):
    """A run that is killed after step 5, goes on, is killed after step 8, goes on from step 5 again, and ends."""
    folder = tmp_path_factory.mktemp("killed_twice")
    first = Run(folder, arguments(folder), "first")
    first.kill_after(5)
    second = Run(folder, arguments(folder), "second")
    second.kill_after(8)
    third = Run(folder, arguments(folder), "third")
    third.wait()
    return first, second, third


def test_five_steps_a_kill_and_seven_are_twelve(unbroken, killed_twice):
    _, second, third = killed_twice
    expected = unbroken.metrics()
    before, between, resumed = (run.metrics() for run in killed_twice)
    assert sorted(resumed) == list(range(6, STEPS + 1))
    assert sorted(between)[:3] == [6, 7, 8]
    for metrics_of in ({k: v for k, v in before.items() if k <= 5}, between, resumed):
        for step, metrics in metrics_of.items():
            assert timeless(metrics) == timeless(expected[step]), step
    for step in range(6, STEPS + 1):
        assert third.drawn(step) == unbroken.drawn(step)
    assert all(second.drawn(step) == unbroken.drawn(step) for step in (6, 7))  # the kill may have cut step 8's file
    theirs, ours = (run.folder / "checkpoints" / f"global_step_{STEPS}" for run in (unbroken, third))
    names = sorted(path.relative_to(theirs) for path in (theirs / "experience").rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(ours) for path in (ours / "experience").rglob("*") if path.is_file())
    assert filecmp.cmpfiles(theirs, ours, names, shallow=False)[0] == names
    manifest = json.loads((ours / "experience" / "manifest.json").read_text())
    assert manifest["counts"]["trajectories"] > 10 and manifest["replay_state"]["skipped"] > 0
    states = {path.parts[-3] for path in third.folder.glob("checkpoints/*/actor/optim_*")}
    assert states == {"global_step_10", f"global_step_{STEPS}"}  # step 5, where it went on, has lost them since
    weights = [torch.load(next(path.glob("actor/model_*.pt")), weights_only=False) for path in (theirs, ours)]
    assert all(torch.equal(plain(weights[0][name]), plain(weights[1][name])) for name in weights[0])
    assert not list((second.folder / "disk").iterdir())
    print(f"killed after steps 5 and 8: {len(names)} pool files and {len(weights[0])} weights are equal")


def plain(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def timeless(metrics):
    """What does not measure time."""
    return {name: value for name, value in metrics.items() if not any(word in name for word in MEASURES_TIME)}
