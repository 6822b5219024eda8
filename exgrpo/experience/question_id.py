"""The identity of a question: the same in every file, order and run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def question_id(text: str) -> str:
    """128-bit hex hash of the question text with white space collapsed."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:32]


def row_question_id(
    extra_info: Mapping[str, Any] | None, prompt: Sequence[Mapping[str, Any]]
) -> str:
    """The id of a row of verl's schema.

    Args:
        extra_info: its ``question_id`` is the id, if it has one (data/prepare_train.py writes it).
        prompt: messages; without a ``question_id`` the id is that of `prompt_id`.
    """
    stored_id = (extra_info or {}).get("question_id")
    if stored_id:
        return str(stored_id)
    return prompt_id(prompt)


def prompt_id(prompt: Sequence[Mapping[str, Any]]) -> str:
    """The id of a prompt: the hash of its question, of a longer chat that of all messages.

    A single question has no other messages than one with instructions before it.
    """
    instructed = prompt[0]["role"] in ("system", "developer")
    if len(prompt) <= 1 + instructed:
        return question_id(question_text(prompt))
    # columns of Parquet have all keys in all messages, as null
    said = [{key: value for key, value in each.items() if value is not None} for each in prompt]
    return question_id(json.dumps(said, sort_keys=True, ensure_ascii=False, default=str))


def question_text(prompt: Sequence[Mapping[str, Any]]) -> str:
    """The last user message of a prompt, or its last message where none is a user's."""
    user_texts = [message["content"] for message in prompt if message["role"] == "user"]
    return str(user_texts[-1] if user_texts else prompt[-1]["content"])


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's vocabulary: equal fingerprints, equal meaning of token ids."""
    digest = hashlib.sha256()
    for token, number in sorted(tokenizer.get_vocab().items()):
        digest.update(f"{number} {token}\n".encode())
    return digest.hexdigest()


def fingerprint(questions: Iterable[str]) -> str:
    """SHA-256 of question ids in any order: of the data set that a saved pool belongs to."""
    digest = hashlib.sha256()
    for question in sorted(questions):
        digest.update(question.encode() + b"\n")
    return digest.hexdigest()
