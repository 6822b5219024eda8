"""What is generated: one request per sample, each with its own seed, and the row made of its
response.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from exgrpo_eval.generate.question_files import Question

Key = tuple[str, int, int]  # benchmark, question, sample


@dataclass(frozen=True)
class Prompt:
    """A question as the model sees it, as text and as tokens; or as messages for a server's chat
    template.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    messages: tuple[dict[str, str], ...] | None = None


@dataclass(frozen=True)
class Request:
    """Sample number `sample` of a question, as it is sent to the engine."""

    question: Question
    sample: int
    seed: int
    prompt: Prompt

    @property
    def key(self) -> Key:
        """Identifies the sample; the same in every run on the same files."""
        return (self.question.benchmark, self.question.index, self.sample)


@dataclass(frozen=True)
class Response:
    """The response to the request at position `place` of a list; `tokens` includes the end
    token.
    """

    place: int
    text: str
    tokens: int
    finish_reason: str


def sample_seed(seed: int, question_id: str, sample: int) -> int:
    """Seed of one sample, below 2^48; depends only on the run's seed, the question and the sample's
    number.
    """
    digest = hashlib.sha256(f"{seed}:{question_id}:{sample}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def plan(
    questions: Sequence[Question],
    samples: Callable[[str, int], int],
    seed: int,
    encode: Callable[[Question], Prompt],
) -> list[Request]:
    """All requests, in the order of the final file.

    Args:
        samples: (benchmark, repeats) -> samples per question.
        encode: question -> its prompt.
    """
    requests = []
    for question in questions:
        prompt = encode(question)
        for sample in range(samples(question.benchmark, question.repeats)):
            requests.append(
                Request(question, sample, sample_seed(seed, question.question_id, sample), prompt)
            )
    return requests


def row(request: Request, response: Response) -> dict[str, Any]:
    """The row of the output file for a finished sample, before it is judged."""
    question = request.question
    optional = {
        "grader": question.grader,
        "cluster": question.cluster,
        "answers": list(question.answers),
    }
    return {
        "benchmark": question.benchmark,
        "question": question.index,
        "question_id": question.question_id,
        "sample": request.sample,
        "seed": request.seed,
        "prompt": request.prompt.text,
        "response": response.text,
        "tokens": response.tokens,
        "finish_reason": response.finish_reason,
        "answer": question.answer,
        "input_file": question.input_file,
        **{key: value for key, value in optional.items() if value},
    }
