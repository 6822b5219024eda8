"""``python exp_scripts/guarded DIR [command ...]``; without a command: clears up after a killed
one.
"""

import sys
from pathlib import Path

from guard import StillRunning, clear, run


def main() -> None:
    """Exits with the command's code, with 128 + the signal that stopped it, or with 1 and a
    line.
    """
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("exgrpo: usage: python exp_scripts/guarded DIR [command ...]")
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    try:
        if command:
            sys.exit(run(folder, command))
        clear(folder)
    except StillRunning as error:
        sys.exit(f"exgrpo: {error}")


if __name__ == "__main__":
    main()
