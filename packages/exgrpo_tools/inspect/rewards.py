"""`--rewards`: judge stored successes, and a run's rollouts, again by both graders; where do they
disagree?
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exgrpo import full_grader
from exgrpo.gold_answers import golds_of, latex_forms
from exgrpo.math_verify_reward import FULL_GRADER, THINK_END, Verifier, judged_part
from exgrpo.provenance import Provenance, version_of
from exgrpo.saved.durable import replaced
from exgrpo.saved.pool_files import SavedPool
from exgrpo_tools.inspect.progress import progress
from exgrpo_tools.inspect.questions import Question
from exgrpo_tools.inspect.text import print_lines
from exgrpo_tools.reward_option import SUCCESS, Reward

SHOWN = 20  # rows on the terminal
LIMIT_S = 5.0  # for an answer, the reward's own default
_TAIL = 60  # characters of an answer that are shown
_NONE = "nothing"
_READ: list[tuple[str, Any, str]] = [
    ("output", str, "a text"),
    ("score", int | float, "a number"),
    ("step", int, "an integer"),
]


@dataclass(frozen=True)
class Judged:
    """A response and its verdicts.

    Attributes:
        place: pool or rollouts.
        step, question: that generated it; the question's id, or the rollout's uid.
        grader: recorded with it; score: 1 for a stored success, of a rollout what the run gave.
        strict: Math-Verify's verdict now; rule: by which the full grader accepts it now, None if it
            does not.
        gold, answer: the right answer; the end of what was judged.
        reward: what the reward function of --reward, or the pool's own, gives now; None without
            one, or if it fails.
    """

    place: str
    step: int
    question: str
    grader: str
    score: float
    strict: bool
    rule: str | None
    gold: str
    answer: str
    reward: float | None = None

    @property
    def full(self) -> bool:
        return self.rule is not None

    @property
    def notable(self) -> bool:
        """Whether the graders disagree with each other, or both with the run; with a reward
        function whether that and the run do.
        """
        if self.reward is not None:
            return (self.reward > SUCCESS) != (self.score > SUCCESS)
        return self.strict != self.full or self.full != (self.score > SUCCESS)


class _Graders:
    def __init__(self, reward: Reward | None) -> None:
        self._process = Verifier(*FULL_GRADER)
        self._reward = None if reward is None or reward.is_ours else reward

    def judge(
        self,
        place: str,
        step: int,
        question: str,
        author: Provenance,
        score: float,
        handed: Mapping[str, Any],
        text: str,
    ) -> Judged:
        """Both verdicts on a text; what follows </think> is judged if the run did so, or if that is
        not known.
        """
        think = author.requires_think if author.is_ours else THINK_END in text
        part = judged_part(text, think)
        golds = golds_of(handed["ground_truth"])
        found = [
            self._process.judge(forms, part, LIMIT_S, LIMIT_S) or {"correct": False, "rule": None}
            for forms in filter(None, map(latex_forms, golds if part else ()))
        ]
        strict = any(each["correct"] for each in found)
        rule = next((each["rule"] for each in found if each["rule"] is not None), None)
        answer = " ".join(part.split())[-_TAIL:]
        now = self._score(text, handed)
        gold = ", ".join(golds)
        return Judged(place, step, question, str(author), score, strict, rule, gold, answer, now)

    def _score(self, text: str, handed: Mapping[str, Any]) -> float | None:
        try:
            return None if self._reward is None else self._reward.score(text, handed)[0]
        except ValueError as error:
            print_lines([f"--reward: {error}"], sys.stderr)
            return None

    def close(self) -> None:
        self._process.close()


def judge_again(
    saved: SavedPool,
    questions: Mapping[str, Question],
    tokenizer: Any,
    rollouts: Path | None,
    reward: Reward | None = None,
) -> list[Judged]:
    """Verdicts on the pool's trajectories whose question has a gold, then on the rollouts in a
    folder of dumps.

    Args:
        reward: a reward function that judges, too.

    Raises:
        ValueError: the full grader's package is not installed, the folder has no dumps, or one is
            none of verl's.
    """
    full_grader.package()
    graders = _Graders(reward)
    try:
        rows = list(_pool(saved, questions, tokenizer, graders))
        if rollouts is not None:
            authors = Counter(row.grader for row in rows)
            usual = Provenance.read(authors.most_common(1)[0][0] if authors else None).by("")
            rows += _dumps(rollouts, usual, graders)
        return rows
    finally:
        graders.close()


def _pool(
    saved: SavedPool, questions: Mapping[str, Question], tokenizer: Any, graders: _Graders
) -> Iterator[Judged]:
    total = saved.manifest["counts"]["trajectories"]
    for name, trajectory in progress(saved.trajectories(), total, "judging", "row"):
        if name in questions and questions[name].gold:
            text = tokenizer.decode(trajectory.tokens.tolist(), skip_special_tokens=True)
            author = Provenance.read(trajectory.grader)
            handed = questions[name].reward_arguments
            yield graders.judge("pool", trajectory.step, name, author, 1.0, handed, text)


def _dumps(folder: Path, author: Provenance, graders: _Graders) -> Iterator[Judged]:
    """Rows of verl's trainer.rollout_data_dir; without replayed ones' marks."""
    for row in dumped_rows(folder):
        handed: dict[str, Any] = {
            "data_source": "",
            "ground_truth": row.get("gts"),
            "extra_info": {},
        }
        uid, score = str(row.get("uid", "")), float(row["score"])
        yield graders.judge("rollouts", row["step"], uid, author, score, handed, row["output"])


def dumped_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of verl's trainer.rollout_data_dir: a file a step, a line a rollout.

    Raises:
        ValueError: the folder has no such files, or a row is none of verl's.
    """
    files = sorted(folder.glob("*.jsonl"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        raise ValueError(
            f"--rollouts={folder}: has no files STEP.jsonl, as trainer.rollout_data_dir gets them"
        )
    for path in progress(files, len(files), "reading rollouts", "step"):
        yield from _dumped(path)


def _dumped(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a dump; a last line that a kill left half written is passed over, and said."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    raise ValueError(f"{path}:{number}: must be a JSON object ({error})") from error
                print_lines([f"{path}:{number}: passed over, it is half written"], sys.stderr)
                return
            if not isinstance(row, dict):
                raise ValueError(
                    f"{path}:{number}: is a {type(row).__name__}: must be a JSON object"
                )
            for name, kind, must in _READ:
                if not isinstance(row.get(name), kind):
                    raise ValueError(
                        f"{path}:{number}: {name}={str(row.get(name))[:60]!r}: must be {must}"
                    )
            yield row


def lines(rows: list[Judged], unjudged: int, reward: Reward | None = None) -> Iterator[str]:
    """Counts, then the rows that someone should check."""
    custom = reward is not None and not reward.is_ours
    yield f"{'judged again by':16}strict and full: {version_of('full')}"
    if reward is not None and custom:
        yield f"{'and by':16}{reward.author}"
    for place in ("pool", "rollouts"):
        part = [row for row in rows if row.place == place]
        if part:
            yield from _counts(place, part)
    if unjudged:
        yield (
            f"{'not judged':16}{unjudged:,} trajectories: their question is not in "
            "--train_files or has no gold"
        )
    notable = [row for row in rows if row.notable]
    yield ""
    differ = "the graders disagree, or both disagree with the run"
    yield f"{len(notable):,} rows on which {'reward and run disagree' if custom else differ}"
    for row in notable[:SHOWN]:
        full = f"right by {row.rule}" if row.rule else "wrong"
        yield (
            f"{row.place}, step {row.step}, {row.question}: run {row.score:g}, strict "
            f"{'right' if row.strict else 'wrong'}, full {full}"
            f"{'' if row.reward is None else f', reward {row.reward:g}'}"
        )
        yield f"    gold {row.gold}   answer ...{row.answer}"
    if len(notable) > SHOWN:
        yield f"{len(notable) - SHOWN:,} more; --export FILE.jsonl writes all rows"


def _counts(place: str, rows: list[Judged]) -> Iterator[str]:
    table = Counter((row.full, row.strict) for row in rows)
    rules = Counter(row.rule or _NONE for row in rows)
    recorded = Counter(row.grader for row in rows)
    yield ""
    yield f"{place:16}{len(rows):,} responses"
    yield f"{'recorded':16}" + ", ".join(
        f"{name} ({count:,})" for name, count in recorded.most_common()
    )
    yield f"{'':16}{'strict right':>14}{'strict wrong':>14}"
    yield f"{'full right':16}{table[True, True]:14,}{table[True, False]:14,}"
    yield f"{'full wrong':16}{table[False, True]:14,}{table[False, False]:14,}"
    yield f"{'decided by':16}" + ", ".join(
        f"{name} {count:,}" for name, count in rules.most_common()
    )
    differ = sum(row.full != (row.score > 0.5) for row in rows)
    yield f"{'run and full':16}differ on {differ:,}"
    scored = [row for row in rows if row.reward is not None]
    if scored:
        yield f"{'run and reward':16}differ on {sum(row.notable for row in scored):,}"


def export(path: Path, rows: Iterable[Judged]) -> int:
    """All rows as JSON lines, the notable ones first."""
    ordered = sorted(rows, key=lambda row: not row.notable)
    with replaced(path) as temporary:
        temporary.write_text(
            "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in ordered),
            encoding="utf-8",
        )
    return len(ordered)
