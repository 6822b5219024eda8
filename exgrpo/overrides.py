"""A path as a value in an override of Hydra, whatever its characters."""

from __future__ import annotations

import re
from typing import Any


def override(key: str, value: Any) -> str:
    """``key='value'``, which Hydra reads as the text, with ``=``, ``,``, quotes or spaces in it.

    Within quotes a backslash stands for itself, but for those before a quote.
    """
    text = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), str(value))
    return f"{key}='{text}'"
