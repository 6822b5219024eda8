"""A run that was killed and resumed is, to the last bit, the run that never stopped: draws, pool,
weights, metrics.

The same runs show what is replayed, what checkpoints hold and which are kept. Two FSDP ranks, each
with a vLLM of its own, train as one does: the same draws, and losses up to rounding.
"""

import filecmp
import json
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
import watched
from training_run import ROOT, K, Run
from transformers import AutoTokenizer

from exgrpo.experience.question_id import question_id

STEPS = 8
# vLLM adds up in another order when other requests share its batch: one at a time, and each with a
# seed of its own.
EXACT = [
    "trainer.rollout_seeded=True",
    "actor_rollout_ref.rollout.max_num_seqs=1",
    "actor_rollout_ref.rollout.enable_prefix_caching=False",
]
FEW = [
    "data.train_max_samples=16"
]  # so that epochs end in these steps, and retired questions leave the fresh ones
# verl deals the rows out to the ranks before it cuts mini-batches; with one update a step they hold
# the same rows.
# A run with two is killed and resumed to the bit in test_settings.py.
ONE_UPDATE = ["actor_rollout_ref.actor.ppo_mini_batch_size=8"]
RANKS = [
    "trainer.n_gpus_per_node=2",
    "ray_kwargs.ray_init.num_gpus=2",
    "ray_kwargs.ray_init.num_cpus=16",
]
MEASURES_TIME = ("timing", "perf/", "seconds", "throughput", "training/rollout_actor_probs")
ALWAYS = [
    "experience/fresh_score",
    "experience/replayed_groups",
    "experience/seconds",
    "actor/replayed_ess",
]


@pytest.fixture(scope="module")
def arguments(make_settings):
    def of(folder):
        steps = [
            f"trainer.total_training_steps={STEPS}",
            "trainer.save_freq=2",
            "trainer.max_optim_to_keep=2",
        ]
        return ["exgrpo.main_mix_ppo", *make_settings(folder), *steps, *FEW, *EXACT, *ONE_UPDATE]

    return of


