"""Tokens as readable text that is safe to show in a terminal or a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TextIO

from exgrpo.console import printable

_UNFINISHED = "\ufffd"  # a decoder's replacement for bytes that are not a complete character


def load_tokenizer(path: str) -> Any:
    """A transformers tokenizer. ValueError, in one line, if it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:  # a damaged file may cause any error
        raise ValueError(
            f"--tokenizer={path}: cannot be loaded ({' '.join(str(error).split())[:200]})"
        ) from error


class Decoder:
    """Decodes tokens including special ones, since a trajectory's end token is one of its
    tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._window = lru_cache(maxsize=1 << 17)(self._decode)  # the same few tokens recur often

    def text(self, tokens_T: Any) -> str:
        """The whole response."""
        return self._decode(tuple(tokens_T.tolist()))

    def pieces(self, tokens_T: Any) -> list[str]:
        """What each token adds to the text, [T]; empty if a later token completes its character.

        A token is decoded together with the one before it, since some tokenizers write a space only
        between two.
        """
        tokens, pieces = tokens_T.tolist(), []
        start = done = 0  # tokens[start:done] is the context, already part of earlier pieces
        for end in range(1, len(tokens) + 1):
            before = self._window(tuple(tokens[start:done]))
            after = self._window(tuple(tokens[start:end]))
            may_complete = (
                end < len(tokens) and end - done < 4
            )  # a UTF-8 character has at most four bytes
            if after.endswith(_UNFINISHED) and may_complete:
                pieces.append("")
                continue
            pieces.append(after[len(before) :])
            start, done = done, end
        return pieces

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def print_lines(lines: Iterable[str], file: TextIO | None = None) -> None:
    """Each as one line of the terminal, whatever is in it; all text of pools, data and models
    leaves through here.
    """
    for line in lines:
        print(printable(line), file=file, flush=True)
