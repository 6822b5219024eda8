"""How the current policy sees the candidates of a step's replayed questions: one log-prob pass of verl's actor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from exgrpo.experience.choice import Candidate, View
from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import sequence_fields

SCRATCH = "exgrpo_candidates"  # partition of the queue for rows that are scored and dropped


@dataclass(frozen=True)
class CandidateScorer:
    """The actor, as ring 0 asks it for views.

    Attributes:
        prompts: question -> its prompt's tokens, int64 [P].
        compute_log_prob: the actor's; fills ``entropy`` and ``log_probs`` of the rows it is given.
        ranks: data-parallel ranks that share the rows.
        micro_batch: each rank's number of rows must be a multiple of it.
        temperature: of the rollouts.
    """

    prompts: Mapping[str, torch.Tensor]
    compute_log_prob: Callable[[Batch], Any]
    ranks: int
    micro_batch: int
    temperature: float

    def __call__(self, candidates: Sequence[Candidate]) -> list[View]:
        """One pass over the candidates, by way of a scratch partition that is empty again afterwards."""
        rows = [sequence_fields(self.prompts[question], trajectory) for question, trajectory in candidates]
        order = dealt([len(row["input_ids"]) for row in rows], self.ranks, self.ranks * self.micro_batch)
        rows = [rows[position] for position in order]
        keys = [f"candidate_{i}_0" for i in range(len(rows))]
        tags = [{"seq_len": len(row["input_ids"]), "status": "success"} for row in rows]
        queue.write(keys, SCRATCH, list_of_dict_to_tensordict(rows), tags)
        try:
            extra = {"calculate_entropy": True, "compute_loss": False, "temperature": self.temperature}
            self.compute_log_prob(Batch(keys=keys, tags=tags, partition_id=SCRATCH, extra_info=extra))
            columns = ["entropy", "log_probs"]
            data = queue.read(keys, SCRATCH, [*columns, "response_mask"])
            entropies, log_probs = (
                response_from_nested(data[name], data["response_mask"]).unbind() for name in columns
            )
        finally:
            queue.clear(keys, SCRATCH)
        seen = dict(zip(order, zip(entropies, log_probs, strict=True), strict=True))
        pairs = (seen[position] for position in range(len(candidates)))
        return [View(entropy.float().numpy(), log_prob.float().numpy()) for entropy, log_prob in pairs]


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
