"""Simulate the replay of a whole training without a model: the real pool, sampler and selector, simulated answers.

    python lab/benchmarks/simulate.py [--questions 46000] [--steps 700] [--pass_rates FILE.parquet] [--picture FILE.png]

Each question has a probability of being solved, drawn from measured pass rates (extra_info.offline_pass_rate of FILE)
or by default from a Beta(0.4, 0.4). As the model "learns" all probabilities rise, a bit more for questions that are
trained on. Each step draws 128 prompts as the trainer does and stores the results; its CPU time is measured. The
simulation measures the driver's work on the pool and how the rules shape buckets, ages and retirement, not whether
replay helps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import benchmark_folders  # noqa: F401
import numpy as np
import numpy.typing as npt
from common import at_least, machine, parser, report, resident_bytes, spread

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_selector import TokenScores

K, BATCH = 8, 128
PAPER_STEP_S = 155.4  # of on-policy GRPO at 7B, without replay (paper, cost table)


def main() -> None:
    """Run the simulation, print a table, draw a picture."""
    cli = parser(__doc__)
    cli.add_argument("--questions", type=at_least(BATCH), default=46_000)
    cli.add_argument("--steps", type=at_least(1), default=700)
    cli.add_argument("--tokens", type=at_least(1), default=1000, help="of a response, on the average")
    cli.add_argument("--ratio", type=float, default=0.5, help="experience_ratio")
    cli.add_argument("--pass_rates", type=Path, help="parquet with extra_info.offline_pass_rate")
    cli.add_argument("--seed", type=at_least(0), default=0)
    cli.add_argument("--picture", type=Path)
    arguments = cli.parse_args()
    facts = machine("numpy")
    rng = np.random.default_rng(arguments.seed)
    world = World(pass_rates(arguments.pass_rates, arguments.questions, rng), arguments.tokens, rng)
    before = resident_bytes()
    config = ExperienceConfig(rollout_n=K, experience_ratio=arguments.ratio, experience_start_sratio=0, exp_seed=1)
    run = simulate(ExperienceReplay(config, world.names), world, arguments.steps)
    memory = resident_bytes() - before
    title = f"{arguments.questions:,} questions, {arguments.steps} steps of {BATCH} prompts"
    report(title, summary(run, memory), facts, arguments)
    if arguments.picture:
        draw(run, arguments.picture, f"{arguments.questions:,} questions")


def pass_rates(file: Path | None, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """[count] probabilities of being solved, none of them 0 or 1: 64 samples cannot distinguish these from 1/128."""
    if file is None:
        rates = rng.beta(0.4, 0.4, count)
    else:
        import pyarrow.parquet as pq

        extra = pq.read_table(file, columns=["extra_info"])["extra_info"].to_pylist()
        rates = rng.choice([row["offline_pass_rate"] for row in extra], count)
    return np.clip(rates, 1 / 128, 127 / 128)


class World:
    """Questions, their probabilities of being solved, and responses of random tokens.

    Attributes:
        learned, visit: logits that all questions gain over a run, and that a question gains per visit.
    """

    learned, visit = 2.0, 0.1

    def __init__(self, rates: npt.NDArray[np.float64], tokens: int, rng: np.random.Generator) -> None:
        self.logits = np.log(rates / (1 - rates))
        self.names = [f"{number:032x}" for number in range(len(rates))]
        self.row_of = {name: row for row, name in enumerate(self.names)}
        self.rng = rng
        self.tokens = tokens
        self.stock = rng.integers(0, 150_000, 2_000_000).astype(np.int32)
        self.log_probs = -rng.exponential(0.3, 2_000_000).astype(np.float32)
        self.order = rng.permutation(len(rates))
        self.next = 0

    def next_question(self) -> tuple[str, bool]:
        """The data's next question, and whether it begins an epoch other than the first."""
        place = self.next % len(self.order)
        self.next += 1
        return self.names[self.order[place]], place == 0 and self.next > 1

    def answer(self, question: str, step: int, progress: float, replayed: bool, failures: bool) -> RolloutGroup:
        """The simulated rollouts of a question, failures only if asked for; the question is easier the next time."""
        row, size = self.row_of[question], K - replayed
        chance = 1 / (1 + np.exp(-self.logits[row] - self.learned * progress))
        self.logits[row] += self.visit
        solved = int(self.rng.binomial(size, chance))
        successes = self._trajectories(solved, step, 1.0)
        failed = self._trajectories(size - solved, step, 0.0) if failures else ()
        return RolloutGroup(question, size, successes, replayed=int(replayed), failures=failed)

    def _trajectories(self, count: int, step: int, reward: float) -> tuple[Trajectory, ...]:
        lengths = np.maximum(1, self.rng.lognormal(np.log(self.tokens) - 0.18, 0.6, count)).astype(int)
        starts = self.rng.integers(0, len(self.stock) - 20 * self.tokens, count)
        return tuple(
            Trajectory(
                self.stock[a : a + n], self.log_probs[a : a + n], step, float(self.rng.gamma(4, 0.1)), reward=reward
            )
            for a, n in zip(starts.tolist(), np.minimum(lengths, 20 * self.tokens).tolist(), strict=True)
        )


class Outcome(NamedTuple):
    """A group without its trajectories; fields as in RolloutGroup."""

    question: str
    size: int
    solved: int
    replayed: int


