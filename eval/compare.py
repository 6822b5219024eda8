"""Runs side by side: what each scored, by how much the others differ from the first, and which questions flipped.

    python eval/compare.py A.jsonl B.jsonl [C.jsonl ...]

Markdown on stdout; on a terminal its tables are drawn. Differences are paired: question by question, with 95 %
intervals by a bootstrap that draws the same questions for both runs, which is far sharper than two separate intervals.
Each benchmark's difference of Mean@n is tested (eval/paired_tests.py) and its p value corrected over benchmarks.
A question flips where its majority answer (with one sample per question, its answer) is right in one run only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started by its path: this folder is on the import path, the root is not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eval.compare_text import markdown
from eval.paired_runs import align, load
from eval.terminal import show


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, align, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", type=Path, nargs="+", help="OUTPUT.jsonl of generate_vllm.py, two or more; the first is the baseline"
    )
    parser.add_argument("--shared_only", action="store_true", help="compare the questions that all files have")
    options = parser.parse_args(arguments)
    try:
        if len(options.files) < 2:
            raise ValueError(f"files={options.files[0]}: must be two or more")
        show(markdown(align([load(path) for path in options.files], shared_only=options.shared_only)))
    except (ValueError, OSError) as error:
        print(f"compare.py: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
