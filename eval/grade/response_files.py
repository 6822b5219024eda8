"""Read the responses of another harness into rows of an output file, ready to be graded.

A row has one of three forms: plain columns (the names below: of this evaluation, verl's dumps, the
release, the toolkit of Qwen2.5-Math, OpenCompass, TRL), a sample of lm-eval's ``--log_samples``, or
a row of lighteval's details. A row with a list of responses gives that many samples of its
question. The released evaluation's files have no names of benchmarks: those come from the
questions' files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exgrpo.math_verify_reward import THINK_END
from exgrpo.prompts import THINK, opens_thought
from exgrpo_eval.generate import question_files
from exgrpo_eval.generate.question_files import Question
from exgrpo_tools.sources import Row, open_file
from exgrpo_tools.texts import answer_text, answer_texts, question_text

QUESTION = ("question", "problem", "prompt", "query", "input", "messages", "origin_prompt")
IDENTIFIER = ("question_id", "id", "doc_id", "unique_id")
RESPONSE = (
    *(
        "response",
        "responses",
        "completion",
        "completions",
        "generation",
        "generations",
        "output",
        "outputs",
    ),
    "generated_text",  # of the released evaluation
    "code",  # of Qwen2.5-Math's, with or without a program
    *(
        "prediction",
        "pred",
    ),  # last, since some harnesses call the extracted answer so, beside a response
)
GOLD = (
    "gold",
    "ground_truth",
    "gt",
    "gts",
    "target",
    "expected_answer",
    "reference",
    "reward_model",
    "answer",
)
BENCHMARK = ("benchmark", "data_source", "dataset", "task", "task_name")
TOKENS = ("tokens", "completion_tokens", "output_tokens")
FINISH = ("finish_reason", "stop_reason")
CUT_OFF = (
    "length",
    "max_tokens",
)  # the finish reasons of truncated responses in OpenAI's and other interfaces
# what the file's harness says of a response, beside which ours is shown
VERDICT = ("correct", "is_correct", "correctness", "acc", "score", "exact_match")
FORMS = {"question": QUESTION, "response": RESPONSE, "gold": GOLD, "verdict": VERDICT}
GRADERS = ("math", "letter")
SHOWN_FAULTS = 5


@dataclass(frozen=True)
class Answered:
    """A question with its responses.

    `tokens`, `reasons` and `verdicts` have an entry for each response, None where the file has
    none; `question` is then empty. `golds` are all that count, `gold` the first.
    """

    benchmark: str
    question: str
    question_id: str
    gold: str
    responses: list[str]
    tokens: list[int | None]
    reasons: list[str | None]
    grader: str | None = None
    cluster: str | None = None
    golds: tuple[str, ...] = ()
    verdicts: tuple[bool | None, ...] = ()
    columns: str = ""


@dataclass(frozen=True)
class Responses:
    """What a file holds.

    Attributes:
        rows: of an output file; None for tokens, finish reason and prompt if it has none.
        verdicts: the harness's on each row, None where there is none.
        columns: a line for each way in which rows were read: what was taken for what.
    """

    rows: list[dict[str, Any]]
    verdicts: list[bool | None]
    columns: list[str]


def read(file: Path, asked: Sequence[Path] = ()) -> Responses:
    """The file's responses.

    Args:
        asked: question files in verl's schema, whose rows are answered in their order, each by as
            many responses: they name the benchmarks.

    Raises:
        ValueError: some rows cannot be graded; the message has their numbers, from 0, and the
            reasons.
        OSError: there is no such file.
    """
    source = open_file(file)
    faults, answered = [], []
    kept_filter: str | None = None
    for number, row in enumerate(source.rows(source.columns)):
        if _is_lm_eval(row):  # lm-eval writes each response once for each of the task's filters
            kept_filter = kept_filter or row.get("filter")
            if row.get("filter") != kept_filter:
                continue
        try:
            answered.append((number, _answered(row, file)))
        except ValueError as error:
            faults.append(f"row {number}: {error}")
    if faults:
        more = f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
        raise ValueError(f"--grade_only={file}: {'; '.join(faults[:SHOWN_FAULTS])}{more}")
    ways = Counter(each.columns for _, each in answered)
    return Responses(
        _rows(
            file, _of_benchmarks(answered, question_files.in_order(asked)) if asked else answered
        ),
        [
            verdict
            for _, each in answered
            for verdict in each.verdicts or [None] * len(each.responses)
        ],
        [f"{count} rows: {columns}" for columns, count in ways.most_common()],
    )


def agreement(verdicts: Sequence[bool | None], rows: Sequence[Mapping[str, Any]]) -> str:
    """A line on the harness's verdicts beside ours on the same responses; empty if it has none."""
    pairs = [
        (theirs, bool(row["correct"]))
        for theirs, row in zip(verdicts, rows, strict=True)
        if theirs is not None
    ]
    if not pairs:
        return ""
    counts = Counter(pairs)
    return (
        f"the file's own verdicts: {counts[True, True] + counts[False, False]} of {len(pairs)} are "
        f"the same here; right there and wrong here {counts[True, False]}, wrong there and right "
        f"here {counts[False, True]}"
    )


