"""The released command's names, and what to write now: hints, and ``exgrpo-train --from-release``.

The table is ``released.yaml``.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from exgrpo.preflight.values import defaults
from exgrpo.refusal import refuse

TABLE = Path(__file__).with_suffix(".yaml")
_LEFT_OUT, _NONE = "leave out", "none here"
_ASSIGNED = re.compile(r"\s*(?:export\s+)?([A-Z_]+)=(.*)")
_PROGRAM = "main_mix_ppo"


@functools.cache
def table() -> dict[str, Any]:
    """``keys``, ``always`` and ``metrics``."""
    read: dict[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return read


def now(key: str, value: str) -> str | None:
    """What to write of a released key: overrides, or why none; None if it is none of these."""
    row = table()["keys"].get(key)
    if isinstance(row, dict):
        row = row.get(yaml.safe_load(value), row.get(None))
    return None if row is None else row.replace("{}", value)


def hint(given: str) -> str | None:
    """The same for an override, as the end of a line about it."""
    key, _, value = given.lstrip("+").partition("=")
    said = now(key, value)
    if said is not None and not said.startswith((_LEFT_OUT, _NONE)):
        said = f"now {said}"
    return said and f"it is the release's: {said}"


def verify(config: DictConfig) -> None:
    """ValueError with a line for each key of the release that was added by a ``+``."""
    verls, wrong = defaults(), []
    for key in table()["keys"]:
        group, _, name = key.rpartition(".")
        node = OmegaConf.select(config, group)
        if key not in verls and isinstance(node, DictConfig) and name in node:
            given = f"+{key}={node[name]}"
            wrong.append(f"{given}: nobody reads it; {hint(given)}")
    if wrong:
        raise ValueError("\n".join(wrong))


def translated(script: Path, environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The overrides of our command for those of a released script, and a line for each other one.

    Args:
        environment: for variables that the script leaves empty; one that is nowhere keeps its name.

    Raises:
        ValueError: the script has no command of the release.
    """
    text = script.read_text(encoding="utf-8").replace("\\\n", " ")
    variables: dict[str, str] = {}
    for line in text.splitlines():
        if _PROGRAM in line:
            words = shlex.split(line, comments=True)
            break
        if found := _ASSIGNED.fullmatch(line):
            name, written = found.groups()
            values = shlex.split(written, comments=True)
            value = _expanded(values[0], variables, environment) if values else ""
            variables[name] = value or environment.get(name, "")
    else:
        refuse("--from-release", script, f"a script that starts {_PROGRAM}")
    overrides, left_out = dict(each.split("=", 1) for each in table()["always"]), []
    for word in words[next(i for i, word in enumerate(words) if _PROGRAM in word) + 1 :]:
        key, _, value = _expanded(word, variables, environment).lstrip("+").partition("=")
        if "$" in key:
            continue  # the script's own arguments
        said = now(key, value)
        if said is not None and said.startswith((_LEFT_OUT, _NONE)):
            left_out.append(f"{key}={value}: {said}")
        else:
            pairs = (said or f"{key}={value}").split(" ")
            overrides.update(each.split("=", 1) for each in pairs)
    return [f"{key}={value}" for key, value in overrides.items()], left_out


def _expanded(text: str, variables: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The text with the values of the variables that are known; others keep their name."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return variables.get(name) or environment.get(name) or name

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)


def command(script: Path, environment: Mapping[str, str]) -> str:
    """Our command for a released script, as a shell reads it; remarks name the keys that are left
    out, and the metrics of other names.
    """
    overrides, left_out = translated(script, environment)
    metrics = (f"{old}: now {new}" for old, new in table()["metrics"].items())
    remarks = [f"# {line}" for line in (*left_out, *metrics)]
    return "\n".join([*remarks, " \\\n    ".join(["exgrpo-train", *map(shlex.quote, overrides)])])
