"""Score the candidates of a step's replayed questions under the current policy: one log-prob pass of verl's actor.

What is replayed is trained on under the same weights: :mod:`exgrpo.on_verl.log_prob_pass` does not pass it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.choice import Candidate, View
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import sequence_fields

SCRATCH = "exgrpo_candidates"  # partition of the queue for rows that are scored and dropped


def of_response(passed: torch.Tensor, length: int) -> npt.NDArray[np.float32]:
    """What a row [P+T] of the actor's pass says of its response of T = `length` tokens, [T]."""
    return passed[-length - 1 : -1].float().numpy()


class Passed(NamedTuple):
    """What the actor's pass says of a prompt of P tokens and its response of T, one ahead: the last T + 1 but the last.

    Attributes:
        entropy, log_probs: [P+T], as the actor writes them into the queue.
    """

    entropy: torch.Tensor
    log_probs: torch.Tensor

    def view(self, length: int) -> View:
        """Of the response, which has `length` tokens."""
        return View(*(of_response(row, length) for row in self))


@dataclass
class CandidateScorer:
    """verl's actor as the `Look` of exgrpo.experience.choice; no candidate is scored twice.

    Attributes:
        prompts: question -> its prompt's tokens, int64 [P].
        compute_log_prob: the actor's method; fills ``entropy`` and ``log_probs`` of the rows of a batch.
        ranks: number of data-parallel ranks that share the rows.
        micro_batch: each rank's number of rows must be a multiple of it.
        temperature: of the rollouts.
        passed: of the candidates scored so far, by question and `Trajectory.key`.
    """

    prompts: Mapping[str, torch.Tensor]
    compute_log_prob: Callable[[Batch], Any]
    ranks: int
    micro_batch: int
    temperature: float
    passed: dict[tuple[str, bytes], Passed] = field(default_factory=dict)

    @classmethod
    def of(cls, prompts: Mapping[str, torch.Tensor], workers: Any, rollout: DictConfig) -> CandidateScorer:
        """The scorer of an actor's worker group, by the rollout's settings for log-probs."""
        ranks = data_parallel_size(workers)
        return cls(prompts, workers.compute_log_prob, ranks, rows_at_a_time(rollout), rollout.temperature)

    def __call__(self, candidates: Sequence[Candidate]) -> list[View]:
        """One pass over those that are not scored yet."""
        missing = [candidate for candidate in candidates if _name(*candidate) not in self.passed]
        if missing:
            self._pass(missing)
        return [self.passed[_name(*candidate)].view(len(candidate[1])) for candidate in candidates]

    def said_of(self, question: str, trajectory: Trajectory) -> Passed | None:
        """What is known of a candidate; None if it was not scored."""
        return self.passed.get(_name(question, trajectory))

    def passed_of(self, chosen: Mapping[str, Trajectory]) -> dict[str, Passed]:
        """What is known of a trajectory of each of these questions; those that were not scored are absent."""
        known = {question: self.said_of(question, each) for question, each in chosen.items()}
        return {question: said for question, said in known.items() if said is not None}

    def _pass(self, candidates: Sequence[Candidate]) -> None:
        """Through a scratch partition that is cleared afterwards."""
        rows = [sequence_fields(self.prompts[question], trajectory) for question, trajectory in candidates]
        order = dealt([len(row["input_ids"]) for row in rows], self.ranks, self.ranks * self.micro_batch)
        keys = [f"candidate_{i}_0" for i in range(len(order))]
        tags = [{"seq_len": len(rows[position]["input_ids"]), "status": "success"} for position in order]
        queue.write(keys, SCRATCH, list_of_dict_to_tensordict([rows[position] for position in order]), tags)
        try:
            extra = {"calculate_entropy": True, "compute_loss": False, "temperature": self.temperature}
            self.compute_log_prob(Batch(keys=keys, tags=tags, partition_id=SCRATCH, extra_info=extra))
            data = queue.read(keys, SCRATCH, ["entropy", "log_probs"])
        finally:
            queue.clear(keys, SCRATCH)
        for position, entropy, log_probs in zip(
            order, data["entropy"].unbind(), data["log_probs"].unbind(), strict=True
        ):
            self.passed[_name(*candidates[position])] = Passed(entropy, log_probs)


def _name(question: str, trajectory: Trajectory) -> tuple[str, bytes]:
    return question, trajectory.key


def rows_at_a_time(rollout: DictConfig) -> int:
    """Each rank's number of rows in a log-prob pass must be a multiple of it."""
    return 1 if rollout.log_prob_use_dynamic_bsz else int(rollout.log_prob_micro_batch_size_per_gpu)


def data_parallel_size(workers: Any) -> int:
    """The number of data-parallel ranks of the actor's worker group."""
    if "actor" not in workers._dispatch_info:
        workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
    return int(max(workers._dispatch_info["actor"])) + 1


def dealt(lengths: list[int], ranks: int, multiple: int) -> list[int]:
    """Order the rows so that the ranks, each taking the next equal share, get about the same amount of work.

    Args:
        lengths: of each row, in tokens.
        multiple: the number of rows must be a multiple of it; the shortest row is repeated to make it one.

    Returns:
        Positions in ``lengths``, each at least once.
    """
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    rows = [*range(len(lengths)), *[shortest] * (-len(lengths) % multiple)]
    work = calculate_workload(torch.tensor([lengths[row] for row in rows], dtype=torch.int64)).tolist()
    shares = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
    return [rows[position] for share in shares for position in share]
