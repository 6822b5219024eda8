"""The console commands `exgrpo-eval` and `exgrpo-data`: the scripts of eval/ and data/ by name.

In a wheel both folders are below this package, as setup.py copies them; in a checkout they are its own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from exgrpo.commands import answered
from exgrpo.console import in_one_line

PACKAGED = Path(__file__).parent / "scripts"
SCRIPTS = PACKAGED if PACKAGED.is_dir() else Path(__file__).parents[4]
PACKAGES = "pip install 'exgrpo-tools[all]'"

# name -> module, what it does
EVAL = {
    "generate": ("eval.generate.command", "sample answers with vLLM, judge them, report"),
    "report": ("eval.reports.command", "make a run's report again"),
    "compare": ("eval.compare", "compare runs, paired by question"),
    "sample-size": ("eval.sample_size", "how many questions and samples a difference needs"),
    "export": ("eval.export.__main__", "a run for lighteval, Hugging Face, inspect, EveryEvalEver"),
}
DATA = {
    "train": ("data.prepare_train", "questions to verl's training rows"),
    "eval": ("data.prepare_eval", "benchmarks to evaluation files"),
    "thinking-copy": ("data.thinking_copy", "a copy of a model whose prompts open a thought"),
}


def evaluation() -> None:
    """`exgrpo-eval NAME flags`."""
    run("exgrpo-eval", EVAL)


def data() -> None:
    """`exgrpo-data NAME flags`."""
    run("exgrpo-data", DATA)


def run(command: str, scripts: dict[str, tuple[str, str]]) -> None:
    """Start the script that the first argument names; its name and the rest is its command line."""
    names = "\n".join(f"  {name:14} {what}" for name, (_, what) in scripts.items())
    usage = f"{command} NAME [flags]; each has --help\n\n{names}\n\n  --help, --version"
    if answered(usage):
        return
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in scripts:
        print(f"{command}: {name or 'no name'}: must be one of {', '.join(scripts)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"{command} {name}", *sys.argv[2:]]
    sys.path.insert(0, str(SCRIPTS))  # of this process alone: the wheel has no module of the name eval
    with in_one_line(sys.argv[0], packages=PACKAGES):
        importlib.import_module(scripts[name][0]).main()
