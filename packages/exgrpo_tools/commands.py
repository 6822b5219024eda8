"""A console command whose first argument names the script to start."""

from __future__ import annotations

import importlib
import sys

from exgrpo.commands import answered
from exgrpo.console import in_one_line

PACKAGES = "pip install '.[tools]' in exgrpo's folder"


def run(command: str, scripts: dict[str, tuple[str, str]]) -> None:
    """Start one of the scripts, name -> (module, what it does); the other arguments are its own."""
    names = "\n".join(f"  {name:14} {what}" for name, (_, what) in scripts.items())
    usage = f"{command} NAME [flags]; each has --help\n\n{names}\n\n  --help, --version"
    if answered(usage):
        return
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in scripts:
        print(
            f"{command}: {name or 'no name'}: must be one of {', '.join(scripts)}", file=sys.stderr
        )
        sys.exit(2)
    sys.argv = [f"{command} {name}", *sys.argv[2:]]
    with in_one_line(sys.argv[0], packages=PACKAGES):
        importlib.import_module(scripts[name][0]).main()
