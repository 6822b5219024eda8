"""Rows of verl's parquet schema, written by the scripts of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exgrpo.experience.question_id import prompt_id
from exgrpo.saved import durable
from exgrpo_tools.sources import open_file

SYSTEM_PROMPT = Path(__file__).with_name("system_prompt.txt")


def read_system_prompt(file: str) -> str | None:
    """The text of a system message, or the one of all rows of a parquet file in verl's schema; None
    for ``none``.

    Raises:
        OSError: no such file.
        ValueError: the file is empty, or a parquet file's rows have different system messages, or
            none.
    """
    if file == "none":
        return None
    text = (
        _of_rows(file)
        if file.endswith(".parquet")
        else Path(file).read_text(encoding="utf-8").strip()
    )
    if not text:
        raise ValueError(
            f"--system_prompt_file {file}: empty; 'none' leaves the system message out"
        )
    return text


def _of_rows(file: str) -> str:
    source = open_file(Path(file))
    if "prompt" not in source.columns:
        raise ValueError(
            f"--system_prompt_file {file}: no column 'prompt'; it has {', '.join(source.columns)}"
        )
    prompts = [row["prompt"] for row in source.rows(["prompt"])]
    messages = {turns[0]["content"] if turns[0]["role"] == "system" else None for turns in prompts}
    if len(messages) != 1:
        raise ValueError(
            f"--system_prompt_file {file}: has {len(messages)} system messages; must be one "
            "in all rows"
        )
    return messages.pop() or ""


def make_row(
    question: str | list[dict[str, Any]],
    answer: str | list[str],
    index: int,
    *,
    data_source: str,
    split: str,
    system: str | None,
) -> dict[str, Any]:
    """One row of verl's schema; ``extra_info.question_id`` is the same in every file that has the
    question.

    Args:
        question: its text, or all messages of a chat.
        answer: or several, each of which counts.
    """
    instructions = [{"role": "system", "content": system}] if system else []
    chat = [{"role": "user", "content": question}] if isinstance(question, str) else question
    return {
        "data_source": data_source,
        "prompt": [*instructions, *chat],
        "ability": "math",
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": index, "question_id": prompt_id(chat), "split": split},
    }


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows; a file that was there is replaced once the new one is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    with durable.replaced(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary)
