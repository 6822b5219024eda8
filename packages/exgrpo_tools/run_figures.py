"""What the metrics of verl and exgrpo say of a step and of a run, whatever its data are called."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from exgrpo_tools.run_files import Steps

# "reward" where the reward function gives no "acc"
_TEST = re.compile(r"val-core/(?P<source>.+)/(?:acc|reward)/mean@\d+")
# a metric of the last step -> the kind of run that has it
KINDS = {"experience/stored_groups": "group replay", "experience/mixing": "ExGRPO"}
ON_POLICY = "on-policy"
Metrics = Mapping[str, float]


def tests(metrics: Metrics) -> dict[str, float]:
    """Source of test questions -> mean accuracy of its sampled answers; empty without a test."""
    found = {name: _TEST.fullmatch(name) for name in metrics}
    return {match["source"]: metrics[name] for name, match in found.items() if match}


def test_accuracy(metrics: Metrics) -> float | None:
    """The mean over the sources of test questions; None for a step without a test."""
    return statistics.fmean(found.values()) if (found := tests(metrics)) else None


def fresh_accuracy(metrics: Metrics) -> float | None:
    """Share of correct rollouts among the step's fresh ones."""
    return metrics.get("experience/fresh_score", metrics.get("critic/score/mean"))


def replayed_groups(metrics: Metrics) -> float:
    """Groups with a replayed trajectory, and whole past groups."""
    return sum(
        metrics.get(f"experience/{name}", 0.0) for name in ("replayed_groups", "stored_groups")
    )


def replay_age(metrics: Metrics) -> float:
    """Mean age in steps of what is replayed."""
    name = "stored_group_age" if metrics.get("experience/stored_groups", 0) else "replay_age"
    return float(metrics.get(f"experience/{name}", 0))


def generated_tokens(metrics: Metrics) -> float:
    """Response tokens generated in this step; without that metric the batch's but the replayed
    ones. KeyError if it has no lengths either.
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


def trained(steps: Steps) -> Steps:
    """The steps that trained: a test before the first has a line of its own."""
    return {step: metrics for step, metrics in steps.items() if "timing_s/step" in metrics}


def tokens_by_step(steps: Steps) -> dict[int, float]:
    """Step -> response tokens generated until its end, those of a run that began earlier left out;
    empty if a step does not say.
    """
    total, totals = 0.0, dict[int, float]()
    for step, metrics in steps.items():
        if "timing_s/step" in metrics:
            try:
                total += generated_tokens(metrics)
            except KeyError:
                return {}
        totals[step] = total
    return totals


def summary(steps: Steps) -> dict[str, Any]:
    """A run's figures, name -> value; accuracies are None without a test
    (``trainer.test_freq=-1``).

    Raises:
        ValueError: no step has trained.
    """
    taught = trained(steps)
    if not taught:
        raise ValueError("has no step that has trained")
    tested = [found for metrics in steps.values() if (found := tests(metrics))]
    sources = sorted({source for found in tested for source in found})
    accuracies = {"": [statistics.fmean(found.values()) for found in tested]}
    if len(sources) > 1:  # the mean over them, then each
        accuracies |= {
            f", {name}": [each[name] for each in tested if name in each] for name in sources
        }
    replaying = [metrics for metrics in taught.values() if replayed_groups(metrics) > 0]
    last = taught[max(taught)]
    ages = [replay_age(metrics) for metrics in replaying]
    tokens = tokens_by_step(steps)
    return {
        "kind": next((kind for name, kind in KINDS.items() if name in last), ON_POLICY),
        **{
            f"accuracy before{name}": each[0] if each else None for name, each in accuracies.items()
        },
        **{
            f"accuracy after{name}": each[-1] if each else None for name, each in accuracies.items()
        },
        "steps": max(taught),
        "steps that replay": len(replaying),
        "questions in pool": int(last.get("experience/pool_questions", 0)),
        "questions retired": int(last.get("experience/retired_questions", 0)),
        "replay age (mean, steps)": round(statistics.mean(ages), 1) if ages else 0.0,
        "generated tokens": int(max(tokens.values())) if tokens else None,
        "seconds a step (median)": round(
            statistics.median(metrics["timing_s/step"] for metrics in taught.values()), 2
        ),
    }
