"""A simulated world for equal_runs.py: what replay draws, chooses and keeps, without a model.

Questions have a probability of being solved that rises by and by; responses are random tokens.
Every setting plays 40 steps, saved after 20 and continued from what was saved.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from exgrpo import ExperienceConfig, ExperienceReplay, PoolFolder, RolloutGroup, Trajectory
from exgrpo.experience.trajectory_selector import TokenScores
from exgrpo.saved.pool_files import read_groups, read_manifest

K, BATCH, STEPS, QUESTIONS = 4, 8, 40, 60
SETTINGS = {
    "as published": {"experience_start_sratio": 0.3},
    "highest perplexity, within bounds": {
        "exp_metric": "ppl",
        "exp_select_mode": "argmax",
        "exp_eviction": "lowest_entropy",
        "exp_bucket_manager": "linear",
        "experience_lbound": 1,
        "experience_max_per_question": 2,
    },
    "at random, in flight": {
        "exp_metric": "random",
        "exp_bucket_manager": False,
        "experience_ratio": 0.75,
    },
    "few and young": {
        "experience_max_trajectories": 30,
        "experience_max_age": 6,
        "exp_eviction": "oldest",
        "exp_sample_range": "last_half",
    },
    "drift and rescue": {"exp_max_drift": 0.2, "exp_rescue": True},
    "mean reward": {"exp_difficulty": "mean_reward", "exp_retirement": "never"},
    "spread of rewards": {"exp_difficulty": "reward_std", "exp_bucket_manager": "sqrt"},
    "past groups": {"exp_unit": "group", "exp_max_drift": 0.2, "experience_max_groups": 16},
    "past groups for dead ones": {"exp_unit": "group", "exp_place": "dead"},
    "questions alone": {"exp_unit": "prompt", "exp_bucket_manager": "linear_clip"},
}


def record():
    """name -> what happened in a step, and what was saved at the end, of each setting."""
    found = {}
    for name, settings in SETTINGS.items():
        given = {"rollout_n": K, "experience_start_sratio": 0.0, "exp_seed": 3, **settings}
        with tempfile.TemporaryDirectory() as folder:
            played = _play(ExperienceConfig(**given), Path(folder), "flight" in name)
            found |= {f"{name}: {key}": value for key, value in played.items()}
    return found


def saved(pool):
    """Every column of a saved pool, and its manifest without checksums and the id of the run."""
    found = {}
    for path in sorted(pool.rglob("*.parquet")):
        for column in (table := pq.read_table(path, partitioning=None)).column_names:
            cells = repr(table[column].to_pylist())
            values = re.sub("rules [0-9a-f]{8}", "rules", cells).encode()  # the grader's own code
            kept = f"{table.num_rows} rows, {hashlib.sha256(values).hexdigest()[:16]}"
            found[f"pool {path.relative_to(pool)} {column}"] = kept
    manifest = json.loads((pool / "manifest.json").read_text())
    del manifest["checksum"], manifest["sha256"]
    for segment in manifest["segments"]:
        del segment["sha256"]
    (manifest["replay_state"] or {}).pop("run", None)
    return found | {f"pool manifest {key}": value for key, value in manifest.items()}


def _play(config, folder, in_flight):
    names = [f"{number:032x}" for number in range(QUESTIONS)]
    world, found = _World(names), {}
    replay, disk, under_way = ExperienceReplay(config, names), PoolFolder(), []
    for step in range(1, STEPS + 1):
        if replay.exhausted:
            break
        out = [name for drawn in under_way for name in (*drawn.replayed, *drawn.fresh)]
        drawn = replay.draw(step, BATCH, world.next_question, out if in_flight else None)
        found[f"step {step:2} draw"] = [
            [*drawn.replayed],
            [*drawn.fresh],
            drawn.mixed,
            [_facts(each) for each in drawn.stored],
        ]
        under_way.append(drawn)
        if in_flight and len(under_way) < 3:
            continue
        found |= _learn(replay, world, under_way.pop(0), step)
        if step == STEPS // 2:
            disk.save(replay.pool, folder / "half", step, {}, replay.state(), replay.groups)
            pool = PoolFolder().load(folder / "half", config, step, {})
            replay, disk = ExperienceReplay(config, names, pool), PoolFolder()
            replay.restore(read_manifest(folder / "half")["replay_state"])
            replay.groups.hold(read_groups(folder / "half"))
    disk.save(replay.pool, folder / "end", step, {}, replay.state(), replay.groups)
    return found | saved(folder / "end")


def _learn(replay, world, drawn, step):
    """The rest of a step, from the choice on."""
    choice = replay.choose(replay.candidates(drawn.replayed), world.look)
    admitted = replay.admit(drawn.stored, world.look)
    groups = [world.answer(name, step, True) for name in drawn.replayed]
    groups += [world.answer(name, step, False) for name in drawn.fresh]
    for_dead = replay.stand_ins({each.question: each.rewards for each in groups})
    admitted += replay.admit([*for_dead.values()], world.look)
    failed = replay.rescuable(each.question for each in groups if not each.solved + each.replayed)
    rescue = replay.choose(replay.candidates(failed), world.look)
    noted = choice.metrics(step) | {f"rescue_{k}": v for k, v in rescue.metrics(step).items()}
    measured = replay.observe(step, groups, noted)
    return {
        f"step {step:2} choice": {name: _facts(one) for name, one in choice.trajectories.items()},
        f"step {step:2} rescue": {name: _facts(one) for name, one in rescue.trajectories.items()},
        f"step {step:2} past groups": [each.question for each in admitted],
        f"step {step:2} for dead groups": {name: _facts(each) for name, each in for_dead.items()},
        **{f"step {step:2} {name}": value for name, value in measured.items()},
    }


def _facts(recorded):
    """Of a trajectory, or of a past group."""
    if hasattr(recorded, "rollouts"):
        return [recorded.question, recorded.step, *map(_facts, recorded.rollouts)]
    return [recorded.step, recorded.entropy, recorded.reward, recorded.tokens.tolist()]


class _World:
    def __init__(self, names):
        self.rng = np.random.default_rng(5)
        self.ability = dict(zip(names, self.rng.normal(-0.5, 1.5, len(names)), strict=True))
        self.order, self.next = self.rng.permutation(names).tolist(), 0

    def next_question(self):
        place = self.next % len(self.order)
        self.next += 1
        return self.order[place], place == 0 and self.next > 1

    def look(self, candidates):
        """The current policy: some drift from what was recorded."""
        return [
            TokenScores(
                self.rng.gamma(4, 0.1, len(one)),
                one.log_probs + self.rng.normal(0, 0.4, len(one)).astype(np.float32),
            )
            for _, one in candidates
        ]

    def answer(self, question, step, replayed):
        """K rollouts, or K - 1 beside a replayed one; each now and then one is lost."""
        self.ability[question] += 0.08
        size = K - replayed - int(self.rng.random() < 0.1)
        right = self.rng.random(size) < 1 / (1 + np.exp(-self.ability[question]))
        rewards = np.where(right, self.rng.uniform(0.6, 1, size).round(2), 0.0).tolist()
        rollouts = [self._rollout(step, reward) for reward in rewards]
        return RolloutGroup(
            question,
            size,
            successes=tuple(each for each in rollouts if each.reward > 0),
            failures=tuple(each for each in rollouts if not each.reward),
            replayed=int(replayed),
            rewards=tuple(rewards),
            prompt=np.arange(3, dtype=np.int32),
        )

    def _rollout(self, step, reward):
        length = int(self.rng.integers(1, 9))
        tokens, log_probs = self.rng.integers(0, 50, length), -self.rng.exponential(0.3, length)
        return Trajectory(tokens, log_probs, step, float(self.rng.gamma(4, 0.1)), reward=reward)
