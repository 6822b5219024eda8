"""The end of a run: an output that already exists, verdicts, and the files that are written."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exgrpo.prompts import opens_thought
from exgrpo.saved import durable
from exgrpo_eval.estimate import graded_file
from exgrpo_eval.generate.partial_file import differences
from exgrpo_eval.generate.settings import Settings


@dataclass(frozen=True)
class FinishedRun:
    """The rows of the output file, and the content of the run file, which records how they were
    made.
    """

    rows: list[dict[str, Any]]
    record: dict[str, Any]


def partial_path(settings: Settings) -> Path:
    """The file with the samples of an unfinished run."""
    return settings.output_file.with_name(settings.output_file.name + ".partial")


def run_path(settings: Settings) -> Path:
    """The file that records how the output was made."""
    return settings.output_file.with_suffix(".run.json")


def make_writable(output: Path) -> None:
    """Make the folder of the output file; ValueError if that is impossible."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output_file={output}: {error.strerror}") from error
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        raise ValueError(f"--output_file={output}: must be a file that can be written")


def finished_run(settings: Settings, identity: dict[str, Any]) -> FinishedRun | None:
    """The run whose output already exists; None if there is none.

    Raises:
        ValueError: it has other settings and would be overwritten, or cannot be read.
    """
    output = settings.output_file
    if settings.restart or not output.exists():
        return None
    if not run_path(settings).is_file():
        raise ValueError(
            f"--output_file={output}: exists, without {run_path(settings)}; --restart overwrites it"
        )
    try:
        record, rows = graded_file.record(run_path(settings)), list(graded_file.objects(output))
    except ValueError as error:
        raise ValueError(f"--output_file={output}: {error}; --restart overwrites it") from error
    made = record.get("identity")
    if not isinstance(made, dict):
        why = f"{run_path(settings)}: identity={made}: must be the settings of a run"
        raise ValueError(f"--output_file={output}: {why}; --restart overwrites it")
    if other := differences(identity, made):
        raise ValueError(
            f"--output_file={output}: holds a run with other settings ({other}); --restart "
            "overwrites it"
        )
    return FinishedRun(rows, record)


def finish(settings: Settings, run: FinishedRun) -> list[dict[str, Any]]:
    """Judge the rows, unless that is skipped, and write output, run record and report, each
    atomically; returns the rows.
    """
    output, rows = settings.output_file, run.rows
    if not settings.skip_scoring:
        from exgrpo_eval.grade.grading import grade

        think = settings.add_think_before_answer or opens_thought(rows[0]["prompt"] or "")
        rows = grade(
            rows,
            oat=settings.add_oat_evaluate,
            any_true=settings.any_true,
            require_think=think and not settings.no_split_think,
        )
    record_text = json.dumps(run.record, indent=2, ensure_ascii=False) + "\n"
    row_lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # a model's response may hold half of a character, which UTF-8 cannot encode
    durable.replace_file(run_path(settings), record_text, errors="replace")
    durable.replace_file(output, row_lines, errors="replace")
    print(f"{output}: {len(rows)} samples", flush=True)
    if not settings.skip_scoring:
        from exgrpo_eval.reports import command as report

        report.write(rows, run.record, output)
    return rows
