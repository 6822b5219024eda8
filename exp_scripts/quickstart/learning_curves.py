"""Table and picture of quickstart runs.

    python exp_scripts/quickstart/learning_curves.py DIR [DIR ...]

For each run a table of learning and replay, and DIR/quickstart.png; for several also mean and range
by kind of run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from exgrpo.console import in_one_line

ACCURACY = "val-core/sum5/acc/mean@"
# a metric of the last step -> the kind of run that has it
KINDS = {"experience/stored_groups": "group replay", "experience/mixing": "ExGRPO"}


def load(folder: Path) -> dict[int, dict[str, Any]]:
    """step -> metrics of a run; the last ones of a step that was trained twice, after a kill."""
    steps: dict[int, dict[str, Any]] = {}
    for file in sorted(folder.glob("metrics-*.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in file.read_text().split("\n")[:-1]:
            entry = json.loads(line)
            steps.setdefault(entry["step"], {}).update(entry["data"])
    return dict(sorted(steps.items()))


def test_accuracy(metrics: dict[str, Any]) -> float | None:
    """Sampled accuracy on the test questions; None for a step without a test."""
    return next((value for key, value in metrics.items() if key.startswith(ACCURACY)), None)


def fresh_accuracy(metrics: dict[str, Any]) -> float | None:
    """Share of correct rollouts among the step's fresh ones."""
    return metrics.get("experience/fresh_score", metrics.get("critic/score/mean"))


def progress(entry: dict[str, Any], steps: int) -> str:
    """One line about a step."""
    metrics, step = entry["data"], entry["step"]
    test = test_accuracy(metrics)
    words = [] if test is None else [f"test accuracy {test:.3f}"]
    if "timing_s/step" in metrics:
        seconds = metrics["timing_s/step"]
        groups = replayed_groups(metrics)
        pool = metrics.get("experience/pool_questions", 0)
        retired = metrics.get("experience/retired_questions", 0)
        left = (steps - step) * seconds
        words = [
            f"train accuracy {fresh_accuracy(metrics):.3f}",
            f"replayed {groups:.0f}",
            f"pool {pool:.0f} questions",
            f"retired {retired:.0f}",
            f"{seconds:.1f} s a step, {left / 60:.1f} min left",
            *words,
        ]
    return f"step {step:3d}/{steps}  " + "  ".join(words)


def summary(folder: Path) -> dict[str, Any]:
    """A run's figures, name -> value; accuracies are None without a test
    (``trainer.test_freq=-1``).
    """
    steps = load(folder)
    tests = [
        (step, value)
        for step, metrics in steps.items()
        if (value := test_accuracy(metrics)) is not None
    ]
    trained = {step: metrics for step, metrics in steps.items() if "timing_s/step" in metrics}
    if not trained:
        raise ValueError(f"{folder}: no metrics-*.jsonl with a step")
    replaying = [m for m in trained.values() if replayed_groups(m) > 0]
    last = trained[max(trained)]
    ages = [replay_age(metrics) for metrics in replaying]
    return {
        "run": folder.name,
        "kind": next((kind for name, kind in KINDS.items() if name in last), "on-policy"),
        "accuracy before": tests[0][1] if tests else None,
        "accuracy after": tests[-1][1] if tests else None,
        "steps": max(trained),
        "steps that replay": len(replaying),
        "questions in pool": int(last.get("experience/pool_questions", 0)),
        "questions retired": int(last.get("experience/retired_questions", 0)),
        "replay age (mean, steps)": round(statistics.mean(ages), 1) if ages else 0.0,
        "generated tokens": int(sum(generated_tokens(m) for m in trained.values())),
        "seconds a step (median)": round(
            statistics.median(m["timing_s/step"] for m in trained.values()), 2
        ),
    }


def replayed_groups(metrics: dict[str, Any]) -> float:
    """Groups with a replayed trajectory, and whole past groups."""
    return sum(
        metrics.get(f"experience/{name}", 0.0) for name in ("replayed_groups", "stored_groups")
    )


