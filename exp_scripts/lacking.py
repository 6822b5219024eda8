"""What a container lacks of verl's requirements: ``python exp_scripts/lacking.py LOCK``.

Prints a pin of the lock a line, for each package that verl or the grader requires, at any depth,
and that is missing or of a version that they do not take; nothing where all is there. What torch
and vLLM require is theirs. Another verl than the lock's ends in one line: it may be somebody's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WANTED = ("verl[verl-core]", "math-verify")
THE_IMAGES = {"torch", "vllm"}


def installed(name: str) -> str | None:
    """Version of a package, None without."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def lacking(pins: dict[str, str]) -> list[str]:
    """Names of `pins` to install: of what they require in turn, what can be seen before that."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [Requirement(text) for text in WANTED]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in THE_IMAGES or str(wanted) in seen:
            continue
        seen.add(str(wanted))
        there = installed(name)
        if there is not None and wanted.specifier.contains(there, prereleases=True):
            waiting += _required(wanted)
        elif name in pins and there != pins[name]:
            found.add(name)
    return sorted(found)


def _required(by: Requirement) -> Iterator[Requirement]:
    """What an installed package asks for on this machine, with the extras that are asked of it."""
    for requirement in map(Requirement, requires(by.name) or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *by.extras)):
            yield requirement


def main() -> None:
    """Print the pins."""
    lines = Path(sys.argv[1]).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    if (verl := installed("verl")) not in (None, pins["verl"]):
        sys.exit(
            f"exgrpo: --container: verl {verl} is installed, exgrpo is for {pins['verl']}, "
            f"which this command installs after: {sys.executable} -m pip uninstall verl"
        )
    print("\n".join(f"{name}=={pins[name]}" for name in lacking(pins)))


if __name__ == "__main__":
    main()
