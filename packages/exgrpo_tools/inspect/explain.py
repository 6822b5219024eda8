"""`--explain STEP [ROW]`: why a question and a trajectory were replayed in a step, and what they
weighed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from exgrpo.experience.replay_log import LoggedReplay
from exgrpo.experience.replayed_group import WHOLE_GROUP
from exgrpo.provenance import UNKNOWN
from exgrpo.saved.pool_files import SavedPool
from exgrpo_tools.inspect.questions import Question


def explanation(
    saved: SavedPool, step: int, row: int | None, questions: Mapping[str, Question]
) -> Iterator[str]:
    """The lines on a step's replayed rows, or on one of them (1 is the first).

    Raises:
        ValueError: the step was not recorded, or has no such row.
    """
    rows = [each for each in saved.replays if each.step == step]
    if not rows:
        recorded = sorted({each.step for each in saved.replays})
        span = f"{recorded[0]} to {recorded[-1]}" if recorded else "none"
        raise ValueError(
            f"--explain={step}: nothing was replayed in this step; steps with replayed rows: {span}"
        )
    if row is None:
        yield from _overview(rows)
        return
    if not 1 <= row <= len(rows):
        raise ValueError(f"--explain={step} {row}: must be a row from 1 to {len(rows)}")
    yield from about_row(rows[row - 1], row, len(rows), saved.manifest["rollout_n"], questions)


def _overview(rows: Sequence[LoggedReplay]) -> Iterator[str]:
    yield (
        f"step {rows[0].step}: {len(rows)} rows were replayed; --explain {rows[0].step} ROW "
        "explains one"
    )
    yield (
        f"{'row':>4} "
        f"{'question':34}{'bucket':>7}{'age':>5}{'candidates':>11}{'advantage':>11}{'loss share':>11}"  # noqa: E501
    )
    for number, row in enumerate(rows, 1):
        age, effect = row.step - row.generated, row.effect
        yield (
            f"{number:4} {row.question[:32]:34}{row.odds.bucket:7}{age:5}{len(row.candidates):11}"
            f"{effect.advantage:11.4f}{effect.step_share:11.2%}"
        )


def about_row(
    row: LoggedReplay, number: int, count: int, rollout_n: int, questions: Mapping[str, Question]
) -> Iterator[str]:
    """The lines on one row, the `number`-th of its step's `count`: a name of at most 16 characters,
    then what it is.
    """
    odds = row.odds
    yield f"{'row':16}{number} of {count} in step {row.step}"
    yield f"{'question':16}{row.question}"
    if row.question in questions:
        yield f"{'':16}{' '.join(questions[row.question].text.split())[:200]}"
        yield f"{'gold':16}{questions[row.question].gold}"
    yield ""
    if odds.bucket < 0:
        how = (
            "a whole past group, at random"
            if row.chosen == WHOLE_GROUP
            else "not by this replay's own draw"
        )
        yield f"{'drawn':16}{how}: its odds are not known"
    else:
        yield (
            f"{'bucket':16}{odds.bucket} of {rollout_n} solved; {odds.size:,} questions of it "
            "could be drawn"
        )
        yield (
            f"{'bucket drawn':16}{odds.probability:.4f} probability of each draw, among the "
            "buckets with questions"
        )
        yield (
            f"{'question drawn':16}{inclusion(row):.4f} probability to be among the step's "
            f"{odds.drawn} questions"
        )
    yield ""
    yield f"{'candidates':16}{'generated':>10}{'recorded':>10}{'current':>10}"
    for at, candidate in enumerate(row.candidates):
        mark = "  <- replayed" if row.chosen in (at, WHOLE_GROUP) else ""
        yield (
            f"{at + 1:>10}{'':6}{f'step {candidate.step}':>10}{_number(candidate.entropy):>10}"
            f"{_number(candidate.score):>10}{mark}"
        )
    yield (
        f"{'':16}entropies in nats a token; current: by the rule of exp_metric, - where nothing "
        "was compared"
    )
    yield f"{'judged by':16}{row.grader or UNKNOWN}"
    yield ""
    yield from _effect(row)


def _effect(row: LoggedReplay) -> Iterator[str]:
    effect = row.effect
    if math.isnan(effect.ratio_mean):
        yield f"{'ratios':16}unknown: its log-probs were not recorded"
    else:
        yield (
            f"{'ratios':16}mean {effect.ratio_mean:.4f}, {effect.ratio_low:.4f} to "
            f"{effect.ratio_high:.4f} over "
            f"{row.tokens:,} tokens; effective sample size {effect.ratio_ess:.3f}"
        )
    yield f"{'group':16}mean reward {_number(effect.group_mean)}, this row's {row.reward:g}"
    if math.isnan(effect.advantage):
        yield (
            f"{'advantage':16}unknown: the run's loss is not ours alone, over GRPO's advantages "
            "of the rewards"
        )
        return
    yield f"{'advantage':16}{effect.advantage:.4f}"
    yield (
        f"{'loss':16}{effect.group_share:.2%} of its group's absolute token losses, "
        f"{effect.step_share:.2%} of the "
        "step's, before the first update"
    )


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def inclusion(row: LoggedReplay) -> float:
    """Probability that a draw of `drawn` questions has this one: E[min(Binomial(drawn, p), size)] /
    size.

    Leaves out what a full bucket passes on to the others.
    """
    odds = row.odds
    chances = [
        math.comb(odds.drawn, k) * odds.probability**k * (1 - odds.probability) ** (odds.drawn - k)
        for k in range(odds.drawn + 1)
    ]
    return sum(chance * min(k, odds.size) for k, chance in enumerate(chances)) / odds.size