def _of_benchmarks(
    answered: Sequence[tuple[int, Answered]], questions: Sequence[Question]
) -> list[tuple[int, Answered]]:
    """The same with the benchmarks of the questions, row by row; ValueError where they do not
    belong together.
    """
    times, rest = divmod(len(answered), len(questions))
    if rest or not times:
        counts = f"{len(questions)} questions, but --grade_only has {len(answered)} rows"
        raise ValueError(f"--input_file: has {counts}: must be as many, or a multiple")
    named = []
    for place, (number, each) in enumerate(answered):
        question = questions[place // times]
        text = question.messages[-1]["content"].strip()
        if each.gold.strip() != question.answer.strip() or (
            each.question and text not in each.question
        ):
            raise ValueError(
                f"--grade_only: row {number}: does not answer row {place // times} of --input_file"
            )
        new = replace(
            each,
            benchmark=question.benchmark,
            question_id=question.question_id,
            grader=question.grader or each.grader,
            cluster=question.cluster or each.cluster,
        )
        named.append((number, new))
    return named


def _rows(file: Path, answered: Sequence[tuple[int, Answered]]) -> list[dict[str, Any]]:
    """A row for each response; questions are numbered within their benchmark, samples within their
    question.
    """
    indices: dict[str, dict[tuple[str, str], int]] = {}
    first_row: dict[tuple[str, int], int] = {}
    samples: Counter[tuple[str, int]] = Counter()
    rows = []
    for number, question in answered:
        of_benchmark = indices.setdefault(question.benchmark, {})
        index = of_benchmark.setdefault((question.question_id, question.gold), len(of_benchmark))
        key = (question.benchmark, index)
        first_row.setdefault(key, number)
        optional = {
            "grader": question.grader,
            "cluster": question.cluster,
            "answers": list(question.golds) if len(question.golds) > 1 else None,
        }
        for response, tokens, reason in zip(
            question.responses, question.tokens, question.reasons, strict=True
        ):
            row = {
                "benchmark": question.benchmark,
                "question": index,
                "question_id": question.question_id,
                "sample": samples[key],
                "prompt": question.question or None,
                "response": response,
                "tokens": tokens,
                "finish_reason": reason,
                "answer": question.gold,
                "input_file": str(file),
            }
            rows.append(row | {name: value for name, value in optional.items() if value})
            samples[key] += 1
    _check_counts(samples, first_row, file)
    return rows


def _check_counts(
    samples: Mapping[tuple[str, int], int], first_row: Mapping[tuple[str, int], int], file: Path
) -> None:
    """ValueError if questions of a benchmark differ in their number of responses; both by
    (benchmark, question).
    """
    for (benchmark, index), count in samples.items():
        expected = samples[(benchmark, 0)]
        if count != expected:
            where = (
                f"--grade_only={file}: row {first_row[(benchmark, index)]}: its question has "
                f"{count} responses"
            )
            raise ValueError(
                f"{where}, the first of {benchmark} has {expected}: must be the same number "
                "for each question of a "
                "benchmark (--input_file QUESTIONS.parquet names the benchmark of each row)"
            )


def _answered(row: Row, file: Path) -> Answered:
    """Read a row of any form; ValueError with the reason if it cannot be graded."""
    if _is_lm_eval(row):
        return _lm_eval(row, file)
    for document, response in (("__doc__", "__model_response__"), ("doc", "model_response")):
        if isinstance(row.get(document), Mapping) and isinstance(row.get(response), Mapping):
            return _lighteval(row[document], row[response], file)
    return _plain(row, file)


def _plain(row: Row, file: Path) -> Answered:
    responses = [_with_thought(text, row) for text in _texts(_first(row, RESPONSE), RESPONSE)]
    question = next((text for name in QUESTION if (text := _asked(row.get(name)))), "")
    written_id = _first(row, IDENTIFIER)
    gold = _first(row, GOLD)
    golds = answer_texts(gold.get("ground_truth") if isinstance(gold, Mapping) else gold)
    verdicts = _verdicts(_first(row, VERDICT), len(responses))
    return _checked(
        Answered(
            benchmark=str(_first(row, BENCHMARK) or file.stem),
            question=question,
            question_id=_identity(question, written_id),
            gold=golds[0] if golds else "",
            golds=tuple(golds),
            verdicts=verdicts,
            columns=_columns(row),
            responses=responses,
            tokens=_each(_first(row, TOKENS), int, len(responses)),
            reasons=[_reason(reason) for reason in _each(_first(row, FINISH), str, len(responses))],
            grader=row.get("grader"),
            cluster=None if row.get("cluster") in (None, "") else str(row["cluster"]),
        )
    )


def _with_thought(text: str, row: Row) -> str:
    """The response in a row of the release's scored file, which leaves a thought out: its </think>
    is put back.

    A response that never closed its thought is there as a whole, behind the prompt's <think>.
    """
    if "correctness" not in row or not opens_thought(str(row.get("prompt"))):
        return text
    return text.removeprefix(THINK).lstrip("\n") if text.startswith(THINK) else THINK_END + text


def _columns(row: Row) -> str:
    """What is taken for what; a verdict that is no truth value or 0 or 1 is passed over."""
    taken = {
        part: next((name for name in names if row.get(name) is not None), None)
        for part, names in FORMS.items()
    }
    return ", ".join(f"{part} of {name}" for part, name in taken.items() if name is not None)


def _verdicts(value: Any, count: int) -> tuple[bool | None, ...]:
    """One for each response; none where the file has another number of them."""
    values = value if isinstance(value, list) else [value]
    known = [bool(each) if each in (0, 1) else None for each in values]
    return tuple(known) if len(known) == count else ()


def _asked(value: Any) -> str:
    """The question's text; OpenCompass's turns have other names."""
    if isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value):
        names = {"HUMAN": "user", "BOT": "assistant", "SYSTEM": "system"}
        value = [
            {
                "role": names.get(str(turn.get("role")), turn.get("role")),
                "content": turn.get("content", turn.get("prompt")),
            }
            for turn in value
        ]
    return question_text(value)


