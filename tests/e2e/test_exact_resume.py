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


@pytest.mark.parametrize("killed_after", [5, 8])
def test_five_steps_a_kill_and_seven_are_twelve(unbroken, arguments, tmp_path, killed_after):
    first = Run(tmp_path, arguments(tmp_path), "first")
    first.kill_after(killed_after)
    steps = first.metrics()
    second = Run(tmp_path, arguments(tmp_path), "second")
    resumed = second.wait()
    assert sorted(resumed) == list(range(6, STEPS + 1))

    expected = unbroken.metrics()
    for step, metrics in ({k: v for k, v in steps.items() if k <= 5} | resumed).items():
        assert timeless(metrics) == timeless(expected[step]), step
    for step in range(6, STEPS + 1):
        assert second.drawn(step) == unbroken.drawn(step)
    theirs, ours = (run.folder / "checkpoints" / f"global_step_{STEPS}" for run in (unbroken, second))
    names = sorted(path.relative_to(theirs) for path in (theirs / "experience").rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(ours) for path in (ours / "experience").rglob("*") if path.is_file())
    assert filecmp.cmpfiles(theirs, ours, names, shallow=False)[0] == names
    manifest = json.loads((ours / "experience" / "manifest.json").read_text())
    assert manifest["counts"]["trajectories"] > 10 and manifest["replay_state"]["skipped"] > 0
    states = {path.parts[-3] for path in second.folder.glob("checkpoints/*/actor/optim_*")}
    assert states == {"global_step_10", f"global_step_{STEPS}"}  # step 5, where it went on, has lost them since
    weights = [torch.load(next(path.glob("actor/model_*.pt")), weights_only=False) for path in (theirs, ours)]
    assert all(torch.equal(plain(weights[0][name]), plain(weights[1][name])) for name in weights[0])
    assert not list((second.folder / "disk").iterdir())
    print(f"killed after step {killed_after}: {len(names)} pool files and {len(weights[0])} weights are equal")


def plain(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def timeless(metrics):
    """What does not measure time."""
    return {name: value for name, value in metrics.items() if not any(word in name for word in MEASURES_TIME)}
