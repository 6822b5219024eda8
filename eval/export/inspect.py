"""inspect-ai's logs: one per benchmark; the samples of a question are its epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exgrpo_eval.export.graded_run import Run, accuracy
from exgrpo_tools.texts import file_part

SCORER = "exgrpo"  # the score of the verdict that counts


def write(run: Run, folder: Path) -> list[Path]:
    """FOLDER/BENCHMARK.eval for each benchmark; ImportError without inspect_ai."""
    from inspect_ai.log import write_eval_log

    paths = []
    for name, questions in run.benchmarks().items():
        path = folder / f"{file_part(name)}.eval"
        write_eval_log(_log(run, name, questions), str(path), format="eval")
        paths.append(path)
    return paths


def _log(run: Run, name: str, questions: Sequence[Sequence[Mapping[str, Any]]]) -> Any:
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalScore,
        EvalSpec,
        EvalStats,
    )

    samples = [_sample(run, row) for rows in questions for row in rows]
    value, error = accuracy(questions)
    metrics = {
        "accuracy": EvalMetric(name="accuracy", value=value),
        "stderr": EvalMetric(name="stderr", value=error),
    }
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=run.started,
            task=name,
            task_id=name,
            run_id=f"{run.started}-{name}",
            eval_id=f"{run.started}-{name}",
            dataset=EvalDataset(
                name=name, location=questions[0][0].get("input_file"), samples=len(questions)
            ),
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
            scores=[
                EvalScore(name=SCORER, scorer=SCORER, scored_samples=len(samples), metrics=metrics)
            ],
        ),
        stats=EvalStats(started_at=run.started, completed_at=run.finished),
        samples=samples,
    )


def _sampling(run: Run) -> Any:
    """A run's sampling settings; empty for responses of another harness, whose settings are not
    known.
    """
    from inspect_ai.model import GenerateConfig

    settings = {} if run.of_another_harness else run.record.get("settings", {})
    return GenerateConfig(
        **{key: settings.get(key) for key in ("temperature", "top_p", "max_tokens", "seed")}
    )


def _sample(run: Run, row: Mapping[str, Any]) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ChatMessageUser,
        ModelOutput,
        ModelUsage,
    )

    answer = ChatMessageAssistant(content=row["response"], source="generate")
    tokens = row["tokens"]
    usage = None if tokens is None else ModelUsage(output_tokens=tokens, total_tokens=tokens)
    reason: Any = (
        "max_tokens"
        if row["finish_reason"] == "length"
        else "stop"
        if row["finish_reason"]
        else "unknown"
    )
    prompt = row.get("prompt") or ""
    return EvalSample(
        id=row["question"] + 1,
        epoch=row["sample"] + 1,
        input=prompt,
        target=row["answer"],
        messages=[ChatMessageUser(content=prompt, source="input"), answer],
        output=ModelOutput(
            model=run.model,
            choices=[ChatCompletionChoice(message=answer, stop_reason=reason)],
            usage=usage,
        ),
        model_usage={run.model: usage} if usage else {},
        scores=_scores(row),
        metadata={
            key: row[key]
            for key in ("question_id", "seed", "rule", "timed_out")
            if row.get(key) is not None
        },
    )


def _scores(row: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict that counts and, if the row has them, those of the full grader, Math-Verify and
    Oat's.
    """
    from inspect_ai.scorer import CORRECT, INCORRECT, Score

    verdicts = {SCORER: row["correct"]}
    if "rule" in row:
        verdicts["full_grader"] = row["rule"] is not None
    if "oat_correct" in row:
        verdicts["math_verify"] = row["math_verify_correct"]
        verdicts["oat"] = bool(row["oat_correct"])
    return {
        name: Score(
            value=CORRECT if right else INCORRECT,
            answer=row["extracted"],
            explanation=row.get("rule"),
        )
        for name, right in verdicts.items()
    }
