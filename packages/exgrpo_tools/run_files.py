"""The metrics of a run, read from what its logger has written: verl's file logger, tensorboard, or
the console's log (wandb keeps that as output.log).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DEEP = 4  # folders below a run in which its files are looked for
PASSED_OVER = ("global_step_", ".", "ray-logs")  # beginnings of the names of folders with others
LOGS = (".log", ".out", ".txt", ".err")
_STEP = re.compile(rb"(?:^|\s)step:(\d+) - (.*)")
_METRIC = re.compile(
    r"(?:^| - )(?P<name>.+?):(?:np\.\w+\()?(?P<value>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))\)?"
    r"(?= - |$)"
)
Steps = dict[int, dict[str, float]]
Reader = Callable[[Path], Iterator[tuple[int, dict[str, float]]]]


@dataclass(frozen=True)
class RunMetrics:
    """A run's metrics.

    Attributes:
        files: they were read from, in the order of writing; `logger`: who wrote them.
        steps: step -> metrics, ascending; of a step that was trained twice, after a kill, the last.
    """

    files: list[Path]
    logger: str
    steps: Steps

    def __str__(self) -> str:
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        last = f"{len(self.steps)} steps, the last {max(self.steps)}"
        return f"{self.files[-1]}{more} ({self.logger}): {last}"


def read(run: Path) -> RunMetrics:
    """The metrics of a run's folder, or of one file of a logger.

    Raises:
        FileNotFoundError: there is no such folder or file.
        ValueError: no logger's file is there, or those of several runs.
    """
    if run.is_file():
        found = {name: [run] for name, (is_its, _) in LOGGERS.items() if is_its(run)}
    elif run.is_dir():
        found = _files(run)
    else:
        raise FileNotFoundError(f"{run}: no such folder or file")
    for name, files in found.items():
        files.sort(key=lambda path: path.stat().st_mtime)
        steps: Steps = {}
        for path in files:
            for step, metrics in LOGGERS[name][1](path):
                steps.setdefault(step, {}).update(metrics)
        if steps:
            return RunMetrics(files, name, dict(sorted(steps.items())))
    raise ValueError(
        f"{run}: no metrics of a step there: must have a file of verl's file logger (.jsonl), of "
        f"tensorboard (events.out.tfevents...), or the console's log ({', '.join(LOGS)})"
    )


def _files(run: Path) -> dict[str, list[Path]]:
    """Logger -> its files in the folder nearest to the run's."""
    found: dict[str, list[Path]] = {}
    for name, (is_its, _) in LOGGERS.items():
        by_folder: dict[Path, list[Path]] = {}
        for path in _walk(run, DEEP):
            if is_its(path):
                by_folder.setdefault(path.parent, []).append(path)
        nearest = min((len(folder.parts) for folder in by_folder), default=0)
        folders = [folder for folder in by_folder if len(folder.parts) == nearest]
        if len(folders) > 1:
            named = ", ".join(str(folder.relative_to(run)) for folder in sorted(folders)[:4])
            raise ValueError(f"{run}: has the metrics of several runs: name one of {named}")
        if folders:
            found[name] = by_folder[folders[0]]
    return found


def _walk(folder: Path, deep: int) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_file():
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(PASSED_OVER):
            yield from _walk(Path(entry.path), deep - 1) if deep else ()


# -- verl's file logger ----------------------------------------------------------------------------


def _is_lines(path: Path) -> bool:
    if path.suffix != ".jsonl":
        return False
    with path.open("rb") as lines:
        return _entry(lines.readline(1 << 20)) is not None


def of_lines(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, metrics) of each line of verl's file logger; one that a kill left half written is
    passed over.
    """
    with path.open("rb") as lines:
        for line in lines:
            if (entry := _entry(line)) is not None:
                yield entry


def _entry(line: bytes) -> tuple[int, dict[str, float]] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("data"), dict):
        return None
    if type(entry.get("step")) is not int:
        return None
    kept = {name: value for name, value in entry["data"].items() if type(value) in (int, float)}
    return entry["step"], kept


# -- tensorboard -----------------------------------------------------------------------------------


def _is_events(path: Path) -> bool:
    return path.name.startswith("events.out.tfevents.")


def _of_events(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """ModuleNotFoundError without tensorboard."""
    from tensorboard.backend.event_processing.event_accumulator import (
        SCALARS,
        EventAccumulator,
    )

    events = EventAccumulator(str(path), size_guidance={SCALARS: 0})
    events.Reload()
    for name in events.Tags()["scalars"]:
        for scalar in events.Scalars(name):
            yield scalar.step, {name: scalar.value}


# -- the console's log -----------------------------------------------------------------------------


def _is_log(path: Path) -> bool:
    return path.suffix in LOGS and any(True for _ in _of_log(path))


def _of_log(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The lines `step:N - name:value - ...` of verl's console logger, whatever stands before."""
    with path.open("rb") as lines:
        for line in lines:
            if b"step:" in line and (found := _STEP.search(line)):
                text = found[2].decode(errors="replace").rstrip()
                named = _METRIC.finditer(text)
                yield int(found[1]), {one["name"]: float(one["value"]) for one in named}


# in the order in which they are preferred: exact numbers first
LOGGERS: dict[str, tuple[Callable[[Path], bool], Reader]] = {
    "verl's file logger": (_is_lines, of_lines),
    "tensorboard": (_is_events, _of_events),
    "the console's log": (_is_log, _of_log),
}
