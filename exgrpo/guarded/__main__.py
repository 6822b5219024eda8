"""``python -m exgrpo.guarded DIR command ...``"""

import sys
from pathlib import Path

from exgrpo.guarded import StillRunning, run


def main() -> None:
    """Run the command; exits with its code, or with 128 + the signal that stopped it."""
    if len(sys.argv) < 3:
        sys.exit("exgrpo: usage: python -m exgrpo.guarded DIR command ...")
    try:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
    except StillRunning as error:
        sys.exit(f"exgrpo: {error}")


if __name__ == "__main__":
    main()
