"""Convert rows of another author, such as a teacher, into trajectories, or reject them with a
reason.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from exgrpo.experience.question_id import question_id, row_question_id
from exgrpo.experience.trajectory import Trajectory
from exgrpo.prompts import THINK, opens_thought, render
from exgrpo.provenance import Provenance
from exgrpo_tools.inspect.questions import Question, ids_by_text

LogProbs = Literal["recorded", "none", "model"]
_VERDICTS = ("correct", "is_correct", "acc", "score")
_TOO_LONG = 200  # characters of a reason
UNJUDGED = str(Provenance("stated", "not judged"))  # who judged a row that does not say


@dataclass(frozen=True)
class Imported:
    """An accepted row: a trajectory with its question and bucket; None if the row does not say."""

    question: str
    successes: int | None
    trajectory: Trajectory


class RowImporter:
    """Checks rows one by one; remembers accepted rows, to detect duplicates.

    A row names its question by `question_id`, `question` or `prompt` (text or messages) and has
    `tokens`, with or without `log_probs`, or a `response`, which is tokenised and closed with the
    end token; a `<think>` that it begins with is left out if the question's prompt ends with one.
    Or it is a chat: the last of its `messages`, the assistant's, is the response, those before it
    are the prompt. Optional are `successes`, `entropy`, `loss_mask`, `reward`, `note` and `grader`;
    a `step` is ignored: imported trajectories are of step 0. A row whose answer is marked wrong (a
    field correct, is_correct, acc or score that is not 1, a reward of 0) is rejected.

    Args:
        questions: question id -> question, of the data set that the pool is for.
        tokenizer: of the model to be trained.
        rollout_n: K; successes must be 0 to K; 0 is filed under 1.
        log_probs: `recorded` uses a row's own if it has them; otherwise they are left out, even if
            the row has them.
    """

    def __init__(
        self, questions: Mapping[str, Question], tokenizer: Any, rollout_n: int, log_probs: LogProbs
    ) -> None:
        self._questions = questions
        self._ids = ids_by_text(dict(questions))
        self._tokenizer = tokenizer
        self._vocab_size = len(tokenizer)
        self._rollout_n = rollout_n
        self._log_probs = log_probs
        self._seen: set[bytes] = set()

    def read(self, row: Mapping[str, Any]) -> Imported:
        """The accepted row; ValueError, in one line, with the reason if it is rejected."""
        try:
            row = _plain(row)
            _refuse_wrong(row)
            question = self._question(row)
            successes = _integer("successes", row.get("successes"), self._rollout_n)
            trajectory = self._trajectory(row, self._questions[question])
            self._refuse_duplicate(question, trajectory)
        except (
            Exception
        ) as error:  # on a row of another author a tokenizer or a template may raise any error
            raise ValueError(one_line(error)) from error
        return Imported(question, successes, trajectory)

    def _question(self, row: Mapping[str, Any]) -> str:
        field = next(
            (name for name in ("question_id", "question", "prompt") if row.get(name) is not None),
            None,
        )
        if field is None:
            raise ValueError("no question_id, question, prompt or messages: must have one of them")
        value = row[field]
        if field == "question_id" and isinstance(value, str):
            name = value if value in self._questions else None
        elif isinstance(value, str):
            name = self._ids.get(question_id(value))
        elif field != "question_id" and _is_messages(value):
            name = self._ids.get(row_question_id(None, value))
        else:
            messages = "" if field == "question_id" else " or messages"
            raise ValueError(f"{field} is a {type(value).__name__}: must be a text{messages}")
        if name is None:
            raise ValueError(f"{field}={str(value)[:60]!r}: not a question of the data")
        return name

    def _trajectory(self, row: Mapping[str, Any], question: Question) -> Trajectory:
        entropy = math.nan if row.get("entropy") is None else row["entropy"]
        if isinstance(entropy, bool) or not isinstance(entropy, int | float):
            raise ValueError(f"entropy={entropy!r}: must be a number")
        log_probs = row.get("log_probs") if self._log_probs == "recorded" else None
        if row.get("tokens") is None and log_probs is not None:
            raise ValueError("log_probs without tokens: must come with the tokens they belong to")
        tokens = self._tokens(row, question)
        rest = row.get("loss_mask"), _reward(row), row.get("note"), row.get("grader") or UNJUDGED
        if log_probs is None:
            trajectory = Trajectory.without_log_probs(tokens, 0, entropy, *rest)
        else:
            trajectory = Trajectory(tokens, _floats(log_probs), 0, entropy, *rest)
        trajectory.check_vocabulary(self._vocab_size)
        return trajectory

    def _tokens(self, row: Mapping[str, Any], question: Question) -> np.ndarray:
        if row.get("tokens") is not None:
            if not isinstance(row["tokens"], list) or any(
                isinstance(token, bool) for token in row["tokens"]
            ):
                raise ValueError("tokens must be a list of integers")
            if not row[
                "tokens"
            ]:  # a pool may hold a note without tokens, but a training cannot replay it
                raise ValueError("tokens=[]: must have one token or more, also beside a note")
            return np.asarray(row["tokens"])
        text = row.get("response")
        if text is None:
            raise ValueError("no tokens and no response: must have one of them")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"response={str(text)[:60]!r}: must be a text that is not empty")
        tokens = self._tokenizer(self._after_prompt(text, question), add_special_tokens=False)[
            "input_ids"
        ]
        end = self._tokenizer.eos_token_id
        if end is None:
            raise ValueError(
                "response: the tokenizer has no end token to close it with; tokens are required"
            )
        if not tokens or tokens[-1] != end:
            tokens = [*tokens, end]
        return np.asarray(tokens, np.int64)

    def _after_prompt(self, text: str, question: Question) -> str:
        """The response without a ``<think>`` at its start if the prompt ends with that: it would
        stand there twice.
        """
        if not text.startswith(THINK) or not getattr(self._tokenizer, "chat_template", None):
            return text
        prompt = render(self._tokenizer, question.messages)
        if not opens_thought(prompt):
            return text
        return text.removeprefix(THINK).removeprefix(prompt.rpartition(THINK)[2])

    def _refuse_duplicate(self, question: str, trajectory: Trajectory) -> None:
        digest = hashlib.blake2b(
            question.encode() + b"\n" + trajectory.key, digest_size=16
        ).digest()
        if digest in self._seen:
            raise ValueError("duplicate: an earlier row has the same question and tokens")
        self._seen.add(digest)


def one_line(error: Exception) -> str:
    """What a row is refused for, in a line of bounded length."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:_TOO_LONG]


