"""A few steps of replay in a small world, judged by two graders, saved as a run's checkpoint."""

import numpy as np

from exgrpo import ExperienceConfig, RolloutGroup, Trajectory
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.question_id import question_id, tokenizer_fingerprint
from exgrpo.experience.replayed_group import Effect
from exgrpo.experience.trajectory_selector import TokenScores
from exgrpo.provenance import Provenance
from exgrpo.saved.pool_folder import PoolFolder

ROLLOUT_N = 4
CONFIG = ExperienceConfig(rollout_n=ROLLOUT_N, experience_start_sratio=0.0)
GOOD = Provenance("full", "rules 11111111, math-verify 0.9.0, require_think=False", "math_verify")
FAULTY = GOOD.by("decimals")
EFFECT = Effect(1.5, 0.5, 3.0, 0.75, 0.5, 0.5, 0.25, 0.125)
STEPS = 6


def texts(count=8):
    return [f"{n}+1+1+1+1" for n in range(count)]


def look(candidates):
    """The current policy: half the recorded entropy, and a log-prob of -1 each."""
    return [
        TokenScores(np.full(len(each), each.entropy / 2), np.full(len(each), -1.0))
        for _, each in candidates
    ]


def play(encode, names, steps=STEPS):
    """A replay object after some steps. In step s, question i has 1 + (i + s) % 4 successes; 4
    retire it.

    Args:
        encode: text -> tokens.
    """
    replay = ExperienceReplay(CONFIG, names)
    for step in range(1, steps + 1):
        order = iter(names[(step - 1) % 2 :] + names[: (step - 1) % 2])
        drawn = replay.draw(step, 4, lambda order=order: (next(order), False))
        for each in replay.choose(replay.candidates(drawn.replayed), look).groups:
            each.effect = EFFECT
        groups = [
            group(encode, names.index(name), name, step) for name in [*drawn.fresh, *drawn.replayed]
        ]
        replay.observe(step, groups, {})
    return replay


def group(encode, i, name, step):
    judges = [FAULTY if step in (2, 3) and n == 0 else GOOD for n in range(ROLLOUT_N)]
    solved = 1 + (i + step) % 4 if step > 4 else 1 + (i + step) % 3
    answer = 4 + i
    rollouts = tuple(
        Trajectory(
            encode(rf"{step}{n}\boxed{{{answer + (judges[n] is FAULTY)}}}"),
            np.full(len(encode(rf"{step}{n}\boxed{{{answer + (judges[n] is FAULTY)}}}")), -0.5),
            step,
            0.1 * (n + 1) + 0.01 * step,
            grader=str(judges[n]),
        )
        for n in range(min(solved, ROLLOUT_N - 1))
    )
    return RolloutGroup(name, ROLLOUT_N - 1 if solved < 4 else len(rollouts), rollouts)


def save(folder, replay, tokenizer, step=STEPS):
    identity = {"tokenizer": tokenizer_fingerprint(tokenizer)}
    PoolFolder().save(
        replay.pool, folder / f"global_step_{step}" / "experience", step, identity, replay.state()
    )


def rows():
    """The data file's."""
    return [
        {
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"ground_truth": str(4 + i)},
        }
        for i, text in enumerate(texts())
    ]


def names():
    return [question_id(text) for text in texts()]
