"""How a wrong value is refused: ValueError, one line that names it and what is allowed."""

from __future__ import annotations

from typing import Any, NoReturn


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """``name=value: must be allowed``."""
    raise ValueError(f"{name}={value}: must be {allowed}")


def refuse_as(given: str, must: str) -> NoReturn:
    """The same of what is no value of a name, ``given: must ...``, such as a number of entries."""
    raise ValueError(f"{given}: must {must}")


def shown(value: Any, most: int = 60) -> str:
    """A value as part of a message, as yaml has null: in one line, of so many characters."""
    text = "null" if value is None else " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
