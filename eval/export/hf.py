"""Hugging Face's .eval_results: a YAML file beside the model for each benchmark that is a data set
on the hub.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from exgrpo_eval.benchmark_files import known
from exgrpo_eval.export.graded_run import Run, accuracy
from exgrpo_tools.inspect.text import print_lines
from exgrpo_tools.texts import file_part


def write(run: Run, folder: Path) -> list[Path]:
    """FOLDER/.eval_results/BENCHMARK.yaml.

    Raises:
        ValueError: the run has no benchmark that is known to be on the hub.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    paths = []
    for name, questions in run.benchmarks().items():
        if name not in known() or "hub" not in known()[name].source:
            print_lines([f"{name}: left out, no data set of the hub is known for it"])
            continue
        entry = EvalResultEntry(
            dataset_id=known()[name].source["hub"],
            task_id=known()[name].hub_task,
            value=round(100 * accuracy(questions)[0], 2),
            date=run.started,
            notes=f"Mean@{len(questions[0])}, template {run.record.get('template', 'unknown')}",
        )
        path = folder / ".eval_results" / f"{file_part(name)}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False), encoding="utf-8"
        )
        paths.append(path)
    if not paths:
        raise ValueError(f"--format=hf: must have a benchmark of {', '.join(known())}")
    return paths
