r"""Write valid.id.parquet and valid.ood.parquet, the questions of the nine benchmarks in verl's
parquet schema.

    exgrpo-data eval --output_dir data
    exgrpo-data eval --output_dir data --validation \
        --benchmarks aime aime25 amc math minerva olympiad_bench
    exgrpo-data eval --output_dir data --benchmarks math arc_c --local math=math500.jsonl
    exgrpo-data eval --output_dir data --benchmarks aime26 --benchmark mine.yaml

Each benchmark is a YAML file, in eval/benchmarks/ or from --benchmark FILE; docs/evaluation.md
explains its fields. The questions of benchmarks other than the nine are written to
valid.NAME.parquet. --validation also writes valid.parquet, on which a training is validated: of
those that are prepared the six that the released one has, with AIME's questions eight times and
AMC's four times.

By default each benchmark comes from the Hugging Face hub (below); --local NAME=FILE reads a
.parquet, .jsonl, .json (one row per line) or .csv file with the same columns instead. From a
parquet file in verl's schema, such as the released ones, the rows whose data_source is NAME are
copied, with prompts, answers and repetitions unchanged.

Answers are normalised: 142.0 becomes 142, 4.5e33 becomes 4.5\times10^{33}, np.arcsin(...) an
\arcsin. Each question is written once; exgrpo-eval generate --n sets the number of samples. GPQA's
choices are shuffled in an order that depends only on the question. GPQA's authors ask not to
republish it, and require consent on its page; `hf auth login` then makes it readable.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exgrpo.console import in_one_line, refused
from exgrpo_data import benchmark_rows
from exgrpo_data.verl_rows import SYSTEM_PROMPT, make_row, read_system_prompt, write_parquet
from exgrpo_eval import benchmark_files
from exgrpo_eval.benchmark_files import Benchmark
from exgrpo_tools.inspect.text import print_lines
from exgrpo_tools.sources import Row, Source, open_dataset, open_file

VERL_COLUMNS = ("data_source", "prompt", "reward_model")
NINE = ("aime", "aime25", "amc", "math", "minerva", "olympiad_bench", "arc_c", "gpqa", "mmlu_pro")
# benchmarks of the released valid.parquet -> how often it has each question
VALIDATION = {"aime": 8, "aime25": 8, "amc": 4, "math": 1, "minerva": 1, "olympiad_bench": 1}
BENCHMARKS = {name: benchmark_files.known()[name] for name in NINE}
MORE = {name: benchmark for name, benchmark in benchmark_files.known().items() if name not in NINE}


def rows_of(benchmark: Benchmark, source: Source, system: str | None) -> list[dict[str, Any]]:
    """A benchmark's rows in verl's schema; rows of a source that is already in this schema are
    unchanged.

    Raises:
        ValueError: the source lacks a column, or a row lacks its question or answer.
    """
    name = benchmark.name
    if all(column in source.columns for column in VERL_COLUMNS):
        own_rows = [dict(row) for row in source.rows(source.columns) if row["data_source"] == name]
        if not own_rows:
            raise ValueError(f"{source.name}: has no row with data_source {name}")
        return own_rows
    if missing := [column for column in benchmark.columns if column not in source.columns]:
        raise ValueError(
            f"{source.name}: no column {missing[0]!r} ({name}); it has {', '.join(source.columns)}"
        )
    rows = []
    for index, row in enumerate(source.rows(benchmark.columns)):
        try:
            question, answer = benchmark_rows.read(benchmark, row)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{source.name}: row {index} is not in the format of {name}: {error!r}"
            ) from error
        if not question or not answer:
            raise ValueError(
                f"{source.name}: row {index} has no {'answer' if question else 'question'} ({name})"
            )
        rows.append(
            make_row(question, answer, index, data_source=name, split="test", system=system)
        )
        rows[-1]["extra_info"] |= _extra_info(benchmark, row)
    if not rows:
        raise ValueError(f"{source.name}: no rows")
    return rows


def _extra_info(benchmark: Benchmark, row: Row) -> dict[str, Any]:
    """Fields for the evaluation; it knows samples and grader of the benchmarks in eval/benchmarks/
    by their names.
    """
    cluster = benchmark_rows.read_cluster(benchmark, row)
    extra = {} if cluster is None else {"cluster": cluster}
    if benchmark_files.known().get(benchmark.name) == benchmark:
        return extra
    return extra | {"samples": benchmark.samples, "grader": benchmark.grader}


def validation_set(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the released validation set's benchmarks, each question as often as there."""
    questions = {(row["data_source"], row["prompt"][-1]["content"]): row for row in rows}
    return [row for (name, _), row in questions.items() for _ in range(VALIDATION.get(name, 0))]


