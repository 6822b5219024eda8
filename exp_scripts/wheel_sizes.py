"""Sizes of what a lock file of wheels would download: ``python exp_scripts/wheel_sizes.py
PYLOCK.TOML MIB_A_PIECE``.
"""

import argparse
import os
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlparse

SHOWN = 12


def sizes(lock: Path) -> dict[str, int]:
    """package -> bytes of its wheel, or of its source where it has none; -1 where the registry does
    not say.
    """
    packages = tomllib.loads(lock.read_text())["packages"]
    return {each["name"]: _size((each.get("wheels") or [each["sdist"]])[0]) for each in packages}


def _size(file: dict[str, object]) -> int:
    url = urlparse(str(file.get("url", "")))
    if "size" not in file and url.scheme == "file":
        return os.path.getsize(unquote(url.path))
    return int(str(file.get("size", -1)))


def table(found: dict[str, int], mib: int) -> str:
    """The largest ones, all of them, and the pieces they make."""
    largest = sorted(found.items(), key=lambda item: -item[1])[:SHOWN]
    total = sum(size for size in found.values() if size > 0) / 2**20
    lines = [f"{size / 2**20:8.1f} MiB  {name}" for name, size in largest]
    lines.append(
        f"{total:8.1f} MiB  {len(found)} packages: {int(-(-total // mib))} pieces of {mib} MiB"
    )
    if unknown := [name for name, size in found.items() if size < 0]:
        lines.append(f"of unknown size: {', '.join(unknown)}")
    return "\n".join(lines)


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("lock", metavar="PYLOCK.TOML", type=Path)
    cli.add_argument("piece", metavar="MIB_A_PIECE", type=int, help="of a wheelhouse")
    options = cli.parse_args()
    print(table(sizes(options.lock), options.piece))
