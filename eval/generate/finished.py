"""The end of a run: an output that already exists, verdicts, and the files that are written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exgrpo.prompts import opens_thought
from exgrpo.saved import durable
from exgrpo_eval.estimate import graded_file
from exgrpo_eval.generate.partial_file import differences
from exgrpo_eval.generate.settings import Settings
from exgrpo_tools import reward_option
from exgrpo_tools.reward_option import Reward


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


def chosen_reward(settings: Settings) -> Reward | None:
    """The reward function that judges: of --reward, or of the checkpoint that the model is of; None
    where Math-Verify does.

    Raises:
        ValueError: it cannot be loaded, or --reward names none; in one line.
    """
    if settings.add_oat_evaluate or settings.skip_scoring:
        return None
    model = None if settings.model_path is None else Path(settings.model_path)
    reward = reward_option.named(settings.reward, settings.reward_kwargs, model)
    if reward is None or reward.is_ours:
        return None
    reward.load()
    return reward


def judge_by_reward(
    rows: list[dict[str, Any]], record: dict[str, Any], reward: Reward | None
) -> list[dict[str, Any]]:
    """The graded rows by the reward function, if there is one; the record names it."""
    record.pop("judged_by", None)
    if reward is None:
        return rows
    from exgrpo_eval.grade.by_reward import let_decide

    record["judged_by"] = str(reward.author)
    return let_decide(rows, reward)


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


def write_rows(rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any], output: Path) -> None:
    """Write the output file, and the run file beside it, each atomically."""
    record_text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    row_lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # a model's response may hold half of a character, which UTF-8 cannot encode
    durable.replace_file(output.with_suffix(".run.json"), record_text, errors="replace")
    durable.replace_file(output, row_lines, errors="replace")


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
        rows = judge_by_reward(rows, run.record, chosen_reward(settings))
    write_rows(rows, run.record, output)
    print(f"{output}: {len(rows)} samples", flush=True)
    if not settings.skip_scoring:
        from exgrpo_eval.reports import command as report

        report.write(rows, run.record, output)
    return rows
