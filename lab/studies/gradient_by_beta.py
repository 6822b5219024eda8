"""What shaping does to the gradient of a stored success: how much of it comes through, and how noisy it is.

    python lab/studies/gradient_by_beta.py [TASK ...] [--seeds 6] [--jobs 2] [--file FILE]

After 100 steps of the on-policy runs of gradient_agreement.py, 64 stored successes of each age join K - 1 fresh
rollouts to their question. Of the gradient of the stored row alone: length (root mean square, a fresh group's is 1),
agreement with that of 8,192 fresh rollouts (what is along it, for each unit of length), spread (standard deviation of
the lengths over their mean). Each run is some rows of the file: a stopped study goes on with the same command.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import study_folders
import torch
from ablate import parse
from comparison import estimate
from gradient_agreement import AGES, GROUPS, LOOP, SETTINGS, Gradients, History, K, fresh_rows, go_on
from minimal_loop import Rows
from rare_tasks import RARE_TASKS, load
from seed_tables import marked
from study_folders import RULES
from study_loop import train
from torch import Tensor

from exgrpo.console import in_one_line
from exgrpo.loss_settings import LossSettings

FILE = study_folders.RUNS / "gradient-by-beta.parquet"
FRESH = "", "fresh group"  # age and name of the row that the others are beside
LOSSES = {
    **{f"beta {beta}": {"off_policy_reshape": f"p_div_p_{beta}"} for beta in ("0.01", "0.1", "0.5", "1")},
    "no shaping": {"off_policy_reshape": "no_reshape"},
    "TOPR": {"off_policy_loss": "topr"},
}


def stored_rows(gradients: Gradients, groups: Sequence[Any], rng: np.random.Generator) -> Iterator[tuple[str, Tensor]]:
    """Loss -> gradients of the stored rows alone, [rows, parameters]; all losses have the same rows."""
    drawn = [groups[number] for number in rng.integers(len(groups), size=GROUPS)]
    anew = gradients.sampled([question for question, _ in drawn])
    mixed = []
    for (question, fresh), (_, past) in zip(anew, drawn, strict=True):
        solved = [rollout for rollout in past if rollout.reward]
        chosen = solved[rng.integers(len(solved))]
        mixed.append(Rows([(question, rollout) for rollout in fresh[: K - 1]], [(question, chosen)]))
    silent = LossSettings.from_mapping({"off_policy_loss": f"{RULES}:phantom"})
    fresh_halves = torch.stack([gradients.of(rows, silent) for rows in mixed])
    for name, settings in LOSSES.items():
        loss = LossSettings.from_mapping(settings)
        yield name, torch.stack([gradients.of(rows, loss) for rows in mixed]) - fresh_halves


def measures(each: Tensor, reference: Tensor, unit: float = 1.0) -> dict[str, float]:
    """Of gradients [rows, parameters]; `unit` is what `along` is counted in."""
    along, lengths = float((each @ reference / reference.norm()).mean()), each.norm(dim=1)
    return {
        "along": along / unit,
        "agreement": along / float(lengths.square().mean().sqrt()),
        "spread": float(lengths.std() / lengths.mean()),
    }


def perform(task_name: str, seed: int) -> list[dict[str, Any]]:
    """One on-policy run; a row an age."""
    torch.set_num_threads(1)
    experience, loss, loop, _ = parse([*SETTINGS, *LOOP])
    policy, task = load(RARE_TASKS[task_name], seed % 3, seed % 2)
    history, rng = History(), np.random.default_rng(seed)
    for _ in train(policy, task, experience, loss, replace(loop, seed=seed), history):
        pass
    gradients = Gradients(policy, task, history, rng)
    reference, _ = gradients.reference(task.train)
    fresh = gradients.sampled(rng.choice(task.train, GROUPS).tolist())
    plain = torch.stack([gradients.of(fresh_rows([group]), LossSettings.from_mapping({})) for group in fresh])
    unit = measures(plain, reference)["along"]
    facts = {"task": task_name, "seed": seed}
    found = [{**facts, "age": FRESH[0], "loss": FRESH[1], **measures(plain, reference, unit)}]
    for low, high in AGES:
        for name, each in stored_rows(gradients, history.of_age(low, high), rng):
            found.append({**facts, "age": f"{low} to {high}", "loss": name, **measures(each, reference, unit)})
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row an age and loss, means over runs; the difference to no shaping is paired by run."""
    of_runs: dict[tuple[str, int], dict[tuple[str, str], dict[str, float]]] = defaultdict(dict)
    for row in rows:
        of_runs[row["task"], row["seed"]][row["age"], row["loss"]] = row
    runs = list(of_runs.values())
    lines = ["| steps ago | loss | length | agreement | to no shaping | spread |", "| --- |" + " --- |" * 5]
    for age, loss in runs[0]:
        mine, plain = ([run[age, name] for run in runs] for name in (loss, "no shaping" if age else loss))
        fresh = [run[FRESH]["agreement"] for run in runs]
        # along a direction it is agreement times length, and a fresh group's is 1
        lengths = [one["along"] / one["agreement"] * unit for one, unit in zip(mine, fresh, strict=True)]
        gaps = [one["agreement"] - other["agreement"] for one, other in zip(mine, plain, strict=True)]
        agreement, spread = (str(estimate([one[name] for one in mine])) for name in ("agreement", "spread"))
        cells = [str(estimate(lengths)), agreement, marked(gaps) if any(gaps) else "", spread]
        lines.append(f"| {age or 'now'} | {loss} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with in_one_line("gradient_by_beta.py", "the same command goes on"):
        print(table(go_on(__doc__, FILE, perform)))
