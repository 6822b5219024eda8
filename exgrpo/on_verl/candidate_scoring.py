"""Score the candidates of a step's replayed questions under the current policy: one log-prob pass
of verl's actor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.trajectory_selector import Candidate, TokenScores
from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import sequence_fields

SCRATCH = "exgrpo_candidates"  # partition of the queue for rows that are scored and dropped


def of_response(passed: torch.Tensor, length: int) -> npt.NDArray[np.float32]:
    """What a row [P+T] of the actor's pass says of its response of T = `length` tokens, [T]."""
    return passed[-length - 1 : -1].float().numpy()


@dataclass(frozen=True)
class CandidateScorer:
    """verl's actor as the `Scorer` of exgrpo.experience.trajectory_selector.

    Attributes:
        prompts: question -> its prompt's tokens, int64 [P].
        compute_log_prob: the actor's method; fills ``entropy`` and ``log_probs`` of the rows of a
            batch.
        ranks: number of data-parallel ranks that share the rows.
        micro_batch: each rank's number of rows must be a multiple of it.
        temperature: of the rollouts.
    """

    prompts: Mapping[str, torch.Tensor]
    compute_log_prob: Callable[[Batch], Any]
    ranks: int
    micro_batch: int
    temperature: float

    @classmethod
    def of(
        cls, prompts: Mapping[str, torch.Tensor], workers: Any, rollout: DictConfig
    ) -> CandidateScorer:
        """The scorer of an actor's worker group, by the rollout's settings for log-probs."""
        ranks = data_parallel_size(workers)
        at_a_time = (
            1
            if rollout.log_prob_use_dynamic_bsz
            else int(rollout.log_prob_micro_batch_size_per_gpu)
        )
        return cls(prompts, workers.compute_log_prob, ranks, at_a_time, rollout.temperature)

    def __call__(self, candidates: Sequence[Candidate]) -> list[TokenScores]:
        """One pass, through a scratch partition that is cleared afterwards."""
        rows = [
            sequence_fields(self.prompts[question], trajectory)
            for question, trajectory in candidates
        ]
        order = dealt(
            [len(row["input_ids"]) for row in rows], self.ranks, self.ranks * self.micro_batch
        )
        keys = [f"candidate_{i}_0" for i in range(len(order))]
        tags = [
            {"seq_len": len(rows[position]["input_ids"]), "status": "success"} for position in order
        ]
        queue.write(
            keys, SCRATCH, list_of_dict_to_tensordict([rows[position] for position in order]), tags
        )
        try:
            extra = {
                "calculate_entropy": True,
                "compute_loss": False,
                "temperature": self.temperature,
            }
            self.compute_log_prob(
                Batch(keys=keys, tags=tags, partition_id=SCRATCH, extra_info=extra)
            )
            data = queue.read(keys, SCRATCH, ["entropy", "log_probs"])
        finally:
            queue.clear(keys, SCRATCH)
        columns = data["entropy"].unbind(), data["log_probs"].unbind()
        scores = {
            position: TokenScores(
                *(of_response(row, len(candidates[position][1])) for row in passed)
            )
            for position, *passed in zip(order, *columns, strict=True)
        }
        return [scores[position] for position in range(len(candidates))]


def data_parallel_size(workers: Any) -> int:
    """The number of data-parallel ranks of the actor's worker group."""
    if "actor" not in workers._dispatch_info:
        workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
    return int(max(workers._dispatch_info["actor"])) + 1


def dealt(lengths: list[int], ranks: int, multiple: int) -> list[int]:
    """Order the rows so that the ranks, each taking the next equal share, get about the same amount
    of work.

    Args:
        lengths: of each row, in tokens.
        multiple: the number of rows must be a multiple of it; the shortest row is repeated to make
            it one.

    Returns:
        Positions in ``lengths``, each at least once.
    """
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    rows = [*range(len(lengths)), *[shortest] * (-len(lengths) % multiple)]
    work = calculate_workload(
        torch.tensor([lengths[row] for row in rows], dtype=torch.int64)
    ).tolist()
    shares = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
    return [rows[position] for share in shares for position in share]
