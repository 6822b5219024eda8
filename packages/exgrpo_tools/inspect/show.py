"""The command `exgrpo-inspect CHECKPOINT`: find the pool, print it, write the page, export."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.question_id import tokenizer_fingerprint
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved.durable import replaced
from exgrpo.saved.pool_files import SavedPool, read_saved
from exgrpo_tools import reward_option
from exgrpo_tools.find_pool import find_pool
from exgrpo_tools.inspect import quarantine
from exgrpo_tools.inspect.exchange import Row, to_row, write_rows
from exgrpo_tools.inspect.explain import explanation
from exgrpo_tools.inspect.progress import progress
from exgrpo_tools.inspect.questions import Question, read_questions
from exgrpo_tools.inspect.summary import question_lines, read_overview, summary
from exgrpo_tools.inspect.text import Decoder, load_tokenizer, print_lines


def show(options: argparse.Namespace) -> None:
    """Run the command with checked options. ValueError or OSError, in one line, if it fails."""
    folder = find_pool(options.checkpoint)
    if options.quarantine:
        quarantine.run(options, folder, _rejects(options, folder))
        return
    saved = read_saved(folder)
    questions = _questions(saved, options.train_files)
    tokenizer = _tokenizer(saved, options)
    if options.explain is not None:
        step, row = [*options.explain, None][:2]
        print_lines(explanation(saved, step, row, questions))
        return
    if options.rewards:
        _print_rewards(saved, options, questions, tokenizer)
        return
    if options.question is not None:
        _print_question(saved, options.question, questions, Decoder(tokenizer))
    elif options.html is not None:
        _write_page(saved, options, questions, tokenizer)
    else:
        print_lines(summary(read_overview(saved, ()), questions))
    if options.export is not None:
        decoder = None if tokenizer is None else Decoder(tokenizer)
        written = write_rows(options.export, _rows(saved, questions, decoder))
        print(f"{options.export}: {written:,} trajectories")


def _rejects(options: argparse.Namespace, folder: Path) -> quarantine.Rejects | None:
    """Which trajectories the reward of --reward does not accept any more."""
    reward = reward_option.chosen(options, None)
    if reward is None:
        return None
    from exgrpo_tools.inspect.judging import Judge, Unreadable, Wrong

    saved = read_saved(folder)
    questions, tokenizer = _questions(saved, options.train_files), _tokenizer(saved, options)
    judge = Judge(reward, questions, tokenizer)

    def rejects(question: str, trajectory: Trajectory) -> bool:
        try:
            if question in questions:
                judge.judge(question, trajectory)
        except (Wrong, Unreadable):
            return True
        return False

    return rejects


def _questions(saved: SavedPool, files: list[str] | None) -> dict[str, Question]:
    if files is None:
        return {}
    questions, held = read_questions(files), saved.state.questions  # none before mixing has begun
    if held and not any(name in questions for name in held):
        raise ValueError(f"--train_files={' '.join(files)}: has none of the pool's questions")
    return questions


def _tokenizer(saved: SavedPool, options: argparse.Namespace) -> Any:
    """The tokenizer of the options or of the checkpoint; None if there is none and nothing needs
    it.
    """
    if (
        options.question is None
        and options.html is None
        and options.export is None
        and not options.rewards
        and options.reward is None
    ):
        return None
    of_model = saved.folder.parent / "actor" / "huggingface"  # where verl saves it
    path = options.tokenizer or (str(of_model) if of_model.is_dir() else None)
    if path is None:
        if options.export is None:
            raise ValueError(f"--tokenizer=: is required, there is none in {of_model}")
        return None
    tokenizer = load_tokenizer(path)
    actual = tokenizer_fingerprint(tokenizer)
    expected = saved.manifest["identity"].get("tokenizer")
    if expected is not None and actual != expected:
        raise ValueError(
            f"--tokenizer={path}: its fingerprint is {actual[:12]}, the pool's is {expected[:12]}"
        )
    return tokenizer


def _print_question(
    saved: SavedPool, name: str, questions: Mapping[str, Question], decoder: Decoder
) -> None:
    if name not in saved.state.questions:
        reason = (
            "it is retired"
            if name in saved.state.retired
            else "must be the id of a question in the pool"
        )
        raise ValueError(f"--question={name}: {reason}")
    overview = read_overview(saved, {name})
    responses = [decoder.text(trajectory.tokens) for trajectory in overview.kept[name]]
    print_lines(question_lines(overview, name, questions, responses))


def _print_rewards(
    saved: SavedPool, options: argparse.Namespace, questions: Mapping[str, Question], tokenizer: Any
) -> None:
    from exgrpo_tools.inspect.rewards import export, judge_again, lines

    reward = reward_option.chosen(options, saved.folder)
    rows = judge_again(saved, questions, tokenizer, options.rollouts, reward)
    of_pool = sum(row.place == "pool" for row in rows)
    print_lines(lines(rows, saved.manifest["counts"]["trajectories"] - of_pool, reward))
    if options.export is not None:
        print(f"{options.export}: {export(options.export, rows):,} rows")


def _write_page(
    saved: SavedPool, options: argparse.Namespace, questions: Mapping[str, Question], tokenizer: Any
) -> None:
    from exgrpo_tools.inspect import strips
    from exgrpo_tools.inspect.page import build_page, draw_sample

    sample = draw_sample(saved, options.sample, options.seed)
    shown_strips = strips.most_replayed(saved)
    overview = read_overview(saved, frozenset([*sample.questions, *shown_strips]))
    print_lines(summary(overview, questions))
    shown = sample.cut(overview.kept)
    now = {} if options.model is None else _score(options.model, shown, questions, tokenizer)
    replayed = None
    if shown_strips:
        read = strips.read_strips(
            saved, shown_strips, overview.kept, questions, options.rollouts, tokenizer
        )
        replayed = strips.content(read, saved, questions, options.rollouts is not None)
    page = build_page(overview, sample, questions, Decoder(tokenizer), options.model, now, replayed)
    with replaced(options.html) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(
        f"\n{options.html}: {sum(map(len, shown.values())):,} of {len(overview.lengths):,} "
        "trajectories"
    )


def _score(
    model: str,
    shown: Mapping[str, list[Trajectory]],
    questions: Mapping[str, Question],
    tokenizer: Any,
) -> dict[str, list[npt.NDArray[np.float32]]]:
    """Log-probs under the model, for the questions whose prompts are known."""
    from exgrpo_tools.inspect.recompute import LogProbScorer, prompt_tokens

    scorer = LogProbScorer(model, len(tokenizer))
    known = [name for name in shown if name in questions]
    now = {}
    for name in progress(known, len(known), "scoring", "question"):
        prompt = prompt_tokens(tokenizer, questions[name].messages)
        now[name] = [scorer.score(prompt, trajectory.tokens)[0] for trajectory in shown[name]]
    return now


def _rows(
    saved: SavedPool, questions: Mapping[str, Question], decoder: Decoder | None
) -> Iterator[Row]:
    buckets = dict(zip(saved.state.questions, saved.state.buckets, strict=True))
    total = saved.manifest["counts"]["trajectories"]
    for name, trajectory in progress(saved.trajectories(), total, "exporting", "row"):
        text = questions[name].text if name in questions else None
        response = None if decoder is None else decoder.text(trajectory.tokens)
        yield to_row(name, buckets[name], trajectory, text, response)
