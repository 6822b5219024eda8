"""trl_replay.py as a user starts it, and what reaches its buffer and its loss: every row of every
group.
"""

import re
import sys
from pathlib import Path

import pytest
import watched

pytest.importorskip("trl", reason="requirements/cpu-trl.txt is not installed")
SCRIPT = Path(__file__).parents[2] / "exp_scripts" / "trl_replay.py"

# Runs three steps in a process of its own and compares what the hooks of TRL get with what replay
# was told.
WITNESS = """
import argparse
import torch, trl_replay
from exgrpo import ExperienceReplay
losses, chosen, observed = [], [], []
class Watched(ExperienceReplay):
    def choose(self, *args):
        chosen.append(super().choose(*args))
        return chosen[-1]
    def observe(self, step, groups, noted):
        observed.append((step, groups))
        return super().observe(step, groups, noted)
class Trainer(trl_replay.ReplayTrainer):
    def compute_loss(self, model, inputs, **more):
        losses.append({name: value.clone() for name, value in inputs.items()})
        return super().compute_loss(model, inputs, **more)
trl_replay.ExperienceReplay, trl_replay.ReplayTrainer = Watched, Trainer
trl_replay.main(argparse.Namespace(steps=3, questions=4, seed=0, off=False))
K = trl_replay.K
assert [step for step, _ in observed] == [1, 2, 3] and len(chosen) == len(losses) == 3
for inputs, choice, (step, groups) in zip(losses, chosen, observed):
    past = choice.trajectories
    assert len(groups) == 4 and {g.question for g in groups if g.replayed} == set(past)
    assert all(g.size == K - g.replayed for g in groups), groups
    assert all(success.step == step for g in groups for success in g.successes)
    known = ~inputs["sampling_per_token_logps"].isnan().any(dim=1)
    assert int(known.sum()) == len(past), (step, known)
    if past:
        names = ("completion_ids", "sampling_per_token_logps")
        masks = inputs["completion_mask"][known].bool()
        rows = zip(*[[row[mask].tolist() for row, mask in zip(inputs[name][known], masks)] for name in names])
        assert sorted(rows) == sorted((t.tokens.tolist(), t.log_probs.tolist()) for t in past.values())
    assert abs(float(inputs["advantages"].sum())) < 1e-5
print("replayed", sum(len(choice.trajectories) for choice in chosen))
"""  # noqa: E501


def python(*arguments, folder=None):
    return watched.run([sys.executable, *arguments], cwd=folder)


def test_every_fresh_row_is_observed_and_every_replayed_row_keeps_its_log_probs():
    done = python("-c", WITNESS, folder=SCRIPT.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(re.search(r"^replayed (\d+)$", done.stdout, re.MULTILINE)[1]) > 0


def test_two_steps_print_two_lines():
    done = python(str(SCRIPT), "--steps", "2", "--questions", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"before: accuracy 0\.\d{3} on 256 held-out questions", lines[0])
    assert [line.split()[:2] for line in lines[1:3]] == [["step", "1"], ["step", "2"]]
    assert lines[3].startswith("after: accuracy 0.")


def test_bad_input_is_refused_in_one_line():
    done = python(str(SCRIPT), "--steps", "0")
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "trl_replay.py: steps=0: must be at least 1\n",
    )