def _plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A chat as a row with a prompt and a response; what the row says besides counts first."""
    chat = row.get("messages")
    if chat is None:
        return row
    if not _is_messages(chat) or len(chat) < 2 or chat[-1]["role"] != "assistant":
        raise ValueError(
            "messages: must have a role and a content each, and the last must be the "
            "assistant's answer"
        )
    more = [name for name, value in chat[-1].items() if value and name not in ("role", "content")]
    if more:
        raise ValueError(
            f"messages: the answer has {', '.join(more)}: must be content alone, a thought "
            "in <think>"
        )
    named = {name: value for name, value in row.items() if value is not None}
    return {"prompt": chat[:-1], "response": chat[-1]["content"], **named}


def _refuse_wrong(row: Mapping[str, Any]) -> None:
    for name in _VERDICTS:
        value = row.get(name)
        if value is None:
            continue
        if not isinstance(value, bool | int | float):
            raise ValueError(f"{name}={str(value)[:60]!r}: must be true or 1")
        if value != 1:
            raise ValueError(f"{name}={value}: must be true or 1, a correct answer")


def _reward(row: Mapping[str, Any]) -> float:
    value = 1.0 if row.get("reward") is None else row["reward"]
    if isinstance(value, str) or not isinstance(value, bool | int | float) or not 0 < value <= 1:
        raise ValueError(
            f"reward={str(value)[:60]!r}: must be above 0 and at most 1, as of a correct answer"
        )
    return float(value)


def _integer(name: str, value: Any, highest: int) -> int | None:
    if (
        isinstance(value, float) and value.is_integer()
    ):  # pandas writes an integer column with gaps as floats
        value = int(value)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest
    ):
        raise ValueError(f"{name}={str(value)[:60]}: must be an integer between 0 and {highest}")
    return value


def _floats(values: Any) -> np.ndarray:
    if not isinstance(values, list):
        raise ValueError("log_probs must be a list of numbers")
    array = np.asarray(values)
    # many JSON writers write 0.0 as 0
    return array.astype(np.float64) if array.dtype.kind == "i" else array


def _is_messages(value: Any) -> bool:
    """Whether `value` is a non-empty list of mappings with the strings role and content."""
    if not isinstance(value, list) or not value:
        return False
    if not all(isinstance(message, dict) for message in value):
        return False
    return all(
        isinstance(message.get(key), str) for message in value for key in ("role", "content")
    )
