"""Tables of the study of many questions (many_questions.py), over the seeds that every method has.

python lab/studies/many_questions_report.py [--file FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import study_folders  # noqa: F401
from many_questions import FILE, MASKED, METHODS, TASK
from seed_tables import reported, table
from study_runs import Results

from exgrpo.console import in_one_line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    results = Results(options.file)
    seconds = sum(row["seconds"] for row in results.found.values())
    print(f"{len(results.found)} runs, {seconds / 3600:.1f} processor hours")
    for methods in (METHODS, ["on-policy", *MASKED]):
        if runs := reported(results, TASK.name, methods):
            print(f"\n{len(next(iter(runs.values())))} seeds\n\n{table(runs)}")


if __name__ == "__main__":
    with in_one_line("many_questions_report.py"):
        main()
