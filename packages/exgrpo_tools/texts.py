"""Parse a data set's values: the text of a question, its system message, its final answer; its name
as a part of a file's.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

from exgrpo.console import printable

LONGEST = 120  # bytes of a name in a file's name; Linux allows 255 to all of it
LABEL = 40  # characters of a name in a picture


def question_text(value: Any) -> str:
    """The text of a question: the value, or the last user turn of a list of messages; empty if
    there is none.
    """
    if not isinstance(value, list):
        return _text(value)
    turns = _turns(value, "user")
    return _text(turns[-1]) if turns else ""


def messages_of(value: Any) -> list[dict[str, Any]]:
    """A prompt as messages: a text as one of the user, a chat with all its turns, whatever their
    roles and other fields; empty without a turn of the user, or where a turn has no role.
    """
    if not isinstance(value, list):
        text = _text(value)
        return [{"role": "user", "content": text}] if text else []
    if not all(isinstance(turn, Mapping) and isinstance(turn.get("role"), str) for turn in value):
        return []
    turns = [{key: each for key, each in turn.items() if each is not None} for turn in value]
    for turn in turns:
        content = turn.get("content", "")
        turn["content"] = _text(content) if isinstance(content, str) else content
    return turns if any(turn["role"] == "user" and turn["content"] for turn in turns) else []


def _turns(messages: Any, role: str) -> list[Any]:
    rows = messages if isinstance(messages, list) else []
    return [
        row.get("content") for row in rows if isinstance(row, Mapping) and row.get("role") == role
    ]


def _text(value: Any) -> str:
    return value.encode(errors="replace").decode().strip() if isinstance(value, str) else ""


def answer_texts(value: Any) -> list[str]:
    """The final answers, each of which counts, of a list; of any other value the one, if any."""
    found = map(answer_text, value) if isinstance(value, list) else [answer_text(value)]
    return list(dict.fromkeys(filter(None, found)))


def answer_text(value: Any) -> str:
    """The final answer: the text after the last "####" or in the last \\boxed{}, or all of it;
    empty if none.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if (
        value is None
        or isinstance(value, (list, Mapping))
        or (isinstance(value, float) and math.isnan(value))
    ):
        return ""
    text = str(value).encode(errors="replace").decode()
    if "####" in text:
        final = text.rpartition("####")[2].strip()
        with_thousands = re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", final)
        return final.replace(",", "") if with_thousands else final
    _, boxed, rest = text.rpartition("\\boxed{")
    depth, end = 1, 0
    while boxed and end < len(rest) and depth:
        depth += {"{": 1, "}": -1}.get(rest[end], 0)
        end += 1
    return rest[: end - 1].strip() if boxed and not depth else text.strip()


def file_part(name: str) -> str:
    """A name as a part of a file's, with only what is safe there and at most LONGEST bytes; one
    that had to be changed ends in a checksum, so that no two names become one.
    """
    safe = re.sub(r"[^\w.-]|^\.", "_", name) or "_"
    if safe == name and len(name.encode()) <= LONGEST:
        return name
    short = safe.encode()[: LONGEST - 9].decode(errors="ignore")
    return f"{short}-{zlib.crc32(name.encode(errors='replace')):08x}"


def picture_label(name: str) -> str:
    """A name as matplotlib is to show it: short, no formula, and without the leading underscore
    that hides it from a legend.
    """
    shown = printable(" ".join(name.split()))
    shown = shown if len(shown) <= LABEL else f"{shown[: LABEL - 1]}…"
    return shown.replace("$", r"\$").lstrip("_") or "-"
