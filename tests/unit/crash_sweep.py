"""Cuts a training's checkpoint writer off before every system call of it that changes the disk, and
resumes each time.

    python tests/unit/crash_sweep.py

It prints a line a scenario and the total, and fails at a state that is neither, or if a group that
was kept in the ledger is generated again.

The writer is the real one, pool and all; verl's own part (weights, data.pt, marker in place,
rotation) is played by `verl`. It is a forked process that stops itself just before it saves; from
there its system calls are followed with ptrace (x86-64 Linux). At the entry of each that counts it
is held, and the disk copied, links as links: that is what a SIGKILL leaves there, after which a run
resumes from the copy.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import mmap
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401  (what they import is imported before the forks)
from saved_pools import archive

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl import checkpoints, old_checkpoints
from exgrpo.saved import pool_segments
from exgrpo.saved.ledger import Finished, Ledger

CONFIG = ExperienceConfig(rollout_n=8, experience_max_trajectories=60, experience_start_sratio=0)
KEEP = 2
IDENTITY = {"data_fingerprint": "f", "tokenizer": "t", "questions": 30}
GROUPS = 12  # of a step
QUESTIONS = [f"q{number}" for number in range(30)]
# write, pwrite64, writev, ftruncate, sendfile, copy_file_range, creat, mkdir(at), rename(at, at2),
# link(at), unlink(at) and rmdir, fsync, fdatasync; openat if it may change something
TOUCHES_DISK = {1, 18, 20, 77, 40, 326, 85, 83, 258, 82, 264, 316, 86, 265, 87, 263, 84, 74, 75}
OPENAT, CHANGING = 257, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
TRACEME, PEEKUSER, SYSCALL, SETOPTIONS = 0, 3, 24, 0x4200
ORIG_RAX, RDX, GOOD = 8 * 15, 8 * 12, 0x1  # PTRACE_O_TRACESYSGOOD
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.restype, ptrace.argtypes = (
    ctypes.c_long,
    [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p],
)


class Trainer:
    """What the trainer does with checkpoints, a few questions a step."""

    def __init__(self, root):
        self.root = root

        class Node(dict):
            resume_mode, default_local_dir = "auto", str(root)

        self.step, self.replay, self.disk, _ = checkpoints.open_experience(
            Node(), CONFIG, IDENTITY, QUESTIONS
        )
        if self.step:
            weights = (checkpoints.step_folder(root, self.step) / "actor" / "weights").read_text()
            assert weights == str(self.step), (
                f"pool of step {self.step} with weights of step {weights}"
            )
        self.ledger, self.generated = Ledger(root / "finished_groups.ledger", 10**6), 0
        self.ledger.open({"checkpoint": str(self.step)})
        self.kept = bytearray(1)  # groups of the step that are there
        # as if this very process had written what is there
        self.rotation, self.saved = old_checkpoints.Rotation(root, KEEP), list[Path]()
        for step in reversed(checkpoints.saved_steps(root)):
            if (checkpoints.step_folder(root, step) / "actor").is_dir() and step <= self.step:
                self.rotation.make_room(step)
                self.saved.append(checkpoints.step_folder(root, step) / "actor")

    def train(self):
        """One step, the same whoever does it."""
        self.step += 1
        rng = np.random.default_rng(self.step)
        self.replay.pool.choose(3, self.replay.rng)
        groups, self.generated, self.kept[0] = [], 0, 0
        for position, question in enumerate(rng.permutation(30)[:GROUPS]):
            solved = int(rng.integers(0, 9))
            successes = [
                Trajectory(rng.integers(0, 9, 5), -rng.random(5), self.step, rng.random())
                for _ in range(solved)
            ]
            groups.append(RolloutGroup(f"q{question}", 8, tuple(successes)))
            data = b"".join(each.log_probs.tobytes() for each in successes)
            found = self.ledger.take(self.step, position, f"q{question}")
            assert found in (None, data), "a group came back as another"
            if found is None:
                self.ledger.keep(self.step, [Finished(position, f"q{question}", data)])
                self.generated += 1
            self.kept[0] = position + 1
        self.replay.observe(self.step, groups, {})

    def save(self):
        """As ExperienceMixPPOTrainer._save_checkpoint."""
        folder = checkpoints.step_folder(self.root, self.step)
        self.disk.save(
            self.replay.pool, folder / checkpoints.POOL, self.step, IDENTITY, self.replay.state()
        )
        self.rotation.make_room(self.step)
        self.verl(folder)
        self.ledger.begin({"checkpoint": str(self.step)})

    def verl(self, folder):
        """verl 0.9.1 with max_actor_ckpt_to_keep: room is made first, the marker is written in
        place.
        """
        while len(self.saved) >= KEEP:
            shutil.rmtree(self.saved.pop(0))
        (folder / "actor").mkdir(exist_ok=True)
        self.saved.append(folder / "actor")
        for part in ("model", "optim", "extra_state"):
            archive(folder / "actor" / f"{part}_world_size_1_rank_0.pt", str(self.step))
        (folder / "actor" / "weights").write_text(str(self.step))
        archive(folder / "data.pt", str(self.step))
        (self.root / checkpoints.MARKER).write_text(str(self.step))

    def digest(self):
        """Everything a resumed run goes by."""
        held = self.replay.pool.snapshot()
        facts = [list(held.state), held.history, self.replay.pool.metrics(), self.replay.state()]
        rows = [
            (s, q, t.key, t.log_probs.tobytes(), t.step, t.entropy)
            for s, q, t in held.records(0, 10**9)
        ]
        return self.step, hashlib.sha256(repr((facts, rows)).encode()).hexdigest()


def forked(work):
    """What `work` returns in a process of its own: threads that pyarrow starts there do not outlive
    it.
    """
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        try:
            result = ("ok", work())
        except BaseException as error:
            result = ("failed", repr(error))
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        kind, value = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if kind == "failed":
        raise AssertionError(value)
    return value


def cut_off(root, step, at, kept, trains=False):
    """Save `step` in a child (`trains`: train and save it), held before each call for `at(its
    number)`; killed where that is false.
    """
    if (child := os.fork()) == 0:
        trainer = advance(root, step - trains)
        if ptrace(TRACEME, 0, None, None) != 0:
            os._exit(3)
        trainer.kept = kept
        os.kill(os.getpid(), signal.SIGSTOP)
        if trains:
            trainer.train()
        trainer.save()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        raise RuntimeError(
            f"the writer ended before it saved, status {status}; ptrace may be forbidden here"
        )
    ptrace(SETOPTIONS, child, None, GOOD)
    seen, entering = 0, True
    while True:
        ptrace(SYSCALL, child, None, None)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the save failed"
            return
        if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
            if entering and touches_disk(child):
                seen += 1
                if not at(seen):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return
            entering = not entering


def touches_disk(child):
    call = ptrace(PEEKUSER, child, ORIG_RAX, None)
    return call in TOUCHES_DISK or (
        call == OPENAT and bool(ptrace(PEEKUSER, child, RDX, None) & CHANGING)
    )


def resumed(root, until):
    """What a run resumes to after the kill, and what comes of it: it trains to the step and saves
    each; how many groups its last step generated.
    """

    def work():
        trainer = Trainer(root)
        state = trainer.digest()
        while trainer.step < until:
            trainer.train()
            trainer.save()
        return state, Trainer(root).digest(), trainer.generated

    return forked(work)


def copy(source, target):
    """All of a folder in place of another, with its links."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", source, target], check=True)


