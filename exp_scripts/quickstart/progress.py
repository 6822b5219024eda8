"""Where a run of the quickstart is: one live panel in a terminal, a line for each stage and step
anywhere else.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import learning_curves
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from exgrpo.console import printable

# What of the log tells where the start-up is; each is shown once, with the time it came at. The
# first three are there if they take ten seconds.
STAGES = {
    "exgrpo: checking settings, model and data": "checking settings, model and data",
    "exgrpo: loading verl ...": "loading verl",
    "exgrpo: starting Ray": "starting Ray",
    "Started a local Ray instance": "Ray is up; loading verl",
    "create worker group": "loading the actor (FSDP2)",
    "reward loop manager initialized": "actor and rewards are up; starting the vLLM server",
    "ready to fit": "everything is up",
}
WARNING = re.compile(r"WARNING:[-\d :,]+:(exgrpo: .*)")  # of the training's own, in the log
LAST_STEPS = 5  # the time left is reckoned from their mean


class View(Protocol):
    """Shows a run; a context manager around it. Times are seconds since the command began."""

    def __enter__(self) -> View: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def stage(self, words: str, seconds: float) -> None:
        """The start-up has come this far."""

    def warning(self, line: str, seconds: float) -> None:
        """A line that the training warns with."""

    def step(self, entry: dict[str, Any], seconds: float) -> None:
        """A line of the metrics file."""


class Lines:
    """A line for each stage and step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def stage(self, words: str, seconds: float) -> None:
        print(f"[{seconds:5.0f} s] {words}", flush=True)

    warning = stage

    def step(self, entry: dict[str, Any], seconds: float) -> None:
        print(f"[{seconds:5.0f} s] {learning_curves.progress(entry, self._steps)}", flush=True)


class LivePanel:
    """One panel that is drawn anew twice a second."""

    def __init__(self, console: Console, folder: Path, steps: int, done: int) -> None:
        self._console, self._folder, self._steps, self._done = console, folder, steps, done
        self._began = self._changed = time.monotonic()
        self._doing = "loading Python packages, starting Ray"
        self._up_after: float | None = None
        self._tests: list[dict[str, float]] = []
        self._trained: list[dict[str, Any]] = []
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
        self._live = Live(get_renderable=self.panel, console=console, refresh_per_second=2)

    def __enter__(self) -> LivePanel:
        self._live.start()
        self._console.show_cursor(
            True
        )  # Live hides it, and a killed process could not bring it back
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._doing = "ended" if kind is None else "stopping"
        self._live.stop()

    def warning(self, line: str, seconds: float) -> None:
        self._console.print(Text(line))  # above the panel

    def stage(self, words: str, seconds: float) -> None:
        self._changed, self._doing = time.monotonic(), words
        if words == STAGES["ready to fit"]:
            self._up_after = seconds
            self._doing = (
                f"training step {self._done + 1}" if self._done else "testing the base model"
            )

    def step(self, entry: dict[str, Any], seconds: float) -> None:
        metrics = entry["data"]
        self._changed, self._done = time.monotonic(), entry["step"]
        self._doing = (
            f"training step {self._done + 1}" if self._done < self._steps else "saving, ending Ray"
        )
        self._tests += [tested] if (tested := learning_curves.tests(metrics)) else []
        self._trained += [metrics] if "timing_s/step" in metrics else []

    def panel(self) -> Panel:
        """What is known now."""
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        self._spinner.update(text=Text(f"{self._doing} ({time.monotonic() - self._changed:.0f} s)"))
        rows.add_row("now", self._spinner)
        rows.add_row("step", self._steps_row())
        rows.add_row("accuracy", self._accuracy())
        rows.add_row("replay", self._replay())
        up = "" if self._up_after is None else f" · start-up {self._up_after:.0f} s"
        return Panel(
            rows,
            title="ExGRPO quickstart",
            title_align="left",
            subtitle=f"{clock(time.monotonic() - self._began)}{up} · Ctrl-C stops · log in "
            f"{self._folder}/train.log",
            subtitle_align="left",
        )

    def _steps_row(self) -> Table:
        row = Table.grid(padding=(0, 2))
        row.add_row(
            f"{self._done}/{self._steps}",
            ProgressBar(self._steps, self._done, width=30),
            self._left(),
        )
        return row

    def _left(self) -> str:
        if not self._trained:
            return ""
        seconds = statistics.mean(
            metrics["timing_s/step"] for metrics in self._trained[-LAST_STEPS:]
        )
        return f"{clock((self._steps - self._done) * seconds)} left, {seconds:.1f} s a step"

    def _accuracy(self) -> str:
        names = {name: None for tested in self._tests for name in tested}
        curves = []
        for name in names:
            values = " → ".join(f"{each[name]:.3f}" for each in self._tests if name in each)
            curves.append(f"{printable(name)} {values}" if len(names) > 1 else values)
        tests = f"test {', '.join(curves)}" if curves else ""
        train = (
            f"train {learning_curves.fresh_accuracy(self._trained[-1]):.3f}"
            if self._trained
            else ""
        )
        return "   ".join(words for words in (train, tests) if words) or "-"

    def _replay(self) -> str:
        if not self._trained:
            return "-"
        last = self._trained[-1]
        replayed = learning_curves.replayed_groups(last)
        pool, retired = (
            last.get(f"experience/{key}", 0) for key in ("pool_questions", "retired_questions")
        )
        return f"replayed {replayed:.0f} groups   pool {pool:.0f} questions   retired {retired:.0f}"


def clock(seconds: float) -> str:
    """Minutes and seconds, as 2:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def view(folder: Path, steps: int, done: int) -> View:
    """The panel in a terminal that can move its cursor, lines anywhere else."""
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return LivePanel(console, folder, steps, done)
    return Lines(steps)


def follow(process: subprocess.Popen[bytes], log: Path, metrics: Path, shown: View) -> int:
    """Show what log and metrics file say until the process ends; its exit code."""
    started = time.monotonic()
    stages, lines, place, rest = dict(STAGES), 0, 0, b""
    while True:
        ended = process.poll() is not None
        seconds = time.monotonic() - started
        with log.open("rb") as said:
            said.seek(place)
            *whole, rest = (rest + said.read()).split(b"\n")
            place = said.tell()
        for line in (each.decode(errors="replace") for each in whole):
            for mark in [mark for mark in stages if mark in line]:
                shown.stage(stages.pop(mark), seconds)
            if warning := WARNING.search(line):
                shown.warning(warning[1], seconds)
        written = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
        for line in written[lines:]:
            shown.step(json.loads(line), seconds)
        lines = len(written)
        if ended:
            return process.returncode
        time.sleep(0.5)