@pytest.fixture(scope="module")
def unbroken(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    run = Run(folder, arguments(folder), "run")
    run.wait()
    return run


@pytest.fixture(scope="module")
def killed_twice(arguments, forks, tmp_path_factory):
    """A run that is killed after step 3, goes on from step 2, is killed after step 5, goes on from
    step 2 again, ends.

    It saves step 2 before the first kill, none before the second, and 4 to 8; ``copy`` in its
    folder is the pool of step 2 as the first kill left it.
    """
    folder = tmp_path_factory.mktemp("killed_twice")
    first = Run(folder, [*arguments(folder), forks], "first")
    first.kill_after(3)
    shutil.copytree(pool_of(folder, 2), folder / "copy")
    second = Run(folder, [*arguments(folder), forks, "trainer.save_freq=10"], "second")
    second.kill_after(5)
    third = Run(folder, [*arguments(folder), forks], "third")
    third.wait()
    return first, second, third


def test_two_steps_a_kill_and_six_are_eight(unbroken, killed_twice):
    first, second, third = killed_twice
    expected = unbroken.metrics()
    before, between, resumed = (run.metrics() for run in killed_twice)
    assert sorted(resumed) == list(range(3, STEPS + 1))
    assert sorted(between)[:3] == [3, 4, 5]
    for metrics_of in ({k: v for k, v in before.items() if k <= 3}, between, resumed):
        for step, metrics in metrics_of.items():
            assert timeless(metrics) == timeless(expected[step]), step
    for step in range(3, STEPS + 1):
        assert third.drawn(step) == unbroken.drawn(step)
    # a kill may have cut the last file of a run
    assert all(first.drawn(step) == unbroken.drawn(step) for step in (1, 2))
    assert all(second.drawn(step) == unbroken.drawn(step) for step in (3, 4))
    files, weights = same_checkpoint(unbroken, third)
    print(f"killed after steps 3 and 5: {files} pool files and {weights} weights are equal")


def same_checkpoint(unbroken, resumed):
    """Pool and weights of the last step are equal; how many of its files and weights."""
    theirs, ours = (
        run.folder / "checkpoints" / f"global_step_{STEPS}" for run in (unbroken, resumed)
    )
    names = sorted(
        path.relative_to(theirs) for path in (theirs / "experience").rglob("*") if path.is_file()
    )
    assert names == sorted(
        path.relative_to(ours) for path in (ours / "experience").rglob("*") if path.is_file()
    )
    equal = [
        name for name in names if name.name != "manifest.json"
    ]  # which has the run's random id
    assert filecmp.cmpfiles(theirs, ours, equal, shallow=False)[0] == equal
    assert facts(theirs / "experience") == facts(ours / "experience")
    manifest = json.loads((ours / "experience" / "manifest.json").read_text())
    assert manifest["counts"]["trajectories"] > 10 and manifest["replay_state"]["skipped"] > 0
    weights = [
        torch.load(next(path.glob("actor/model_*.pt")), weights_only=False)
        for path in (theirs, ours)
    ]
    assert all(torch.equal(plain(weights[0][name]), plain(weights[1][name])) for name in weights[0])
    return len(names), len(weights[0])


def test_sigterm_in_generation_update_and_save_ends_with_a_checkpoint_and_nothing_left(
    unbroken, arguments, tmp_path
):
    def run(name, begun):
        run = Run(tmp_path, arguments(tmp_path), name)
        run.watch.until(lambda: begun(run))
        os.kill(run.process.pid, signal.SIGTERM)
        code = run.watch.end()
        watched.until(lambda: not run._processes())  # some end a moment after their driver
        run.kill()
        said = run.log.read_text()
        assert code == 143 and "stopped by SIGTERM; the same command continues" in said, said[
            -2000:
        ]
        assert not folders(run)
        return run, (tmp_path / "checkpoints/latest_checkpointed_iteration.txt").read_text()

    def folders(run):
        root, name = Path(os.environ["TMPDIR"]), f"exgrpo-{run.process.pid}-*"
        return [*root.glob(name), *root.glob(f"xg-*/{name}")]

    def generates(run):
        return run.metrics_file.exists() and 2 in run.metrics()

    def updates(run):
        return any((folder / "unsaved").exists() for folder in folders(run))

    def saves(run):
        steps = (int(path.name[12:]) for path in tmp_path.glob("checkpoints/global_step_*"))
        return max(steps) > int(at_second)

    first, at_first = run("generation", generates)
    second, at_second = run("update", updates)
    third, at_third = run("save", saves)
    # the update may be over by the time that the signal is there: the next step is saved then
    assert (
        at_first == "2" and at_second in ("3", "4") and int(at_third) == int(at_second) // 2 * 2 + 2
    )
    last = Run(tmp_path, arguments(tmp_path), "last")
    last.wait()
    expected, parts = unbroken.metrics(), (first, second, third, last)
    assert sorted(step for part in parts for step in part.metrics()) == list(range(1, STEPS + 1))
    for part in parts:
        for step, metrics in part.metrics().items():
            assert timeless(metrics) == timeless(expected[step]), step
            assert part.drawn(step) == unbroken.drawn(step)
    same_checkpoint(unbroken, last)


def test_the_pool_is_untouched_by_the_resumes_and_the_lost_step_is_drawn_again_alike(killed_twice):
    """The same questions in the same places, the same trajectories replayed; all of them are in the
    pool.
    """
    _, second, third = killed_twice
    copy = third.folder / "copy"
    check_untouched(copy, pool_of(third.folder, 2))
    (prompts, responses), (prompts_again, responses_again) = second.drawn(3), third.drawn(3)
    assert prompts == prompts_again and len(prompts) == 8
    last = f"_{K - 1}_0"  # of a group's rows the one that replay puts in
    replayed = [
        key
        for key in responses
        if key.endswith(last) and is_stored(copy, prompts, key, responses[key])
    ]
    assert len(replayed) >= 2
    assert {key: responses[key] for key in replayed} == {
        key: responses_again[key] for key in replayed
    }


def test_checkpoints_are_kept_as_asked_and_pools_go_with_them(killed_twice):
    """verl keeps two checkpoints a process: the pools of those it deleted went with them, and no
    other.
    """
    folder = killed_twice[-1].folder
    for kept in ("actor", "experience"):
        left = sorted(
            int(path.parent.name.split("_")[-1]) for path in folder.glob(f"checkpoints/*/{kept}")
        )
        assert left == [2, 6, STEPS], kept
    states = {path.parts[-3] for path in folder.glob("checkpoints/*/actor/optim_*")}
    assert states == {
        "global_step_6",
        f"global_step_{STEPS}",
    }  # step 2, where it went on, has lost them since


def test_half_of_the_questions_are_replayed_in_whole_batches(killed_twice):
    """Batches stay whole, half of the questions are replayed once mixing has begun, and the loss
    sees them.
    """
    first, _, third = killed_twice
    steps = first.metrics() | third.metrics()
    assert sorted(steps) == list(range(1, STEPS + 1))
    for metrics in steps.values():
        assert all(key in metrics for key in ALWAYS)
    # the first mixed step is collected, and there is nothing to replay in it
    mixed = [steps[step] for step in sorted(steps) if steps[step]["experience/mixing"]][1:]
    assert len(mixed) >= 4
    assert all(metrics["experience/replayed_groups"] == 4 for metrics in mixed)
    assert all(metrics["actor/replayed_tokens_share"] > 0 for metrics in mixed)
    assert all(0 < metrics["actor/replayed_ess"] <= 1 + 1e-6 for metrics in mixed)
    assert all(
        metrics["experience/chosen_score"] <= metrics["experience/passed_over_score"]
        for metrics in mixed
    )
    assert all(
        metrics["training/rollout_probs_diff_max"] < 1e-3 for metrics in steps.values()
    )  # of fresh rows alone
    assert all(
        metrics["critic/score/mean"] >= metrics["experience/fresh_score"] for metrics in mixed
    )


def test_what_was_saved_is_what_the_metrics_say_and_was_sampled(killed_twice):
    third = killed_twice[-1]
    metrics = third.metrics()[STEPS]
    table = read_pool(pool_of(third.folder, STEPS))
    assert len(table) == metrics["experience/pool_trajectories"] > 0
    assert table["question"].nunique() == metrics["experience/pool_questions"]
    assert (table["tokens"].map(len) == table["log_probs"].map(len)).all()
    assert table["step"].between(1, STEPS).all()
    texts = load_tokenizer().batch_decode([list(tokens) for tokens in table["tokens"]])
    assert all(
        text.endswith("<|im_end|>") for text in texts
    )  # the end of the answer is a sampled token like any other


def test_two_ranks_draw_and_learn_as_one(arguments, unbroken, forks, tmp_path):
    steps = [forks, "trainer.total_training_steps=4", "trainer.save_freq=-1"]
    two_ranks = Run(tmp_path, [*arguments(tmp_path), *steps, *RANKS], "run")
    one, two = unbroken.metrics(), two_ranks.wait()
    assert sorted(two) == [1, 2, 3, 4]
    assert one[4]["experience/replayed_groups"] == two[4]["experience/replayed_groups"] == 4
    for step in range(1, 5):
        assert unbroken.drawn(step) == two_ranks.drawn(step)
        for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "experience/ratio_mean"):
            assert two[step][name] == pytest.approx(one[step][name], rel=1e-3), (step, name)


