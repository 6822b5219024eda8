"""trl_replay.py as a user starts it, and what reaches its buffer and its loss: every row of every group."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="requirements-cpu-trl.txt is not installed")
SCRIPT = Path(__file__).parents[2] / "exp_scripts" / "trl_replay.py"

# Runs three steps in a process of its own and compares what the hooks of TRL get with the buffer's contents.
WITNESS = """
import argparse, collections, sys
sys.path.insert(0, {folder!r})
import torch, trl_replay
added, losses, drawn = [], [], []
class Replay(trl_replay.Replay):
    def __init__(self, *args):
        super().__init__(*args)
        add, choose = self.buffer.add, self.buffer.sample
        self.buffer.add = lambda row: (added.append(row), add(row))[1]
        self.buffer.sample = lambda *a: (drawn.append(choose(*a)), drawn[-1])[1]
class Trainer(trl_replay.ReplayTrainer):
    def compute_loss(self, model, inputs, **more):
        losses.append({{name: value.clone() for name, value in inputs.items()}})
        return super().compute_loss(model, inputs, **more)
trl_replay.Replay, trl_replay.ReplayTrainer = Replay, Trainer
trl_replay.main(argparse.Namespace(steps=3, questions=4, seed=0, off=False))
K, step = trl_replay.K, 0
fresh_of = [K * 4 - len(batch) for batch in drawn]
fresh_of = [K * 4] * (3 - len(drawn)) + fresh_of
assert len(added) == sum(fresh_of), (len(added), fresh_of)
while added:
    rows = [added.pop(0) for _ in range(fresh_of[step])]
    counts = collections.Counter(row["prompt"] for row in rows)
    replayed = drawn[step - 3].prompts if step >= 3 - len(drawn) else []
    assert len(counts) == 4 and all(counts[q] == K - (q in replayed) for q in counts), counts
    inputs = losses[step]
    known = ~inputs["sampling_per_token_logps"].isnan().any(dim=1)
    assert int(known.sum()) == len(replayed), (step, known)
    if replayed:
        batch = drawn[step - 3]
        names = ("completion_ids", "sampling_per_token_logps")
        masks = inputs["completion_mask"][known].bool()
        rows = zip(*[[row[mask].tolist() for row, mask in zip(inputs[name][known], masks)] for name in names])
        wanted = [(tokens.tolist(), past.tolist()) for tokens, past in zip(batch.tokens, batch.log_probs)]
        assert sorted(rows) == sorted(wanted)
    assert abs(float(inputs["advantages"].sum())) < 1e-5
    step += 1
print("replayed", sum(map(len, drawn)))
"""


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def test_every_fresh_row_is_added_and_every_replayed_row_keeps_its_log_probs():
    done = python("-c", WITNESS.format(folder=str(SCRIPT.parent)))
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
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "trl_replay.py: steps=0: must be at least 1\n")
