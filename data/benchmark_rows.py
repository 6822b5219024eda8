"""Read question, answer and cluster from a row of a benchmark's source, as eval/benchmarks/*.yaml
defines them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from exgrpo.experience.question_id import question_id
from exgrpo.gold_answers import clean
from exgrpo_eval.benchmark_files import PLACEHOLDER, Benchmark
from exgrpo_tools.sources import Row
from exgrpo_tools.texts import answer_text, question_text

LETTERS = "ABCDEFGHIJ"
Pair = tuple[str, str]  # question, answer


def read(benchmark: Benchmark, row: Row) -> Pair:
    """A row's question and answer; a missing one is empty.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: the row is not in the benchmark's format.
    """
    if isinstance(benchmark.choices, list):
        question, answer = _right_first(row, benchmark.question, benchmark.choices)
    elif benchmark.choices:
        question, answer = _labelled(
            row[benchmark.question], row[benchmark.choices], row[str(benchmark.answer)]
        )
    else:
        question, answer = _free_form(row, benchmark.question, str(benchmark.answer))
    return benchmark.template.replace(PLACEHOLDER, question) if question else "", answer


def read_cluster(benchmark: Benchmark, row: Row) -> str | None:
    """The name of the cluster of a row's question, unique to the benchmark; None if it has none."""
    value = None if benchmark.cluster is None else row[benchmark.cluster]
    return None if value in (None, "") else f"{benchmark.name}: {value}"


def _free_form(row: Row, question: str, answer: str) -> Pair:
    """A question with an answer in LaTeX; several answers are joined by commas."""
    answers = row[answer]
    final = answer_text(", ".join(answers) if isinstance(answers, list) else answers)
    return question_text(row[question]), clean(final)


def _labelled(question: str, choices: Row | list[str], answer: str | int) -> Pair:
    """Choices in a list get letters; those of ARC have labels, some of them numbers. An answer may
    be an index.
    """
    if isinstance(choices, list):
        pairs = list(zip(LETTERS, choices, strict=False))
    else:
        pairs = list(zip(choices["label"], choices["text"], strict=True))
    labels = [label for label, _ in pairs]
    if isinstance(answer, int):
        answer = labels[answer] if 0 <= answer < len(labels) else ""
    return _lettered(question, pairs), answer if answer in labels else ""


def _right_first(row: Row, question: str, columns: list[str]) -> Pair:
    """Choices in columns, the right one first, in an order that depends only on the question."""
    text, *choices = (row[column].strip() for column in (question, *columns))
    order = random.Random(question_id(text)).sample(range(len(choices)), len(choices))
    letters = zip(LETTERS, (choices[place] for place in order), strict=False)
    return _lettered(text, letters), LETTERS[order.index(0)]


def _lettered(question: str, choices: Iterable[tuple[str, str]]) -> str:
    """A question with its choices below it, as "A) ..."."""
    return (
        question.strip() + "\n\n" + "\n".join(f"{label}) {text.strip()}" for label, text in choices)
    )
