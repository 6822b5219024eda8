"""`--quarantine`: take out of a saved pool what a faulty grader let in, with a report of what it
touched; `--undo`.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exgrpo.experience.packing import unpack
from exgrpo.experience.replay_log import LoggedReplay, digest_of
from exgrpo.experience.replayed_group import WHOLE_GROUP
from exgrpo.experience.trajectory import Trajectory
from exgrpo.provenance import Provenance
from exgrpo.saved import durable
from exgrpo.saved.pool_files import SavedPool, read_groups, read_saved
from exgrpo_tools.inspect import pool_quarantine
from exgrpo_tools.inspect.text import print_lines
from exgrpo_tools.reward_option import SUCCESS

Rejects = Callable[[str, Trajectory], bool]  # question, trajectory
SHOWN = 10  # questions or steps named on the terminal


@dataclass(frozen=True)
class Suspect:
    """Whose verdicts are doubted; what is None is not asked.

    Attributes:
        grader, rule: as recorded with a trajectory; a rule counts also among several ("lists" in
            "decimals+lists").
        version: a part of the recorded version.
        first, last: steps that generated the trajectories, both included.
        reward: that judges again, and does not accept the trajectory.
        rejects: whether it does not.
    """

    grader: str | None
    version: str | None
    rule: str | None
    first: int
    last: int
    reward: str | None = None
    rejects: Rejects | None = field(default=None, repr=False)

    def holds(self, question: str, trajectory: Trajectory) -> bool:
        """Whether the trajectory is to be taken out."""
        judged = self.judged(trajectory.grader, trajectory.step)
        return judged and (self.rejects is None or self.rejects(question, trajectory))

    def judged(self, grader: str | None, step: int) -> bool:
        author = Provenance.read(grader)
        return (
            self.first <= step <= self.last
            and self.grader in (None, author.grader)
            and (self.version or "") in author.version
            and (self.rule is None or self.rule in author.rule.split("+"))
        )

    def __str__(self) -> str:
        named = [f"{name} {value}" for name in _NAMED if (value := getattr(self, name)) is not None]
        return ", ".join([*named, f"steps {self.first} to {self.last}"])


_NAMED = ("grader", "version", "rule", "reward")


@dataclass(frozen=True)
class Affected:
    """The trajectories in the pool that a suspect judged.

    Attributes:
        serials: theirs; with `tokens` tokens in all.
        digests: (question, digest) of each; `others` those of the rest of the pool.
        emptied: questions that have no other trajectory.
        graders: recorded text -> number of trajectories in the whole pool.
    """

    serials: list[int]
    tokens: int
    digests: set[tuple[str, int]]
    others: set[tuple[str, int]]
    emptied: list[str]
    graders: Counter[str]


def run(options: argparse.Namespace, folder: Path, rejects: Rejects | None = None) -> None:
    """Do it and print the report. ValueError or OSError, in one line, if it fails; the pool is then
    as it was.
    """
    with _no_run(folder):
        if options.undo:
            record = pool_quarantine.put_back(folder)
            print_lines(
                [
                    f"{folder}: as it was before; {record['trajectories']:,} trajectories "
                    f"are back ({record['asked']})"
                ]
            )
            return
        saved = read_saved(folder)
        last = options.steps[1] if options.steps else int(saved.manifest["step"])
        first = options.steps[0] if options.steps else 0
        asked = options.grader, options.version, options.rule
        suspect = Suspect(*asked, first, last, options.reward, rejects)
        affected = find_affected(saved, suspect)
        groups = read_groups(folder)
        kept = [
            group
            for group in groups
            if not any(
                suspect.holds(group.question, one)
                for one in group.rollouts
                # failures are none of a reward's mistakes
                if rejects is None or one.reward > SUCCESS
            )
        ]
        if not affected.serials and len(kept) == len(groups):
            graders = ", ".join(
                f"{name!r} ({count:,})" for name, count in affected.graders.most_common()
            )
            raise ValueError(
                f"--quarantine: no trajectory in the pool was judged by {suspect}; recorded "
                f"are {graders}"
            )
        print_lines(report(saved, suspect, affected))
        if groups:
            print(
                f"{'past groups':16}{len(groups) - len(kept):,} of {len(groups):,} hold "
                "what it judged and leave too"
            )
        if options.dry_run:
            print(f"{'written':16}nothing (--dry_run)")
            return
        record = {
            "asked": str(suspect),
            "trajectories": len(affected.serials),
            "emptied": affected.emptied,
        }
        pool_quarantine.take_out(
            saved, affected.serials, affected.tokens, affected.emptied, record, kept
        )
        print(f"{'written':16}{folder}; --quarantine --undo puts everything back")


@contextlib.contextmanager
def _no_run(folder: Path) -> Iterator[None]:
    """Hold the lock of the run's folder, if it is one, so that no training writes meanwhile."""
    # a checkpoint or its pool may be a link, from or to the run's folder
    roots = {
        folder.parent.parent.resolve(),
        folder.parent.resolve().parent,
        folder.resolve().parent.parent,
    }
    with contextlib.ExitStack() as locks:
        for root in sorted(roots):
            if (root / durable.LOCK).is_file():
                locks.enter_context(durable.exclusive_on_all_hosts(root))
        yield


