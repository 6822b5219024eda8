"""What replay did, question by question, for the page: when it was asked, when a past answer of it
was replayed, how many of the new rollouts were right then, and `--explain`'s words on each replay.

The pool knows what was replayed, and the steps of the answers that it holds. Every other step that
asked a question, and what was answered, is in the rollouts that verl has written
(trainer.rollout_data_dir), if there are any.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exgrpo.experience.replay_log import LoggedReplay
from exgrpo.experience.replayed_group import WHOLE_GROUP
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved.pool_files import SavedPool
from exgrpo_tools.inspect.explain import about_row
from exgrpo_tools.inspect.questions import Question
from exgrpo_tools.inspect.recompute import prompt_tokens
from exgrpo_tools.inspect.rewards import dumped_rows

SHOWN = 100  # questions
TEXT = 800  # characters of a rollout, its end
TEXTS = 3_000_000  # of all rollouts on the page
# kinds of cells; FOUND: a success of this step is still stored, what else is not known; WHOLE: a
# past group was replayed
ASKED, REPLAYED, FOUND, WHOLE = range(4)


@dataclass(frozen=True)
class Rollout:
    """A rollout of a step; `past`: it was replayed, and not generated in the step."""

    text: str
    right: bool
    past: bool


@dataclass
class Moment:
    """A question in a step.

    Attributes:
        replay: what was replayed of it, with its number in the step and their count.
        rollouts: its group; empty if they were not written.
    """

    replay: tuple[LoggedReplay, int, int] | None = None
    rollouts: list[Rollout] = field(default_factory=list)

    @property
    def kind(self) -> int:
        if self.replay is None:
            return ASKED if self.rollouts else FOUND
        return WHOLE if self.replay[0].chosen == WHOLE_GROUP else REPLAYED


Strips = dict[str, dict[int, Moment]]  # question -> step -> what happened


def most_replayed(saved: SavedPool) -> list[str]:
    """The questions that have a strip: those that were replayed most often, at most SHOWN."""
    counts = Counter(row.question for row in saved.replays)
    return [name for name, _ in counts.most_common(SHOWN)]


def read_strips(
    saved: SavedPool,
    shown: Sequence[str],
    kept: Mapping[str, Iterable[Trajectory]],
    questions: Mapping[str, Question],
    rollouts: Path | None,
    tokenizer: Any,
) -> Strips:
    """What happened to each shown question, in the order of their first steps.

    Args:
        kept: the trajectories that the pool holds of them.
        questions: of the data files; the rollouts are found by them.
        rollouts: folder of verl's rollouts; None if there is none.

    Raises:
        ValueError: the folder has none of verl's files, or none of these questions.
    """
    strips: Strips = {name: {} for name in shown}
    for step, rows in _by_step(saved.replays).items():
        for number, row in enumerate(rows, 1):
            if row.question in strips:
                strips[row.question][step] = Moment((row, number, len(rows)))
    if rollouts is not None:
        _add_rollouts(strips, questions, rollouts, tokenizer, saved.manifest)
    else:
        for name, moments in strips.items():
            for trajectory in kept.get(name, ()):
                if trajectory.step:  # those of an import have none
                    moments.setdefault(trajectory.step, Moment())
    began = {name: min(steps) for name, steps in strips.items()}
    return {
        name: dict(sorted(strips[name].items())) for name in sorted(shown, key=began.__getitem__)
    }


def _by_step(replays: Iterable[LoggedReplay]) -> dict[int, list[LoggedReplay]]:
    rows: dict[int, list[LoggedReplay]] = {}
    for row in replays:
        rows.setdefault(row.step, []).append(row)
    return rows


def _add_rollouts(
    strips: Strips,
    questions: Mapping[str, Question],
    folder: Path,
    tokenizer: Any,
    manifest: Mapping[str, Any],
) -> None:
    """Put the rows of verl's files to their questions, by the prompts that the tokenizer makes."""
    rollout_n, last = manifest["rollout_n"], manifest["step"]
    prompts: dict[str, str] = {}
    for name in (name for name in strips if name in questions):
        tokens = prompt_tokens(tokenizer, questions[name].messages)
        prompts[tokenizer.decode(tokens, skip_special_tokens=True).strip()] = name
    matched = 0
    for row in dumped_rows(folder):
        asked = prompts.get(str(row.get("input", "")).strip())
        if asked is None or row["step"] > last:  # the run has gone on since
            continue
        matched += 1
        moment = strips[asked].setdefault(row["step"], Moment())
        moment.rollouts.append(
            Rollout(row["output"], row["score"] > 0.5, _is_past(row, moment, rollout_n))
        )
    if strips and not matched:
        raise ValueError(
            f"--rollouts={folder}: has none of the replayed questions of --train_files, as this "
            "tokenizer writes their prompts"
        )


def _is_past(row: Mapping[str, Any], moment: Moment, rollout_n: int) -> bool:
    """Whether a row was replayed: a past answer is the last of its group, by verl's key."""
    if moment.replay is None:
        return False
    session = str(row.get("uid", "")).split("_")[-2:-1]
    return moment.kind == WHOLE or session == [str(rollout_n - 1)]


# -- as JSON values of the page --------------------------------------------------------------------


def content(
    strips: Strips, saved: SavedPool, questions: Mapping[str, Question], with_rollouts: bool
) -> dict[str, Any]:
    """The page's data: each question's cells [step, right, of, kind, card], and the cards."""
    rollout_n, room = saved.manifest["rollout_n"], TEXTS
    cards: list[dict[str, Any]] = []
    lines = []
    buckets = dict(zip(saved.state.questions, saved.state.buckets, strict=True))
    retired = set(saved.state.retired)
    for name, moments in strips.items():
        cells = []
        for step, moment in moments.items():
            right, of = _counts(moment, rollout_n)
            card = None
            if moment.kind != FOUND:
                texts = [(_end(each.text), each.right, each.past) for each in moment.rollouts]
                room -= sum(len(text) for text, *_ in texts)
                about = about_row(*moment.replay, rollout_n, questions) if moment.replay else ()
                card = len(cards)
                cards.append({"about": list(about), "rollouts": texts if room >= 0 else []})
            cells.append([step, right, of, moment.kind, card])
        state = f"now {buckets[name]} of {rollout_n}" if name in buckets else None
        lines.append(
            {
                "id": name,
                "text": questions[name].text if name in questions else None,
                "gold": questions[name].gold if name in questions else None,
                "state": "retired" if name in retired else state or "no longer in the pool",
                "cells": cells,
            }
        )
    total = len({row.question for row in saved.replays})
    return {
        "questions": lines,
        "cards": cards,
        "total": total,
        "last": int(saved.manifest["step"]),
        "with_rollouts": with_rollouts,
    }


def _counts(moment: Moment, rollout_n: int) -> tuple[int | None, int | None]:
    """How many of the step's new rollouts were right, and of how many; None: unknown."""
    if fresh := [each.right for each in moment.rollouts if not each.past]:
        return sum(fresh), len(fresh)
    if moment.replay is None:
        return None, None
    row = moment.replay[0]
    if moment.kind == WHOLE:  # nothing was generated: of the past group
        count = len(row.candidates)
        return round(row.reward * count), count
    right = row.effect.group_mean * rollout_n - row.reward
    if math.isnan(right) or abs(right - round(right)) > 1e-3:  # unknown, or no rewards of 0 and 1
        return None, None
    return round(right), rollout_n - 1


def _end(text: str) -> str:
    return text if len(text) <= TEXT else f"… {text[-TEXT:]}"
