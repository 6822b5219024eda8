"""The questions of verl data files as a person or a model reads them: texts, messages and gold
answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exgrpo.data_files import is_prompt
from exgrpo.experience.question_id import (
    prompt_id,
    question_id,
    question_text,
    row_question_id,
)
from exgrpo.gold_answers import golds_of
from exgrpo_tools.inspect.exchange import read_rows


@dataclass(frozen=True)
class Question:
    """A row of verl's schema.

    Attributes:
        messages: the prompt, before the chat template.
        gold: the correct answer; empty if the row has none.
        reward_arguments: what verl hands a reward function besides the response.
    """

    messages: list[dict[str, Any]]
    gold: str
    reward_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def golds(self) -> list[str]:
        """All correct answers, each of which counts."""
        return golds_of(self.reward_arguments.get("ground_truth", self.gold or None))

    @property
    def text(self) -> str:
        """The last user message."""
        return question_text(self.messages)


def read_questions(files: Sequence[str]) -> dict[str, Question]:
    """question id -> question, in the order of the files' rows.

    Raises:
        ValueError: a file without a column `prompt`, with a row that is not verl's, or that cannot
            be read.
    """
    return {name: question for path in files for name, question in _rows(Path(path).expanduser())}


def ids_by_text(questions: dict[str, Question]) -> dict[str, str]:
    """Hash of a question's text, and of a chat's messages, -> its id.

    They differ if a data file sets its own ids. A text with two ids is left out, since it is
    ambiguous.
    """
    ids: dict[str, list[str]] = {}
    for name, question in questions.items():
        for text in {question_id(question.text), prompt_id(question.messages)}:
            ids.setdefault(text, []).append(name)
    return {text: names[0] for text, names in ids.items() if len(names) == 1}


def _rows(path: Path) -> Iterator[tuple[str, Question]]:
    try:
        for number, row in read_rows(path):
            if isinstance(row, str):
                raise ValueError(f"row {number}: {row}")
            if "prompt" not in row:
                raise ValueError(
                    f"row {number}: must have a column prompt; it has {', '.join(row)}"
                )
            if wrong := _wrong(row):
                raise ValueError(f"row {number}: {wrong}")
            gold, extra = (row.get("reward_model") or {}).get("ground_truth"), row.get("extra_info")
            handed = {
                "data_source": row.get("data_source"),
                "ground_truth": gold,
                "extra_info": extra,
            }
            yield (
                row_question_id(extra, row["prompt"]),
                Question(row["prompt"], ", ".join(golds_of(gold)), handed),
            )
    except ValueError as error:  # pyarrow's errors are ValueErrors, too
        raise ValueError(f"{path}: cannot be read ({error})") from error


def _wrong(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a row's columns; None if they are in verl's format."""
    prompt = row["prompt"]
    if not is_prompt(prompt):
        return (
            f"prompt={str(prompt)[:60]!r}: must be a list of messages, {{role: text, content: "
            f"text}} each"
        )
    for name in ("reward_model", "extra_info"):
        if not isinstance(row.get(name), dict | None):
            return f"{name}={str(row[name])[:60]!r}: must be a dictionary"
    return None