def _is_lm_eval(row: Row) -> bool:
    return "resps" in row and "target" in row


def _lm_eval(row: Row, file: Path) -> Answered:
    """``resps`` has a list for each request; a generating task has one request per question."""
    task = re.fullmatch(r"samples_(.+?)(_\d{4}-\d\d-\d\dT.*)?", file.stem)
    requests = row["resps"]
    if not isinstance(requests, list) or len(requests) != 1:
        raise ValueError(
            "resps: must hold one request's texts; a task that compares likelihoods cannot "
            "be graded"
        )
    responses = _texts(requests[0], ("resps",))
    question = question_text(_lm_eval_prompt(row.get("arguments")))
    return _checked(
        Answered(
            benchmark=task[1] if task else file.stem,
            question=question,
            question_id=_identity(question, row.get("doc_id")),
            gold=answer_text(row["target"]),
            verdicts=_verdicts(row.get("exact_match"), len(responses)),
            columns="samples of lm-eval",
            responses=responses,
            tokens=[None] * len(responses),
            reasons=[None] * len(responses),
        )
    )


def _lm_eval_prompt(arguments: Any) -> Any:
    """``{"gen_args_0": {"arg_0": PROMPT, ...}}`` or, before version 0.4.3, ``[[PROMPT, ...]]``."""
    if isinstance(arguments, Mapping):
        return (arguments.get("gen_args_0") or {}).get("arg_0")
    return (
        arguments[0][0] if arguments and isinstance(arguments[0], list) and arguments[0] else None
    )