def segments(root, step):
    return len(
        list((checkpoints.step_folder(root, step) / checkpoints.POOL / "trajectories").iterdir())
    )


def sweep(name, before, step, again, compacts, trains=False):
    """All cut points of the save of `step`; `again`: the second try at it, over what a killed one
    has left; `trains`: of its groups too.
    """
    kept = mmap.mmap(-1, 1)  # written by the child that is cut off
    kept[0] = 0 if trains else GROUPS
    with tempfile.TemporaryDirectory() as parent:
        pristine, root = Path(parent) / "pristine", Path(parent) / "root"
        pristine.mkdir()
        _, old, _ = resumed(pristine, before)
        if again:
            cut_off(pristine, step, lambda call: call < 40, kept)
        copy(pristine, root)
        _, new, _ = resumed(root, step)
        assert not compacts or segments(root, step) <= segments(root, before), (
            "nothing was compacted"
        )
        counts = {old: 0, new: 0}

        def resumes(call):
            copy(pristine, root)
            state, last, generated = resumed(root, step)
            assert state in counts, (
                f"{name}: after a kill at call {call} step {state[0]} is neither neighbour"
            )
            counts[state] += 1
            assert state == new or generated <= GROUPS - kept[0], (
                f"{name}: after a kill at call {call} kept groups were generated again"
            )
            assert last == new, f"{name}: after a kill at call {call} the run does not go on alike"
            return True

        cut_off(pristine, step, resumes, kept, trains)
        cuts = sum(counts.values())
        print(
            f"{name}: {cuts} of {cuts} cut points resume, {counts[old]} to the old state, "
            f"{counts[new]} to the new"
        )
        return cuts


def advance(root, step):
    trainer = Trainer(root)
    while trainer.step < step:
        trainer.train()
    return trainer


# what is swept: before, step, again, compacts, trains
SWEEPS = {
    "second try over a killed one": (8, 9, True, True),
    "checkpoint with compaction and rotation": (8, 9, False, True),
    "checkpoint with links": (2, 3, False, False),
    "first checkpoint": (0, 1, False, False),
    "groups of a step, then its checkpoint": (2, 3, False, False, True),
}


def main():
    pool_segments.SEGMENT_BYTES, pool_segments.MAX_SMALL = 1000, 3
    logging.disable()
    # forked: ptrace, and the settings above; one process for each core
    with ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), multiprocessing.get_context("fork")
    ) as processes:
        sweeps = [processes.submit(sweep, name, *scenario) for name, scenario in SWEEPS.items()]
        total = sum(done.result() for done in sweeps)
    print(f"{total} of {total} cut points resume to one of the two neighbouring checkpoints")


if __name__ == "__main__":
    sys.exit(main())
