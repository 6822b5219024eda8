"""How the current policy sees the candidates of a step's replayed questions, and which of them are chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from exgrpo.experience.config import ExperienceConfig, Metric
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import (
    TrajectorySelector,
    effective_sample_size,
    mean_entropy,
    perplexity,
)
from exgrpo.on_verl.rows import candidate_row

SCRATCH = "exgrpo_candidates"  # partition of the queue for rows that are scored and dropped


@dataclass(frozen=True)
class Scored:
    """The candidates of the step's replayed questions and how the current policy sees them.

    Attributes:
        trajectories: uid -> its question's candidates, in the pool's order, but for those the pre-filter or the guard
            passes over; a uid with none left is absent.
        scores: uid -> [C] mean entropy in nats or perplexity; empty where there was nothing to compare.
        rows: how many candidates went through the model.
        guarded: how many the guard passed over (``exp_min_ess``).
        prefiltered: how many the pre-filter passed over (``exp_max_candidates``).
    """

    trajectories: dict[str, tuple[Trajectory, ...]]
    scores: dict[str, npt.NDArray[np.float64]]
    rows: int = 0
    guarded: int = 0
    prefiltered: int = 0


def score_candidates(
    candidates: Mapping[str, tuple[Trajectory, ...]],
    prompts: Mapping[str, torch.Tensor],
    config: ExperienceConfig,
    compute_log_prob: Callable[[KVBatchMeta], Any],
    ranks: int,
    micro_batch: int,
    temperature: float,
) -> Scored:
    """One pass of the current policy over the candidates (section 3.2: under pi_theta, each step).

    Of each question the most promising go through it, ``exp_max_candidates`` of them. A question that has one left is
    not scored, its choice is made; unless ``exp_min_ess`` asks for the importance ratios of each.

    Args:
        candidates: uid -> candidates.
        prompts: uid -> prompt tokens, int64 [P].
        compute_log_prob: the actor's; fills ``entropy`` and ``log_probs`` of the rows it is given.
        ranks: data-parallel ranks that share the rows.
        micro_batch: each rank's number of rows must be a multiple of it.
    """
    compares = config.exp_metric != "random"
    left = {uid: promising(found, config) for uid, found in candidates.items()}
    prefiltered = sum(map(len, candidates.values())) - sum(map(len, left.values()))
    asked = [uid for uid, found in left.items() if config.exp_min_ess > 0 or (compares and len(found) > 1)]
    scores: dict[str, npt.NDArray[np.float64]] = {uid: np.empty(0) for uid in left}
    if not asked:
        return Scored(left, scores, prefiltered=prefiltered)
    rows = [(prompts[uid], trajectory) for uid in asked for trajectory in left[uid]]
    passes = iter(_through_the_model(rows, compute_log_prob, ranks, micro_batch, temperature))
    for uid in asked:
        seen = [(trajectory, *next(passes)) for trajectory in left[uid]]
        kept = [one for one in seen if not config.exp_min_ess or _ess(one[0], one[2]) >= config.exp_min_ess]
        left[uid] = tuple(trajectory for trajectory, _, _ in kept)
        if compares and len(kept) > 1:
            scores[uid] = np.array([_score(config.exp_metric, *now) for _, *now in kept])
    guarded = len(rows) - sum(len(left[uid]) for uid in asked)
    return Scored({uid: found for uid, found in left.items() if found}, scores, len(rows), guarded, prefiltered)


def promising(found: tuple[Trajectory, ...], config: ExperienceConfig) -> tuple[Trajectory, ...]:
    """The ``exp_max_candidates`` that looked best when they were recorded, in their order; unknown ones look best.

    What was recorded is the metric's value under the policy that wrote the trajectory: it costs nothing, and it is off
    by what the policy has learnt since.
    """
    limit = config.exp_max_candidates
    if limit is None or len(found) <= limit or config.exp_metric == "random":
        return found
    sign = 1 if config.exp_select_mode == "argmin" else -1
    recorded = sign * np.array([_recorded(config.exp_metric, trajectory) for trajectory in found])
    best = np.argsort(np.where(np.isnan(recorded), -np.inf, recorded), kind="stable")[:limit]
    return tuple(found[position] for position in sorted(best.tolist()))


def _recorded(metric: Metric, trajectory: Trajectory) -> float:
    """The metric's value under the policy that wrote the trajectory; NaN if unknown."""
    if metric == "ent":
        return trajectory.entropy
    return perplexity(trajectory.log_probs) if trajectory.has_log_probs else math.nan


