"""Rows for a buffer and buffers filled with them, for the tests of the buffer."""

from exgrpo.buffer import DifficultyBucketer, TrajectoryBuffer

ALL = {"difficulty_range": None, "entropy_percentile": None}


def right(prompt="q", rollout="r", entropy=0.5, **more):
    return {
        "prompt": prompt,
        "rollout": rollout,
        "reward": 1.0,
        "is_correct": True,
        "entropy": entropy,
        **more,
    }


def wrong(prompt="q"):
    return right(prompt) | {"reward": 0.0, "is_correct": False}


def level_of(trajectory):
    return trajectory["level"]


def leveled(levels, **settings):
    """A buffer of one trajectory a question, at the given levels of difficulty."""
    buffer = TrajectoryBuffer(bucketer=DifficultyBucketer(level_of), **settings)
    for number, level in enumerate(levels):
        buffer.add(right(f"q{number}", level=level))
    return buffer


def entropic(entropies, **settings):
    """Questions solved half of the time, each with trajectories of the given entropies."""
    buffer = TrajectoryBuffer(**settings)
    for prompt, values in entropies.items():
        for value in values:
            buffer.add(right(prompt, f"{value}", value))
            buffer.add(wrong(prompt))
    return buffer
