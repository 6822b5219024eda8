"""Tokens as text that a person can read, and that does nothing to the terminal or the page it is shown in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_UNFINISHED = "\ufffd"  # what a decoder makes of bytes that are not yet a character


def load_tokenizer(path: str) -> Any:
    """A transformers tokenizer. ValueError, in one line, if it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer={path}: cannot be loaded ({' '.join(str(error).split())[:200]})") from error


class Decoder:
    """Decodes with special tokens and all, since a trajectory's end token is one of its tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._window = lru_cache(maxsize=1 << 17)(self._decode)  # of the same few tokens again and again

    def text(self, tokens_T: Any) -> str:
        """The whole response."""
        return self._decode(tuple(tokens_T.tolist()))

    def pieces(self, tokens_T: Any) -> list[str]:
        """What each token adds to the text, [T]; empty where a character is finished by a later one.

        A token is decoded behind the one before it, since some tokenizers write a space only between two.
        """
        tokens, pieces = tokens_T.tolist(), []
        start = done = 0  # tokens[start:done] is the context, written already
        for end in range(1, len(tokens) + 1):
            before, after = self._window(tuple(tokens[start:done])), self._window(tuple(tokens[start:end]))
            if after.endswith(_UNFINISHED) and end < len(tokens) and end - done < 4:  # UTF-8 has four bytes at most
                pieces.append("")
                continue
            pieces.append(after[len(before) :])
            start, done = done, end
        return pieces

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def printable(text: str) -> str:
    """Text for a terminal: what would move its cursor or change its colours is spelt out."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)
