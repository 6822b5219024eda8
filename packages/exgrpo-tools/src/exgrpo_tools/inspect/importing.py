"""The command `exgrpo-inspect --import FILE`: make a saved pool from rows of another author."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint, tokenizer_fingerprint
from exgrpo.preflight.train_files import read_question_ids
from exgrpo.saved.durable import replaced
from exgrpo.saved.exchange import read_rows
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools.inspect.import_rows import Imported, RowImporter
from exgrpo_tools.inspect.questions import Question, read_questions
from exgrpo_tools.inspect.text import load_tokenizer, printable

SHOWN = 20  # rejected rows printed on the terminal; the file lists all of them
_UNBOUNDED = 2**53 - 1  # the training that loads the pool applies its own bounds


def import_pool(options: argparse.Namespace) -> int:
    """Make the pool, list the rejected rows in a file beside it, print the result; returns the number of accepted rows.

    Raises:
        ValueError, OSError: in one line; no pool was made.
    """
    identity = {"data_fingerprint": fingerprint(read_question_ids(options.train_files, "prompt"))}
    questions = read_questions(options.train_files)
    tokenizer = load_tokenizer(options.tokenizer)
    identity["tokenizer"] = tokenizer_fingerprint(tokenizer)
    importer = RowImporter(questions, tokenizer, options.rollout_n, options.successes, options.log_probs)
    refused: list[tuple[int, str]] = []
    accepted = list(_accepted(options.import_file, importer, refused))
    if options.log_probs == "model" and accepted:
        accepted = list(_scored(options.model, accepted, questions, tokenizer, refused))
    options.output.absolute().parent.mkdir(parents=True, exist_ok=True)
    _report(options.output, refused)
    if accepted:
        _save(options, accepted, identity)
    return len(accepted)


def _accepted(file: Path, importer: RowImporter, refused: list[tuple[int, str]]) -> Iterator[tuple[int, Imported]]:
    """(row number, its content) of the accepted rows; the others are added to `refused`."""
    for number, row in tqdm(read_rows(file), desc="rows", unit="row", disable=None):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            yield number, importer.read(row)
        except ValueError as error:
            refused.append((number, str(error)))


def _scored(
    model: str,
    accepted: list[tuple[int, Imported]],
    questions: Mapping[str, Question],
    tokenizer: Any,
    refused: list[tuple[int, str]],
) -> Iterator[tuple[int, Imported]]:
    """The rows with the log-probs and the entropy that they would have as samples of the model."""
    from exgrpo_tools.inspect.recompute import LogProbScorer, prompt_tokens

    scorer = LogProbScorer(model, len(tokenizer))
    for number, row in tqdm(accepted, desc="scoring", unit="row", disable=None):
        try:
            prompt = prompt_tokens(tokenizer, questions[row.question].messages)
            log_probs_T, entropies_T = scorer.score(prompt, row.trajectory.tokens)
            trajectory = replace(
                row.trajectory,
                log_probs=log_probs_T,
                entropy=float(row.trajectory.of_actions(entropies_T).mean()),
            )
        except ValueError as error:
            refused.append((number, str(error)))
            continue
        yield number, Imported(row.question, row.successes, trajectory)


def _report(output: Path, refused: list[tuple[int, str]]) -> None:
    refused.sort()
    file = output.with_name(f"{output.name}.rejected.jsonl")
    with replaced(file) as temporary:
        lines = [json.dumps({"row": number, "reason": reason}) + "\n" for number, reason in refused]
        temporary.write_text("".join(lines), encoding="utf-8")
    for number, reason in refused[:SHOWN]:
        print(f"row {number}: {printable(reason)}", file=sys.stderr)
    more = f", {len(refused) - SHOWN:,} of them not shown" if len(refused) > SHOWN else ""
    print(f"{file}: {len(refused):,} rows refused{more}")


def _save(options: argparse.Namespace, accepted: list[tuple[int, Imported]], identity: dict[str, str]) -> None:
    config = ExperienceConfig(
        rollout_n=options.rollout_n,
        experience_max_per_question=_UNBOUNDED,
        experience_max_trajectories=_UNBOUNDED,
        experience_max_bytes=_UNBOUNDED,
    )
    pool = ExperiencePool(config)
    for _, row in accepted:
        pool.file(row.question, row.successes, row.trajectory)
    PoolFolder().save(pool, options.output, 0, identity)
    names = {row.question for _, row in accepted}
    known = sum(row.trajectory.has_log_probs for _, row in accepted)
    print(
        f"{options.output}: {len(accepted):,} trajectories of {len(names):,} questions, {known:,} with log-probs; "
        f"for trainer.experience_import={options.output}"
    )
