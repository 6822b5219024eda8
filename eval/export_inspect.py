"""inspect-ai's log: one for each benchmark, a sample of ours being an epoch of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.export_run import Run, accuracy, file_part

SCORER = "exgrpo"  # the verdict that counts; beside it, where rows have them, those of the full and the second grader
OTHERS = {"full_grader": lambda row: row.get("rule") is not None, "second_grader": lambda row: bool(row["oat_correct"])}
KEYS = {"full_grader": "rule", "second_grader": "oat_correct"}


def write(run: Run, folder: Path) -> list[Path]:
    """FOLDER/BENCHMARK.eval of each benchmark; ImportError without inspect_ai."""
    from inspect_ai.log import write_eval_log

    paths = []
    for name, questions in run.benchmarks().items():
        paths.append(folder / f"{file_part(name)}.eval")
        write_eval_log(_log(run, name, questions), str(paths[-1]), format="eval")
    return paths


def _log(run: Run, name: str, questions: Sequence[Sequence[Mapping[str, Any]]]) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalMetric, EvalResults, EvalScore, EvalSpec, EvalStats

    samples = [_sample(run, row) for rows in questions for row in rows]
    value, error = accuracy(questions)
    metrics = {key: EvalMetric(name=key, value=found) for key, found in (("accuracy", value), ("stderr", error))}
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=run.started,
            task=name,
            task_id=name,
            run_id=f"{run.started}-{name}",
            eval_id=f"{run.started}-{name}",
            dataset=EvalDataset(name=name, location=questions[0][0].get("input_file"), samples=len(questions)),
            model=run.model,
            model_base_url=(run.record.get("server") or {}).get("address"),
            model_generate_config=_sampling(run),
            config=EvalConfig(epochs=len(questions[0])),
            packages=dict(run.record.get("versions", {})),
            metadata=dict(run.record),
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[EvalScore(name=SCORER, scorer=SCORER, scored_samples=len(samples), metrics=metrics)],
        ),
        stats=EvalStats(started_at=run.started, completed_at=run.started),
        samples=samples,
    )


def _sampling(run: Run) -> Any:
    """A run's sampling; nothing of responses that another harness generated."""
    from inspect_ai.model import GenerateConfig

    settings = {} if "grade_only" in run.record["identity"] else run.record.get("settings", {})
    return GenerateConfig(**{key: settings.get(key) for key in ("temperature", "top_p", "max_tokens", "seed")})


def _sample(run: Run, row: Mapping[str, Any]) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ChatMessageUser, ModelOutput, ModelUsage

    said = ChatMessageAssistant(content=row["response"], source="generate")
    usage = ModelUsage(output_tokens=row["tokens"], total_tokens=row["tokens"])
    reason = "max_tokens" if row["finish_reason"] == "length" else "stop"
    prompt = row.get("prompt", "")
    return EvalSample(
        id=row["question"] + 1,
        epoch=row["sample"] + 1,
        input=prompt,
        target=row["answer"],
        messages=[ChatMessageUser(content=prompt, source="input"), said],
        output=ModelOutput(
            model=run.model, choices=[ChatCompletionChoice(message=said, stop_reason=reason)], usage=usage
        ),
        model_usage={run.model: usage},
        scores=_scores(row),
        metadata={key: row[key] for key in ("question_id", "seed", "rule", "timed_out") if row.get(key) is not None},
    )


def _scores(row: Mapping[str, Any]) -> dict[str, Any]:
    from inspect_ai.scorer import CORRECT, INCORRECT, Score

    verdicts = {SCORER: row["correct"]}
    verdicts |= {name: verdict(row) for name, verdict in OTHERS.items() if KEYS[name] in row}
    return {
        name: Score(value=CORRECT if right else INCORRECT, answer=row["extracted"], explanation=row.get("rule"))
        for name, right in verdicts.items()
    }