def in_one_schema(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with consistent types: a field of extra_info that has several types becomes a string
    in all rows.
    """
    types: dict[str, set[type]] = {}
    for row in rows:
        for key, value in (row.get("extra_info") or {}).items():
            types.setdefault(key, set()).add(type(value))
    mixed = [key for key, types_of_key in types.items() if len(types_of_key - {type(None)}) > 1]
    if not mixed:
        return rows
    for row in rows:
        extra = row.get("extra_info") or {}
        as_text = {key: str(extra[key]) for key in mixed if extra.get(key) is not None}
        row["extra_info"] = {**extra, **as_text}
    return rows


def name_and_path(text: str) -> tuple[str, Path]:
    """``NAME=FILE``."""
    name, equals, path = text.partition("=")
    if not equals or not path or not name:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be NAME=FILE, NAME one of {', '.join(BENCHMARKS | MORE)}"
        )
    return name, Path(path)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    hub = "\n".join(
        f"  {name:15} {' '.join(b.source.values())}: {', '.join(b.columns)}"
        for name, b in (BENCHMARKS | MORE).items()
    )
    parser = argparse.ArgumentParser(
        "exgrpo-data eval",
        description=__doc__,
        epilog=f"benchmarks, their data sets on the hub and the columns used:\n{hub}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output_dir", type=Path, required=True, help="folder for the files")
    add(
        "--benchmarks",
        nargs="+",
        choices=BENCHMARKS | MORE,
        default=[],
        metavar="NAME",
        help="which (the nine, unless --benchmark names others)",
    )
    add(
        "--benchmark",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="YAML files of other benchmarks",
    )
    add(
        "--local",
        type=name_and_path,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=FILE",
        help="files to read",
    )
    add("--validation", action="store_true", help="also write valid.parquet")
    add(
        "--system_prompt_file",
        default=str(SYSTEM_PROMPT),
        help="text of the system message, or a training file (.parquet) to take it from; 'none' "
        "for no message",
    )
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[Benchmark]:
    """The benchmarks of --benchmarks and --benchmark.

    Raises:
        ValueError: two have the same name, or a --local is for none of them.
    """
    names = options.benchmarks or ([] if options.benchmark else list(BENCHMARKS))
    benchmarks = [(BENCHMARKS | MORE)[name] for name in names]
    benchmarks += [benchmark_files.read(path) for path in options.benchmark]
    names = [benchmark.name for benchmark in benchmarks]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"--benchmark: {repeated[0]} is there twice; a name must stand for one benchmark"
        )
    if unused := [name for name, _ in options.local if name not in names]:
        raise ValueError(f"--local {unused[0]}=...: must be among --benchmarks {' '.join(names)}")
    return benchmarks


def open_source(benchmark: Benchmark, local: Path | None) -> Source:
    """The benchmark's rows, from a local file or else from the hub."""
    source = benchmark.source
    if local or "file" in source:
        return open_file(local or Path(source["file"]))
    return open_dataset(source["hub"], source["split"], source.get("subset"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read all benchmarks, then write the files."""
    options = parse_arguments(arguments)
    files: dict[str, list[dict[str, Any]]] = {}
    try:
        system, local = read_system_prompt(options.system_prompt_file), dict(options.local)
        for benchmark in chosen(options):
            source = open_source(benchmark, local.get(benchmark.name))
            rows = rows_of(benchmark, source, system)
            print_lines([f"{benchmark.name}: {len(rows)} rows of {source.name}"])
            files.setdefault(benchmark.file_name, []).extend(rows)
        if options.validation:
            files["valid.parquet"] = validation_set(
                [row for rows in files.values() for row in rows]
            )
            if not files["valid.parquet"]:
                raise ValueError(
                    f"--validation: --benchmarks must name some of {', '.join(VALIDATION)}"
                )
        for file, rows in files.items():
            write_parquet(in_one_schema(rows), options.output_dir / file)
            print(f"{options.output_dir / file}: {len(rows)} rows")
    except (ValueError, OSError, csv.Error) as error:
        refused("exgrpo-data eval", error)


if __name__ == "__main__":
    with in_one_line("exgrpo-data eval"):
        main()
