"""The command `exgrpo-inspect --import FILE`: make a saved pool from rows of another author."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exgrpo.data_files import read_question_ids
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint, tokenizer_fingerprint
from exgrpo.math_verify_reward import STRICT
from exgrpo.saved.durable import replace_file
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools import reward_option
from exgrpo_tools.inspect.exchange import read_rows
from exgrpo_tools.inspect.import_rows import Imported, RowImporter, one_line
from exgrpo_tools.inspect.judging import Judge
from exgrpo_tools.inspect.progress import progress
from exgrpo_tools.inspect.questions import Question, read_questions
from exgrpo_tools.inspect.text import load_tokenizer, print_lines
from exgrpo_tools.reward_option import Reward

SHOWN = 20  # rejected rows printed on the terminal; the file lists all of them
_UNBOUNDED = 2**53 - 1  # the training that loads the pool applies its own bounds
Numbered = list[tuple[int, Imported]]  # number of a row in the file, the row
Refused = list[tuple[int, str]]  # number of a row in the file, reason


def import_pool(options: argparse.Namespace) -> int:
    """Judge the rows and make the pool, list the rejected rows in a file next to it, print the
    result.

    Until all rows are read and judged nothing is written; then the list is, then the pool as a
    whole.

    Returns:
        The number of accepted rows; without one there is no pool.

    Raises:
        ValueError, OSError: in one line; no pool was made.
    """
    questions = read_questions(options.train_files)
    tokenizer = load_tokenizer(options.tokenizer)
    identity = {
        "data_fingerprint": fingerprint(read_question_ids(options.train_files, "prompt")),
        "tokenizer": tokenizer_fingerprint(tokenizer),
    }
    importer = RowImporter(questions, tokenizer, options.rollout_n, options.log_probs)
    reward = reward_option.chosen(options, None) or Reward(STRICT)
    judge = None if options.trust else Judge(reward, questions, tokenizer)
    refused: Refused = []
    with contextlib.closing(judge) if judge is not None else contextlib.nullcontext():
        accepted = list(_accepted(options.import_file, importer, judge, refused))
    if options.log_probs == "model" and accepted:
        accepted = list(_scored(options.model, accepted, questions, tokenizer, refused))
    pool = _pool(accepted, options.rollout_n, options.successes)
    _write(options.output, refused, pool if accepted else None, identity)
    _report(options.output, accepted, refused, judge)
    return len(accepted)


def _accepted(
    file: Path, importer: RowImporter, judge: Judge | None, refused: Refused
) -> Iterator[tuple[int, Imported]]:
    """The accepted rows; the others are added to `refused`."""
    for number, row in progress(read_rows(file), _count(file), "rows", "row"):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            read = importer.read(row)
            if judge is not None:
                read = replace(read, trajectory=judge.judge(read.question, read.trajectory))
        except ValueError as error:
            refused.append((number, one_line(error)))
            continue
        yield number, read


def _count(file: Path) -> int:
    """Rows of a file, its empty lines too."""
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(file).num_rows)
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _scored(
    model: str,
    accepted: Numbered,
    questions: Mapping[str, Question],
    tokenizer: Any,
    refused: Refused,
) -> Iterator[tuple[int, Imported]]:
    """The rows with the log-probs and the entropy that they would have as samples of the model."""
    from exgrpo_tools.inspect.recompute import LogProbScorer, prompt_tokens

    scorer = LogProbScorer(model, len(tokenizer))
    for number, row in progress(accepted, len(accepted), "scoring", "row"):
        try:
            prompt = prompt_tokens(tokenizer, questions[row.question].messages)
            log_probs_T, entropies_T = scorer.score(prompt, row.trajectory.tokens)
            entropy = float(row.trajectory.of_actions(entropies_T).mean())
            trajectory = replace(row.trajectory, log_probs=log_probs_T, entropy=entropy)
        except ValueError as error:
            refused.append((number, one_line(error)))
            continue
        yield number, replace(row, trajectory=trajectory)


def _pool(accepted: Numbered, rollout_n: int, successes: int) -> ExperiencePool:
    """The rows' pool; a question is in the bucket that its last row with `successes` says."""
    config = ExperienceConfig(
        rollout_n=rollout_n,
        experience_max_per_question=_UNBOUNDED,
        experience_max_trajectories=_UNBOUNDED,
        experience_max_bytes=_UNBOUNDED,
    )
    pool = ExperiencePool(config)
    stated = {row.question: row.successes for _, row in accepted if row.successes is not None}
    for _, row in accepted:
        pool.file(row.question, stated.get(row.question, successes), row.trajectory)
    return pool


def _rejected(output: Path) -> Path:
    return output.with_name(f"{output.name}.rejected.jsonl")


def _write(
    output: Path, refused: Refused, pool: ExperiencePool | None, identity: Mapping[str, str]
) -> None:
    """The pool comes last: where it is, the import is whole."""
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    refused.sort()
    lines = [json.dumps({"row": number, "reason": reason}) + "\n" for number, reason in refused]
    try:
        replace_file(_rejected(output), "".join(lines))
        if pool is not None:
            PoolFolder().save(pool, output, 0, identity)
    except BaseException:
        if not output.exists():
            _rejected(output).unlink(missing_ok=True)
        raise


def _report(output: Path, accepted: Numbered, refused: Refused, judge: Judge | None) -> None:
    print_lines((f"row {number}: {reason}" for number, reason in refused[:SHOWN]), sys.stderr)
    more = f", {len(refused) - SHOWN:,} of them not shown" if len(refused) > SHOWN else ""
    print_lines([f"{_rejected(output)}: {len(refused):,} rows refused{more}"])
    if judge is None:
        print_lines(["judged: none of the rows (--trust)"])
    else:
        counts = ", ".join(f"{count:,} {verdict}" for verdict, count in judge.counts.items())
        print_lines([f"judged: {counts}; by {judge.author}"])
    if accepted:
        names = {row.question for _, row in accepted}
        known = sum(row.trajectory.has_log_probs for _, row in accepted)
        print_lines(
            [
                f"{output}: {len(accepted):,} trajectories of {len(names):,} questions, "
                f"{known:,} with log-probs; "
                f"for trainer.experience_import={output}"
            ]
        )