def facts(pool):
    """A manifest without the run's id."""
    manifest = json.loads((pool / "manifest.json").read_text())
    manifest.pop("checksum")
    manifest["replay_state"].pop("run")
    return manifest


def pool_of(folder, step):
    return folder / "checkpoints" / f"global_step_{step}" / "experience"


def check_untouched(copy, saved):
    """Every file of the copy is in the pool, byte for byte."""
    names = [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]
    assert names and filecmp.cmpfiles(copy, saved, names, shallow=False)[0] == names


def is_stored(saved, prompts, key, response):
    """Whether a group's last row is a success its question has in the pool, word for word: it was
    replayed.
    """
    table = read_pool(saved)
    tokens = table[table["question"] == question_id(prompts[key.split("_")[0]])]["tokens"]
    return response in load_tokenizer().batch_decode(
        [list(t) for t in tokens], skip_special_tokens=True
    )


def read_pool(saved):
    """By the line of docs/checkpoints.md."""
    return pd.read_parquet(f"{saved}/trajectories").merge(pd.read_parquet(f"{saved}/live.parquet"))


def load_tokenizer():
    return AutoTokenizer.from_pretrained(ROOT / "exp_scripts" / "quickstart" / "base_model")


def plain(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def timeless(metrics):
    """What does not measure time."""
    return {
        name: value
        for name, value in metrics.items()
        if not any(word in name for word in MEASURES_TIME)
    }
