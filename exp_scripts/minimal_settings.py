"""Settings of `minimal_loop.py` from key=value, and the picture of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exgrpo import ExperienceConfig
from exgrpo.loss_settings import LossSettings


@dataclass(frozen=True)
class Loop:
    """Settings of the loop itself: questions a step, rollouts a question."""

    steps: int = 60
    questions: int = 16
    rollout_n: int = 8
    lr: float = 1e-4
    test_every: int = 10
    seed: int = 0


def settings(overrides: Sequence[str]) -> tuple[ExperienceConfig, LossSettings, Loop]:
    """The trainer's settings, and the loop's, of group.key=value; ValueError names what is not one."""
    groups: dict[str, dict[str, str]] = {"trainer": {}, "policy_loss": {}, "loop": {}}
    for override in overrides:
        key, equals, value = override.partition("=")
        group, _, name = key.partition(".")
        if not equals or group not in groups:
            raise ValueError(
                f"{override}: must be trainer.<key>=<value>, policy_loss.<key>=<value> or loop.<key>=<value>"
            )
        known = {"trainer": ExperienceConfig, "policy_loss": LossSettings, "loop": Loop}[group].__annotations__
        if name not in known:
            raise ValueError(f"{override}: no such key; known are {', '.join(known)}")
        groups[group][name] = value
    loop = Loop(**{name: _number(name, value) for name, value in groups["loop"].items()})
    experience = ExperienceConfig.from_mapping(groups["trainer"], loop.rollout_n)
    return experience, LossSettings.from_mapping(groups["policy_loss"]), loop


def _number(name: str, value: str) -> int | float:
    kind = type(getattr(Loop, name))
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"loop.{name}={value}: must be an {kind.__name__}") from None


def draw(curve: Sequence[Mapping[str, float]], path: Path) -> None:
    """A picture of the run: accuracy, and how many of a step's groups held a replayed trajectory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(3, 1))
    for name, label, style in (("fresh_score", "training questions", "-"), ("test", "test questions", "o-")):
        points = [(row["step"], row[name]) for row in curve if name in row]
        top.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    top.set(ylabel="share of answers right", ylim=(0, 1))
    top.legend(frameon=False)
    bottom.bar([row["step"] for row in curve], [row.get("replayed", 0) for row in curve], color="tab:green")
    bottom.set(xlabel="step", ylabel="replayed")
    figure.savefig(path, dpi=120, bbox_inches="tight")
