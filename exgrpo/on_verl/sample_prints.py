"""Printed once, at the start of a run: the first prompt, and the first response with its reward."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from verl.utils.dataset.rl_dataset import RLHFDataset

from exgrpo.console import phase
from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch, split_key
from exgrpo.prompts import render, token_count

MAX_CHARACTERS = 4_000  # of a text; a longer one is shortened to its two ends


def first_prompt(dataset: RLHFDataset, tokenizer: Any) -> str:
    """The data set's first question as the model will see it, including special tokens."""
    messages = dataset[0]["raw_prompt"]
    prompt = render(tokenizer, messages, **dataset.apply_chat_template_kwargs)
    tokens = token_count(tokenizer, prompt)
    return f"exgrpo: the data's first prompt, {tokens} tokens:\n{clipped(prompt)}"


def first_response(batch: Batch, tokenizer: Any) -> str:
    """The step's first rollout, in the order of its questions: prompt, response and reward."""
    key = min(batch.keys, key=split_key)
    names = ("prompts", "responses", "rm_scores")
    row = queue.read([key], batch.partition_id, names)
    prompt, response, scores = (row[name].unbind()[0] for name in names)
    return (
        f"exgrpo: the first graded response, {len(response)} tokens, "
        f"reward {float(scores.sum()):g}; its prompt:\n"
        f"{clipped(tokenizer.decode(prompt))}\n"
        f"exgrpo: and the response:\n{clipped(tokenizer.decode(response))}"
    )


class FirstResponse:
    """Shows the first response when it has arrived; before, says that it is being generated."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._waiting = ExitStack()
        self._shown = False

    def wait(self) -> None:
        """Call when a step begins."""
        if not self._shown:
            self._waiting.enter_context(phase("generating the first rollouts"))

    def show(self, batch: Batch) -> None:
        """Call with each batch of rollouts."""
        if not self._shown:
            self._waiting.close()
            print(first_response(batch, self._tokenizer), flush=True)
            self._shown = True


def clipped(text: str) -> str:
    """The text, or its two ends and the number of characters left out between them."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
