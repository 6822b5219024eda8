"""Every Eval Ever's schema, version 0.3.0: one JSON file per run, with a result for each
benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import exgrpo
from exgrpo_eval.benchmark_files import known
from exgrpo_eval.export.graded_run import Run, accuracy
from exgrpo_tools.texts import file_part

SCHEMA = "0.3.0"


def write(run: Run, folder: Path) -> list[Path]:
    """FOLDER/MODEL_TIME.json."""
    time = run.started.replace(":", "-")
    path = folder / f"{file_part(run.model)}_{file_part(time)}.json"
    path.write_text(json.dumps(_log(run), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return [path]


def _log(run: Run) -> dict[str, Any]:
    """The fields that the schema requires, and the optional ones that a run has."""
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"exgrpo/{run.model}/{run.started}",
        "evaluation_timestamp": run.started,
        "retrieved_timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "source_metadata": {
            "source_name": "exgrpo evaluation",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "exgrpo", "version": exgrpo.__version__},
        "model_info": {
            "name": run.model,
            "id": run.model,
            "additional_details": _about(run),
        },
        "evaluation_results": [
            _result(run, name, questions) for name, questions in run.benchmarks().items()
        ],
    }


def _about(run: Run) -> dict[str, str]:
    """Two fields that the package's validator requires but a run does not know, and the
    versions.
    """
    required = {"deployment_type": "unknown", "model_availability": "unknown"}
    return required | _texts(run.record.get("versions", {}))


def _result(
    run: Run, name: str, questions: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    value, error = accuracy(questions)
    samples = len(questions[0])
    uncertainty = {
        "standard_error": {"value": error, "method": "analytic"},
        "num_samples": len(questions),
    }
    result = {
        "evaluation_name": name,
        "source_data": _source(name, len(questions)),
        "evaluation_timestamp": run.started,
        "metric_config": {
            "evaluation_description": f"Mean@{samples}: share of right "
            f"responses, {samples} per question",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 1,
        },
        "score_details": {"score": value, "uncertainty": uncertainty},
    }
    settings = run.record.get("settings", {})
    if run.of_another_harness:
        return result
    arguments = {
        key: settings[key] for key in ("temperature", "top_p", "max_tokens") if key in settings
    }
    details = _texts(
        {key: settings.get(key) for key in ("template", "seed")} | {"samples_a_question": samples}
    )
    return result | {
        "generation_config": {"generation_args": arguments, "additional_details": details}
    }


def _source(name: str, count: int) -> dict[str, Any]:
    source = known()[name].source if name in known() else {}
    if "hub" not in source:
        return {"dataset_name": name, "source_type": "other"}
    return {
        "dataset_name": name,
        "source_type": "hf_dataset",
        "hf_repo": source["hub"],
        "hf_split": source["split"],
        "samples_number": count,
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """The values as strings, which the schema requires."""
    return {key: str(value) for key, value in values.items()}