@dataclass
class Run:
    """Lists with one entry per step."""

    metrics: list[dict[str, float]] = field(default_factory=list)
    draw_ms: list[float] = field(default_factory=list)
    select_ms: list[float] = field(default_factory=list)
    file_ms: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)  # median of the replayed
    groups: list[list[Outcome]] = field(default_factory=list)
    stored: list[list[str]] = field(default_factory=list)  # questions of whole past groups
    rescued: list[int] = field(default_factory=list)  # failed groups that a stored success could join


def simulate(replay: ExperienceReplay, world: World, steps: int) -> Run:
    """Steps like the trainer's, mixing from the first one on; current entropies are the recorded ones with noise."""
    run = Run()
    looked = 0.0  # time of the simulated model, which is not the driver's

    def look(candidates: Sequence[tuple[str, Trajectory]]) -> list[TokenScores]:
        nonlocal looked
        started = time.process_time()
        recorded = [trajectory.entropy for _, trajectory in candidates]
        current = recorded * world.rng.lognormal(0, 0.2, len(candidates))
        views = [TokenScores(np.array([entropy]), np.zeros(1)) for entropy in current]
        looked = time.process_time() - started
        return views

    for step in range(1, steps + 1):
        if replay.exhausted:  # the trainer ends here too
            break
        looked = 0.0
        started = time.process_time()
        drawn = replay.draw(step, BATCH, world.next_question)
        drew = time.process_time()
        choice = replay.choose(replay.candidates(drawn.replayed), look)
        selected = time.process_time()
        whole = replay.config.exp_unit == "group"
        groups = [world.answer(name, step, step / steps, True, whole) for name in drawn.replayed]
        groups += [world.answer(name, step, step / steps, False, whole) for name in drawn.fresh]
        rescued = replay.rescuable(group.question for group in groups if not group.replayed and not group.solved)
        observing = time.process_time()
        run.metrics.append(replay.observe(step, groups, {}))
        filed = time.process_time()
        run.draw_ms.append(1000 * (drew - started))
        run.select_ms.append(1000 * (selected - drew - looked))
        run.file_ms.append(1000 * (filed - observing))
        ages = [step - trajectory.step for trajectory in choice.trajectories.values()]
        ages += [step - group.step for group in drawn.stored]
        run.ages.append(float(np.median(ages or [0])))
        run.groups.append([Outcome(group.question, group.size, group.solved, group.replayed) for group in groups])
        run.stored.append([group.question for group in drawn.stored])
        run.rescued.append(len(rescued))
    return run


def summary(run: Run, memory: int) -> dict[str, Any]:
    """name -> figure, or [median, least, greatest] over the steps."""
    last = run.metrics[-1]
    total = [sum(parts) for parts in zip(run.draw_ms, run.select_ms, run.file_ms, strict=True)]
    return {
        "driver, CPU ms a step: draw": spread(run.draw_ms),
        "driver, CPU ms a step: candidates and selection": spread(run.select_ms),
        "driver, CPU ms a step: filing 128 groups": spread(run.file_ms),
        "driver, CPU ms a step: all": spread(total),
        f"all, % of the paper's {PAPER_STEP_S} s": float(np.median(total)) / 10 / PAPER_STEP_S,
        "memory, GB": memory / 1e9,
        "memory by the pool's own account, GB": last["pool_bytes"] / 1e9,
        **{name: last[name] for name in ("pool_questions", "pool_trajectories", "retired_questions", "evicted")},
        "median age of the replayed at the end, steps": run.ages[-1],
        "95 % of the pool's ages at the end, steps": last["age_p95"],
    }


def draw(run: Run, picture: Path, title: str) -> None:
    """Plot buckets, ages, the pool's contents and the driver's time over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = range(1, len(run.metrics) + 1)
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    sizes = [[row[f"bucket_{bucket}"] for row in run.metrics] for bucket in range(K + 1)]
    colors = pyplot.colormaps["viridis"](np.linspace(0, 1, K + 1))
    axes[0, 0].stackplot(steps, sizes, labels=[f"{bucket} of {K}" for bucket in range(K + 1)], colors=colors)
    axes[0, 0].legend(loc="upper left", fontsize=8, title="solved")
    axes[0, 0].set_title("questions in the pool")
    axes[0, 1].plot(steps, run.ages, label="replayed, median")
    axes[0, 1].plot(steps, [row["age_median"] for row in run.metrics], label="pool, median")
    axes[0, 1].plot(steps, [row["age_p95"] for row in run.metrics], label="pool, 95 %")
    axes[0, 1].legend(loc="upper left", fontsize=8)
    axes[0, 1].set_title("age of trajectories, steps")
    axes[1, 0].plot(steps, [row["pool_trajectories"] for row in run.metrics], label="trajectories")
    axes[1, 0].plot(steps, [row["retired_questions"] for row in run.metrics], label="retired questions")
    axes[1, 0].plot(steps, [row["evicted"] for row in run.metrics], label="evicted, in all")
    axes[1, 0].legend(loc="upper left", fontsize=8)
    axes[1, 0].set_title("held and gone")
    for name, values in (("draw", run.draw_ms), ("select", run.select_ms), ("file", run.file_ms)):
        axes[1, 1].plot(steps, values, label=name, linewidth=0.7)
    axes[1, 1].set_yscale("log")
    axes[1, 1].legend(loc="upper left", fontsize=8)
    axes[1, 1].set_title("driver, CPU ms a step")
    for axis in axes.flat:
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    figure.suptitle(f"simulated replay: {title}")
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main()
