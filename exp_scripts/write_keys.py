"""Write the keys' defaults and meanings, which stand in the code, into the yaml file and
docs/keys.md.

python exp_scripts/write_keys.py [--check]
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from exgrpo.experience.config import ExperienceConfig, TrainerKeys
from exgrpo.loss_settings import LossSettings

ROOT = Path(__file__).resolve().parents[1]

REPLAY = [each for each in fields(ExperienceConfig) if each.name != "rollout_n"]
TRAINER = list(fields(TrainerKeys))
LOSS = [
    each for each in fields(LossSettings) if not each.name.startswith("cliprange_")
]  # verl has PPO's own keys
SECTIONS = {
    "exgrpo/experience/config.py": REPLAY,
    "TrainerKeys of exgrpo/experience/config.py": TRAINER,
    "exgrpo/loss_settings.py": LOSS,
}
YAML, PAGE = ROOT / "exgrpo" / "config" / "exgrpo.yaml", ROOT / "docs" / "keys.md"


def yaml_line(key: Field[Any], indent: str) -> str:
    """``key: default # meaning``."""
    default = key.default if isinstance(key.default, str) else json.dumps(key.default)
    return f"{indent}{key.name}: {default} # {key.metadata['meaning']}"


def table_row(key: Field[Any], indent: str) -> str:
    """``| key | default | meaning |``."""
    default = "null" if key.default is None else key.default
    return f"| `{key.name}` | {default} | {html.escape(key.metadata['meaning'], quote=False)} |"


def rewritten(text: str, begin: str, end: str, line: Callable[[Field[Any], str], str]) -> str:
    """The text with each section between its two marks written anew.

    Args:
        begin: the mark before a section, with a place for its source.
        end: the mark after it.
        line: a key and the mark's indentation -> its line.
    """
    for source, keys in SECTIONS.items():
        mark = begin.format(source)
        before, _, rest = text.partition(mark)
        indent = before.rpartition("\n")[2]
        lines = "".join(f"{line(key, indent)}\n" for key in keys)
        text = before + mark + lines + indent + end + rest.partition(end)[2]
    return text


def main() -> None:
    """Write both files, or say which one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit with 1 if something would change"
    )
    options = parser.parse_args()
    written = "written from {} by exp_scripts/write_keys.py"
    header = "| key | default | meaning |\n| --- | --- | --- |\n"
    for path, begin, end, line in (
        (YAML, f"# {written}\n", "# end of what is written", yaml_line),
        (PAGE, f"<!-- {written} -->\n\n{header}", "\n<!-- end of what is written -->", table_row),
    ):
        text = path.read_text(encoding="utf-8")
        new = rewritten(text, begin, end, line)
        if new != text and options.check:
            sys.exit(
                f"{path.relative_to(ROOT)} differs from the code: python exp_scripts/write_keys.py"
            )
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
