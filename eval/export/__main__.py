"""Write a graded run in the format of another tool.

    exgrpo-eval export OUT.jsonl --format inspect --output logs  # inspect view --log-dir logs
    exgrpo-eval export OUT.jsonl --format lighteval --output details
    exgrpo-eval export OUT.jsonl --format hf --output MODEL_FOLDER

OUT.jsonl is the output of exgrpo-eval generate, with OUT.run.json beside it. inspect: a log for
each benchmark (requires inspect_ai). lighteval: a details file for each benchmark. hf:
MODEL_FOLDER/.eval_results/BENCHMARK.yaml, to upload with the model, for benchmarks that are data
sets on the hub. every_eval_ever: one JSON file in that schema.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from exgrpo.console import in_one_line, refused
from exgrpo_eval.estimate import graded_file
from exgrpo_eval.export import every_eval_ever, hf, inspect, lighteval
from exgrpo_eval.export.graded_run import Run

FORMATS: dict[str, Callable[[Run, Path], list[Path]]] = {
    "inspect": inspect.write,
    "lighteval": lighteval.write,
    "hf": hf.write,
    "every_eval_ever": every_eval_ever.write,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files; an error prints one line to stderr and exits with status 2."""
    parser = argparse.ArgumentParser(
        "exgrpo-eval export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("output_file", type=Path, help="OUT.jsonl of exgrpo-eval generate")
    parser.add_argument("--format", required=True, choices=FORMATS, help="what to write")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FOLDER", help="folder to write into"
    )
    options = parser.parse_args(arguments)
    try:
        record = graded_file.record(options.output_file.with_suffix(".run.json"))
        run = Run(_whole(graded_file.read(options.output_file)), _whole(record))
        options.output.mkdir(parents=True, exist_ok=True)
        for path in FORMATS[options.format](run, options.output):
            print(path)
    except ImportError as error:
        parser.exit(
            2,
            f"exgrpo-eval export: error: --format={options.format}: {error}: pip install "
            "'.[inspect-log]'\n",
        )
    except (ValueError, OSError) as error:
        refused("exgrpo-eval export", error)


def _whole(value: Any) -> Any:
    """JSON values without halves of characters, which no other tool's file can hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


if __name__ == "__main__":
    with in_one_line("exgrpo-eval export"):
        main()
