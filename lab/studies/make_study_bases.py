"""Make the base models of ablate.py's tasks again, and measure them.

python lab/studies/make_study_bases.py [sum mod]
"""

from __future__ import annotations

import argparse
import json

import study_folders  # noqa: F401
from skills import BASES, SKILLS, facts, make


def main() -> None:
    """Make the bases that are asked for, print what they do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", choices=[[], *SKILLS], default=list(SKILLS))
    for name in parser.parse_args().task:
        make(SKILLS[name], BASES / name)
        print(json.dumps({"task": name} | {key: round(value, 3) for key, value in facts(name).items()}))


if __name__ == "__main__":
    main()
