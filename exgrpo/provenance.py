"""The provenance of a reward: grader, version and the rule that decided, in a line kept with it.

strict; rules 5e1c09aa, math-verify 0.9.0
full; rules 5e1c09aa, math-verify 0.9.0, require_think=False; intervals
rewards/mine.py:score; sha256 90ab12cd34ef {"worth": 2}
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from exgrpo import full_grader

OURS = "pkg://exgrpo.math_verify_reward"
UNKNOWN = "unknown"
_THINK = "require_think=False"
_SOURCES = ("gold_answers.py", "math_verify_reward.py", "math_verify_worker.py")


@dataclass(frozen=True)
class Provenance:
    """Who judged.

    Attributes:
        grader: strict, full, or a reward function of another author as ``path:name``.
        version: of its code, and settings that change its verdicts.
        rule: that accepted the answer; empty if there is only one, or it is not known.
    """

    grader: str
    version: str
    rule: str = ""

    def __str__(self) -> str:
        parts = [self.grader, self.version, self.rule] if self.rule else [self.grader, self.version]
        return "; ".join(part.replace(";", ",") for part in parts)

    @classmethod
    def read(cls, text: str | None) -> Provenance:
        """What `str` wrote; `unknown` for None, as in pools of older versions."""
        parts = (text or UNKNOWN).split(";")
        grader, version, rule = (part.strip() for part in [*parts, "", ""][:3])
        return cls(grader, version, rule)

    def by(self, rule: str) -> Provenance:
        """The same grader with the rule that decided."""
        return replace(self, rule=rule)

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that a reward function of another author was called with."""
        _, brace, rest = self.version.partition("{")
        if self.is_ours or not brace:
            return {}
        try:
            arguments: dict[str, Any] = json.loads(brace + rest)
        except ValueError:  # a semicolon has become a comma, say
            return {}
        return arguments

    @property
    def is_ours(self) -> bool:
        return self.grader in ("strict", "full")

    @property
    def requires_think(self) -> bool:
        """Whether only what follows </think> was judged, as is the default of our reward."""
        return _THINK not in self.version


def of_settings(reward: Mapping[str, Any]) -> Provenance:
    """The provenance of a run's rewards, from ``reward.custom_reward_function``; without a rule."""
    path, name = reward.get("path"), str(reward.get("name"))
    if not path:
        return Provenance("verl's own", f"verl {_installed('verl')}")
    if path == OURS and name == "compute_score":
        settings = reward.get("reward_kwargs") or {}
        think = "" if settings.get("require_think", True) else f", {_THINK}"
        grader = str(settings.get("grader", "strict"))
        return Provenance(grader, version_of(grader) + think)
    file = Path(str(path)).expanduser()
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    arguments = {key: value for key, value in (reward.get("reward_kwargs") or {}).items()}
    version = [f"sha256 {digest[:12]}"] if digest else []
    version += [json.dumps(arguments, sort_keys=True, default=str)] if arguments else []
    return Provenance(f"{path}:{name}", " ".join(version))


@cache
def version_of(grader: str) -> str:
    """The version of a grader of ours: a checksum of its code, and Math-Verify's version.

    Raises:
        ValueError: `grader` is full and its package is not installed.
    """
    names = (*_SOURCES, "full_grader.py") if grader == "full" else _SOURCES
    decides = [Path(__file__).with_name(name) for name in names]
    if grader == "full":
        decides += sorted(Path(full_grader.package().__path__[0]).glob("*.py"))
    content = hashlib.sha256()
    for path in decides:
        content.update(path.read_bytes())
    return f"rules {content.hexdigest()[:8]}, math-verify {_installed('math-verify')}"


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
