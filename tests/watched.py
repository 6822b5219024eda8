"""Processes that tests wait for: a hang is a lack of progress, not a number of seconds, which a
busy machine breaks.

A process and those it started make progress while they write to their outputs, or want a core. They
hang if, since their last output, they slept most of the time or computed for longer than any of our
tests does.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import process_tree

LOOK_S = 0.02
ASLEEP_S = 240.0  # since the last output, with a core wanted in less than half of the looks
COMPUTED_S = 900.0  # CPU seconds since the last output
TICKS = os.sysconf("SC_CLK_TCK")


class Hung(AssertionError):
    """A process that makes no progress; says what it wrote last."""


class Watch:
    """A running process (None: whatever this one has started); its outputs show how far it is, the
    log last.
    """

    def __init__(self, process: subprocess.Popen | None, *outputs: Path) -> None:
        self.process, self.outputs = process, outputs
        self._sizes: list[int] = []
        self._seconds: dict[int, float] = {}  # of each process of the tree
        self._progressed()

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until it is reached; Hung if the process ends before, or makes no progress."""
        while not reached():
            if self.process and self.process.poll() is not None and not reached():
                raise Hung(f"ended with {self.process.returncode}\n{self.said()}")
            self.look()
            time.sleep(LOOK_S)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        process = self.process
        assert process
        self.until(lambda: process.poll() is not None)
        return process.returncode

    def said(self) -> str:
        """The end of its log."""
        log = self.outputs[-1] if self.outputs else None
        return log.read_text(errors="replace")[-4000:] if log and log.exists() else ""

    def look(self) -> None:
        """Hung if there was no progress for too long."""
        sizes = [path.stat().st_size if path.exists() else 0 for path in self.outputs]
        if sizes != self._sizes:
            self._sizes = sizes
            self._progressed()
            return
        now = time.monotonic()
        if now - self._looked < 1:
            return
        self._looked = now
        wants = False
        itself = [self.process.pid] if self.process else []
        for pid in [*itself, *process_tree.descendants(*itself or [os.getpid()])]:
            running, seconds = _of(pid)
            wants |= running
            self._computed += seconds - self._seconds.get(pid, seconds)
            self._seconds[pid] = seconds
        self._looks += 1
        self._wanted += wants
        asleep = now - self._since > ASLEEP_S and self._wanted < self._looks / 2
        if asleep or self._computed > COMPUTED_S:
            raise Hung(
                f"no output for {now - self._since:.0f} s, {self._computed:.0f} of a "
                f"core\n{self.said()}"
            )

    def _progressed(self) -> None:
        self._since = self._looked = time.monotonic()
        self._looks = self._wanted = 0
        self._computed = 0.0


def until(reached: Callable[[], bool]) -> None:
    """Wait for what this process's children bring about."""
    Watch(None).until(reached)


def run(command: Sequence[Any], **more: Any) -> subprocess.CompletedProcess[str]:
    """As subprocess.run with captured text, ended if it makes no progress."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, **more)
        try:
            code = Watch(process, out, err).end()
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


def _of(pid: int) -> tuple[bool, float]:
    """Whether a thread of a process runs or waits for a core or a disk, and the process's CPU
    seconds.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except (FileNotFoundError, ProcessLookupError):
        return False, 0.0
    return any(state in "RD" for state in states), (int(fields[11]) + int(fields[12])) / TICKS
