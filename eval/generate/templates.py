"""The released prompt formats: the text around a question that is sent to the model.

The wordings are those of ExGRPO's released evaluation, to the letter; ``step_by_step`` is that of
the paper for Llama-3.1-8B base (E.1, G.1), as data/thinking_copy.py lets it be trained. ``repo``
sends the question as ``own`` does, but without a system message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

QUESTION = "{question}"  # replaced literally: questions contain braces themselves
_BOXED = "Present the answer in LaTex format: \\boxed{Your answer}"
_CODE = (
    "Write Python code to solve the problem. Present the code in \n```python\nYour "
    "code\n```\nat the end."
)
_CONVERSATION = (
    "A conversation between User and Assistant. The user asks a question, and the "
    "Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with "
    "the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
    "respectively, i.e., <think> "
    "reasoning process here </think> <answer> answer here </answer>. User: {question}. Assistant:"
)


def _chatml(system: str, user: str) -> str:
    turns = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
    return turns + "<|im_start|>assistant\n"


@dataclass(frozen=True)
class Template:
    """`text` contains QUESTION; with `chat` it is the last turn for the model's chat template, else
    the prompt.

    Attributes:
        keeps_system: whether a system message can be kept; a fixed wording has no place for one.
    """

    text: str
    chat: bool
    keeps_system: bool = False

    def render(self, messages: Sequence[dict[str, str]], tokenizer: Any) -> str:
        """The prompt of a question.

        Args:
            messages: turns that end with the user's; more than that one only if `keeps_system`.
            tokenizer: of transformers; used only with `chat`.

        Raises:
            ValueError: the wording has no place for some of the turns.
        """
        turns = self.turns(messages)
        if not self.chat:
            return turns[-1]["content"]
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def turns(self, messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """The turns with the wording around the last one's text; ValueError as for `render`."""
        if len(messages) > 1 and not self.keeps_system:
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(
                f"the prompt has the turns {roles}: only --template own has a place for them"
            )
        text = self.text.replace(QUESTION, messages[-1]["content"])
        return [*messages[:-1], {"role": "user", "content": text}]

    def sha256(self, tokenizer: Any) -> str:
        """Hash of the wording, and of the chat template of `tokenizer` if that is used; None for a
        server's.
        """
        chat_template = str(tokenizer.chat_template) if self.chat and tokenizer else ""
        return hashlib.sha256(f"{self.text}\0{chat_template}".encode()).hexdigest()


TEMPLATES = {
    "own": Template(QUESTION, chat=True, keeps_system=True),
    "simplerl": Template(
        _chatml(
            "You are a helpful assistant.",
            f"{QUESTION}\nPlease reason step by step, and put your final answer within "
            f"\\boxed{{}}.",
        ),
        chat=False,
    ),
    "qwen": Template(
        _chatml(
            "Please reason step by step, and put your final answer within \\boxed{}.", QUESTION
        ),
        chat=False,
    ),
    "prime": Template(_CONVERSATION.replace(QUESTION, f"{QUESTION}\n\n{_BOXED}"), chat=False),
    "prime_sft": Template(f"{QUESTION}\n\n{_BOXED}", chat=True),
    "prime_code": Template(_CONVERSATION.replace(QUESTION, f"{QUESTION}\n\n{_CODE}"), chat=False),
    "repo": Template(QUESTION, chat=True),
    "no": Template(QUESTION, chat=False),
    "step_by_step": Template(f"User: {QUESTION}\nAnswer: Let's think step by step.\n", chat=False),
}