def replay_age(metrics: dict[str, Any]) -> float:
    """Mean age in steps of what is replayed."""
    name = "stored_group_age" if metrics.get("experience/stored_groups", 0) else "replay_age"
    return float(metrics.get(f"experience/{name}", 0))


def generated_tokens(metrics: dict[str, Any]) -> float:
    """Response tokens generated in this step; in older runs the batch's without the
    replayed ones.
    """
    if "experience/generated_tokens" in metrics:
        return float(metrics["experience/generated_tokens"])
    rows = metrics["perf/total_num_tokens"] / (
        metrics["prompt_length/mean"] + metrics["response_length/mean"]
    )
    groups = metrics.get("experience/replayed_groups", 0)
    return rows * metrics["response_length/mean"] - groups * metrics.get(
        "experience/replayed_response_length", 0
    )


def picture(folder: Path) -> Path:
    """Accuracy and pool over the steps, as DIR/quickstart.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = load(folder)
    trained = {step: metrics for step, metrics in steps.items() if "timing_s/step" in metrics}
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    left.plot(
        list(trained),
        [fresh_accuracy(m) for m in trained.values()],
        color="C7",
        lw=1,
        label="training, fresh rollouts",
    )
    tests = [(step, value) for step, m in steps.items() if (value := test_accuracy(m)) is not None]
    left.plot(
        [step for step, _ in tests],
        [value for _, value in tests],
        "o-",
        color="C0",
        label="test questions, sampled",
    )
    left.set(title="Accuracy", xlabel="step", ylim=(0, 1))
    left.legend(loc="lower right")
    for key, name in (
        ("pool_questions", "in the pool"),
        ("retired_questions", "retired: solved by every rollout"),
    ):
        middle.plot(
            list(trained), [m.get(f"experience/{key}", 0) for m in trained.values()], label=name
        )
    middle.set(title="Questions", xlabel="step")
    middle.legend(loc="upper left")
    right.bar(list(trained), [replayed_groups(m) for m in trained.values()], color="C2", alpha=0.5)
    right.set(
        title="Replayed groups (bars), age of what is replayed (line)",
        xlabel="step",
        ylabel="groups",
    )
    ages = right.twinx()
    replayed = {step: m for step, m in trained.items() if replayed_groups(m)}
    ages.plot(list(replayed), [replay_age(m) for m in replayed.values()], color="C3")
    ages.set_ylim(bottom=0)
    ages.set_ylabel("mean age, steps", color="C3")
    for axes in (left, middle, right):
        axes.spines[["top"]].set_visible(False)
    path = folder / "quickstart.png"
    figure.savefig(path, dpi=120)
    return path


def spread(values: list[float]) -> str:
    """The mean, and the range if there are several values."""
    text = f"{statistics.mean(values):.3f}"
    return text if len(values) == 1 else f"{text} ({min(values):.3f} to {max(values):.3f})"


def show(folders: list[Path]) -> None:
    """Print the table of each run, draw its picture, and compare the kinds of several runs."""
    summaries = []
    for folder in folders:
        figures = summary(folder)
        summaries.append(figures)
        (folder / "summary.json").write_text(json.dumps(figures, indent=1))
        print(f"\n{folder}")
        for key, value in figures.items():
            shown = "not tested" if value is None else value
            print(f"  {key:26} {value:.3f}" if isinstance(value, float) else f"  {key:26} {shown}")
        print(f"  picture                    {picture(folder)}")
    if len(folders) > 1:
        print("\n| | runs | before | after | generated tokens |\n| --- | --- | --- | --- | --- |")
        for kind in (*KINDS.values(), "on-policy"):
            runs = [
                run
                for run in summaries
                if run["kind"] == kind and run["accuracy after"] is not None
            ]
            if runs:
                before = spread([run["accuracy before"] for run in runs])
                after = spread([run["accuracy after"] for run in runs])
                tokens = statistics.mean(run["generated tokens"] for run in runs)
                print(f"| {kind} | {len(runs)} | {before} | {after} | {tokens:,.0f} |")


if __name__ == "__main__":
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("folders", metavar="DIR", nargs="+", type=Path, help="folder of a run")
    with in_one_line("learning_curves.py"):
        show(cli.parse_args().folders)
