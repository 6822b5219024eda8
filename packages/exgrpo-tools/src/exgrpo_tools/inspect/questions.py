"""The questions of verl data files as a person or a model reads them: texts, messages and gold answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exgrpo.experience.question_id import question_id, question_text, row_question_id


@dataclass(frozen=True)
class Question:
    """A row of verl's schema.

    Attributes:
        messages: the prompt, before the chat template.
        gold: the correct answer; empty if the row has none.
    """

    messages: list[dict[str, Any]]
    gold: str

    @property
    def text(self) -> str:
        """The last user message; a question's id is its hash."""
        return question_text(self.messages)


def read_questions(files: Sequence[str]) -> dict[str, Question]:
    """question id -> question, in the order of the files' rows.

    Raises:
        ValueError: a file without a column `prompt`, or that cannot be read.
    """
    return {name: question for path in files for name, question in _rows(Path(path).expanduser())}


def ids_by_text(questions: dict[str, Question]) -> dict[str, str]:
    """Hash of a question's text -> its id; they differ if a data file sets its own ids.

    A text with two ids is left out, since it is ambiguous.
    """
    ids: dict[str, list[str]] = {}
    for name, question in questions.items():
        ids.setdefault(question_id(question.text), []).append(name)
    return {text: names[0] for text, names in ids.items() if len(names) == 1}


def _rows(path: Path) -> list[tuple[str, Question]]:
    try:
        table = _table(path)
    except ValueError as error:  # pyarrow's errors are ValueErrors, too
        raise ValueError(f"{path}: cannot be read ({error})") from error
    if "prompt" not in table.column_names:
        raise ValueError(f"{path}: must have a column prompt; it has {', '.join(table.column_names)}")
    absent: list[Any] = [None] * table.num_rows
    rewards = table["reward_model"].to_pylist() if "reward_model" in table.column_names else absent
    extras = table["extra_info"].to_pylist() if "extra_info" in table.column_names else absent
    rows = []
    for messages, reward, extra in zip(table["prompt"].to_pylist(), rewards, extras, strict=True):
        gold = (reward or {}).get("ground_truth")
        rows.append((row_question_id(extra, messages), Question(messages, "" if gold is None else str(gold))))
    return rows


def _table(path: Path) -> Any:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path)
    import pyarrow.json

    return pyarrow.json.read_json(path)