def find_affected(saved: SavedPool, suspect: Suspect) -> Affected:
    """One pass over the pool."""
    serials, digests, others, tokens = [], set(), set(), 0
    held: Counter[str] = Counter()
    graders: Counter[str] = Counter()
    for serial, question, packed in saved.records():
        trajectory = unpack(packed)
        graders[str(Provenance.read(trajectory.grader))] += 1
        held[question] += 1
        identity = question, digest_of(trajectory)
        if not suspect.holds(question, trajectory):
            others.add(identity)
            continue
        serials.append(serial)
        digests.add(identity)
        tokens += len(trajectory)
        held[question] -= 1
    emptied = [question for question in saved.state.questions if not held[question]]
    return Affected(serials, tokens, digests, others, emptied, graders)


def report(saved: SavedPool, suspect: Suspect, affected: Affected) -> Iterator[str]:
    """The lines on what is taken out and what it touched."""
    questions = {question for question, _ in affected.digests}
    yield f"{'pool':16}{saved.folder}, step {saved.manifest['step']}"
    yield f"{'quarantine':16}{suspect}"
    yield (
        f"{'taken out':16}{len(affected.serials):,} trajectories of {len(questions):,} questions, "
        f"{affected.tokens:,} tokens; {len(affected.emptied):,} questions are left without "
        "any and leave the pool"
    )
    rows = [row for row in saved.replays if row.chosen != WHOLE_GROUP]
    yield from _replays(
        [row for row in rows if suspect.judged(row.grader, row.generated)], affected
    )
    yield from _retired(saved, suspect)


def _replays(rows: Sequence[LoggedReplay], affected: Affected) -> Iterator[str]:
    """How often what the suspect judged was replayed; also what has left the pool since."""
    if not rows:
        yield f"{'replayed':16}never"
        return
    distinct = {(row.question, row.digest) for row in rows}
    steps = Counter(row.step for row in rows)
    again = len(distinct & affected.others)
    gone = len(distinct - affected.digests) - again
    yield (
        f"{'replayed':16}{len(rows):,} times, {len(distinct):,} trajectories; {again:,} of "
        "them were sampled again in "
        f"other steps and stay, {gone:,} had left the pool before"
    )
    listed = ", ".join(f"{step} ({count})" for step, count in sorted(steps.items())[:SHOWN])
    more = (
        f", and in {len(steps) - SHOWN} more, the last {max(steps)}" if len(steps) > SHOWN else ""
    )
    yield f"{'in steps':16}{listed}{more}"


def _retired(saved: SavedPool, suspect: Suspect) -> Iterator[str]:
    retired = retired_in(saved.history, saved.state.retired, suspect.first, suspect.last)
    names = ", ".join(retired[:SHOWN]) + (", ..." if len(retired) > SHOWN else "")
    yield f"{'retired':16}{len(retired):,} questions in these steps, and they stay retired" + (
        names and f": {names}"
    )
    if retired and suspect.rule is not None:
        yield f"{'':16}which rules had accepted their answers is not recorded"


def retired_in(
    history: Sequence[Mapping[str, float]], retired: Sequence[str], first: int, last: int
) -> list[str]:
    """The questions that were retired in steps first to last: the list is in order of retirement,
    the history counts.

    Questions retired before the history begins are left out.
    """
    counts = [
        (int(row["step"]), int(row["retired_questions"]))
        for row in history
        if "retired_questions" in row
    ]
    begin = max([0, *(count for step, count in counts if step < first)])
    end = max([begin, *(count for step, count in counts if step <= last)])
    return list(retired[begin:end])
