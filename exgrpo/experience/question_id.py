"""The identity of a question: the same in every file, order and run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def question_id(text: str) -> str:
    """128-bit hex hash of the question text, its white space folded."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:32]


def row_question_id(extra_info: Mapping[str, Any] | None, prompt: Sequence[Mapping[str, Any]]) -> str:
    """The id of a row of verl's schema.

    Args:
        extra_info: its ``question_id`` is the id, where there is one (data/prepare_train.py writes it).
        prompt: messages; else the id is the hash of the last user message.
    """
    given = (extra_info or {}).get("question_id")
    if given:
        return str(given)
    users = [message["content"] for message in prompt if message["role"] == "user"]
    return question_id(users[-1] if users else prompt[-1]["content"])


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 of a transformers tokenizer's vocabulary: tokens mean the same where it is equal."""
    digest = hashlib.sha256()
    for token, number in sorted(tokenizer.get_vocab().items()):
        digest.update(f"{number} {token}\n".encode())
    return digest.hexdigest()


def fingerprint(questions: Iterable[str]) -> str:
    """SHA-256 of a set of question ids, whatever their order: what a saved pool belongs to."""
    digest = hashlib.sha256()
    for question in sorted(questions):
        digest.update(question.encode() + b"\n")
    return digest.hexdigest()