def _lighteval(document: Row, response: Row, file: Path) -> Answered:
    """A response as long as ``generation_size`` counts as truncated, since the file does not record
    it otherwise.
    """
    responses = _texts(response.get("text"), ("model_response.text",))
    places = document.get("gold_index")
    places = places if isinstance(places, list) else [places]
    try:
        golds = list(dict.fromkeys(document["choices"][place] for place in places))
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("doc: gold_index must say which of its choices are right") from error
    if len(golds) > 1:
        raise ValueError(f"doc: has {len(golds)} gold answers, must have one")
    # no ids stand for a length that is not known, as in eval/export/lighteval.py
    tokens = [len(ids) or None for ids in response.get("output_tokens") or [[]] * len(responses)]
    limit = document.get("generation_size") or 0
    question = question_text(document.get("query"))
    name = [
        part
        for part in str(document.get("task_name") or file.stem).split("|")
        if not part.isdigit()
    ]
    return _checked(
        Answered(
            benchmark=name[-1],
            question=question,
            question_id=_identity(question, document.get("id")),
            gold=answer_text(golds[0] if golds else None),
            columns="details of lighteval",
            responses=responses,
            tokens=_each(tokens, int, len(responses)),
            reasons=[_reached(count, limit) for count in tokens],
        )
    )


def _checked(answered: Answered) -> Answered:
    if not answered.question_id:
        raise ValueError(
            f"no question: must have one of {', '.join(QUESTION)}, or {', '.join(IDENTIFIER)}"
        )
    if not answered.gold:
        raise ValueError(f"no gold answer: must have one of {', '.join(GOLD)}")
    if answered.grader not in (None, *GRADERS):
        raise ValueError(f"grader={answered.grader!r}: must be {' or '.join(GRADERS)}")
    return answered


def _identity(question: str, written: Any) -> str:
    """A hash of ours in the row, else the hash of the question's text; without a text, the
    harness's own number.
    """
    if isinstance(written, str) and re.fullmatch("[0-9a-f]{32}", written):
        return written
    if question:
        from exgrpo.experience.question_id import (
            question_id,
        )  # NumPy with it, which --help does without

        return question_id(question)
    return "" if written is None else str(written)


def _first(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _texts(value: Any, names: Sequence[str]) -> list[str]:
    texts = value if isinstance(value, list) and not _is_chat(value) else [value]
    # TRL's are chats, whose last turn is the response
    texts = [text[-1].get("content") if _is_chat(text) else text for text in texts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"no response: must have a text, or a list of texts, in {', '.join(names)}"
        )
    return texts


def _is_chat(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(turn, Mapping) and "role" in turn for turn in value)


def _each(value: Any, kind: type, count: int) -> list[Any]:
    """A value for each response, from a list or from a single value; None where its type is
    wrong.
    """
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count:
        raise ValueError(
            f"{count} responses, but {len(values)} values beside them: must be the same number"
        )
    return [entry if isinstance(entry, kind) else None for entry in values]


def _reason(written: str | None) -> str | None:
    return "length" if written in CUT_OFF else written


def _reached(tokens: int | None, limit: int) -> str | None:
    """The finish reason of a response of so many tokens where `limit` was allowed; None if one is
    not known.
    """
    if not tokens or limit <= 0:
        return None
    return "length" if tokens >= limit else "stop"