def choose_trajectories(
    scored: Scored, selector: TrajectorySelector, rng: np.random.Generator
) -> tuple[dict[str, Trajectory], dict[str, int]]:
    """uid -> the chosen trajectory, and its position among the candidates."""
    positions = {}
    for uid, found in scored.trajectories.items():
        scores = scored.scores[uid] if len(scored.scores[uid]) else np.zeros(len(found))
        positions[uid] = 0 if len(found) == 1 else selector.choose(scores, rng)
    return {uid: scored.trajectories[uid][position] for uid, position in positions.items()}, positions


def _ess(trajectory: Trajectory, now_T: npt.NDArray[np.float32]) -> float:
    """1 where there is no author to compare with."""
    return effective_sample_size(now_T - trajectory.log_probs) if trajectory.has_log_probs else 1.0


def _score(metric: Metric, entropies_T: npt.NDArray[np.float32], log_probs_T: npt.NDArray[np.float32]) -> float:
    return mean_entropy(entropies_T) if metric == "ent" else perplexity(log_probs_T)


def dealt(lengths: list[int], ranks: int, multiple: int) -> list[int]:
    """The order in which rows go to the ranks, each of which takes the next equal share: their work is about the same.

    Args:
        lengths: of each row, in tokens.
        multiple: the number of rows must be a multiple of it, and is made so by repeating the shortest.

    Returns:
        Positions in ``lengths``, each at least once.
    """
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    rows = [*range(len(lengths)), *[shortest] * (-len(lengths) % multiple)]
    work = calculate_workload(torch.tensor([lengths[row] for row in rows], dtype=torch.int64)).tolist()
    shares = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
    return [rows[position] for share in shares for position in share]


def _through_the_model(
    candidates: list[tuple[torch.Tensor, Trajectory]],
    compute_log_prob: Callable[[KVBatchMeta], Any],
    ranks: int,
    micro_batch: int,
    temperature: float,
) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
    """Entropies and log-probs [T] of each, by way of a scratch partition that is empty again afterwards."""
    rows = [candidate_row(prompt, trajectory) for prompt, trajectory in candidates]
    order = dealt([len(row["input_ids"]) for row in rows], ranks, ranks * micro_batch)
    rows = [rows[position] for position in order]
    keys = [f"candidate_{i}_0" for i in range(len(rows))]
    tags = [{"seq_len": len(row["input_ids"]), "status": "success"} for row in rows]
    tq.kv_batch_put(keys=keys, partition_id=SCRATCH, fields=list_of_dict_to_tensordict(rows), tags=tags)
    try:
        extra = {"calculate_entropy": True, "compute_loss": False, "temperature": temperature}
        compute_log_prob(KVBatchMeta(keys=keys, tags=tags, partition_id=SCRATCH, extra_info=extra))
        columns = ["entropy", "log_probs"]
        data = tq.kv_batch_get(keys=keys, partition_id=SCRATCH, select_fields=[*columns, "response_mask"])
        entropies, log_probs = (response_from_nested(data[name], data["response_mask"]).unbind() for name in columns)
    finally:
        tq.kv_clear(keys=keys, partition_id=SCRATCH)
    seen = dict(zip(order, zip(entropies, log_probs, strict=True), strict=True))
    pairs = (seen[position] for position in range(len(candidates)))
    return [(entropy.float().numpy(), log_prob.float().numpy()) for entropy, log_prob in pairs]
