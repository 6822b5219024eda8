"""lighteval's details: a parquet file per benchmark, with a row per question that has all its
samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exgrpo_eval.export.graded_run import Run
from exgrpo_tools.texts import file_part


def write(run: Run, folder: Path) -> list[Path]:
    """FOLDER/details/MODEL/TIME/details_BENCHMARK|0_TIME.parquet, as lighteval names it below its
    output folder.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    time = re.sub(r"[:+]", "-", run.started)
    model = [file_part(part) for part in run.model.split("/") if part]  # organisation, name
    details = folder.joinpath("details", *model, time)
    details.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, questions in run.benchmarks().items():
        path = details / f"details_{file_part(name)}|0_{time}.parquet"
        rows = [_detail(name, samples, run) for samples in questions]
        pq.write_table(pa.Table.from_pylist(rows), path)
        paths.append(path)
    return paths


def _detail(name: str, samples: Sequence[Mapping[str, Any]], run: Run) -> dict[str, Any]:
    """The columns doc, model_response and metric; token ids are not kept and are replaced by as
    many zeros; none where the length is not known.
    """
    first = samples[0]
    document = {
        "query": first.get("prompt") or "",
        "choices": [first["answer"]],
        "gold_index": [0],
        "id": str(first["question"]),
        "task_name": f"{name}|0",
        "num_samples": len(samples),
        "generation_size": run.record.get("settings", {}).get("max_tokens"),
        "specific": {"question_id": first["question_id"]},
    }
    response = {
        "input": first.get("prompt") or "",
        "text": [row["response"] for row in samples],
        "output_tokens": [[0] * (row["tokens"] or 0) for row in samples],
    }
    correct = [float(row["correct"]) for row in samples]
    metric = {
        f"avg@n:n={len(samples)}": sum(correct) / len(correct),
        f"pass@{len(samples)}": max(correct),
    }
    return {"doc": document, "model_response": response, "metric": metric}
