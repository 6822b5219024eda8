"""verl's log-prob pass without the replayed rows that the actor has passed already, as candidates of the same step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from exgrpo.on_verl.candidate_scoring import data_parallel_size, dealt, rows_at_a_time
from exgrpo.on_verl.queue import Batch

PASSED = "is_passed"  # in a row's tag: the queue has its entropy and log-probs under the current policy


@dataclass(frozen=True)
class RestOfTheBatch:
    """verl's worker group for one log-prob pass.

    Attributes:
        workers: verl's.
        ranks: number of data-parallel ranks that share the rows.
        multiple: their number must stay a multiple of it.
    """

    workers: Any
    ranks: int
    multiple: int

    def compute_log_prob(self, batch: Batch) -> Batch:
        """As verl's, for all rows of the batch, though not all of them go through the actor."""
        rest = self._rest(batch)
        if rest:
            part = Batch([batch.keys[i] for i in rest], [batch.tags[i] for i in rest], batch.partition_id)
            part.fields, part.extra_info = batch.fields, batch.extra_info
            self.workers.compute_log_prob(part)
        return batch

    def __getattr__(self, name: str) -> Any:
        """All else is verl's: in separate_async the pass also saves the actor's weights."""
        return getattr(self.workers, name)

    def _rest(self, batch: Batch) -> list[int]:
        """Positions of the rows to pass, the ranks' shares one after the other; the batch as it is if all are."""
        lengths = [tag["seq_len"] for tag in batch.tags]
        passed = sorted((i for i, tag in enumerate(batch.tags) if tag.get(PASSED)), key=lambda i: -lengths[i])
        left_out = set(passed[: len(passed) - len(passed) % self.multiple])
        rest = [i for i in range(len(batch)) if i not in left_out]
        if not left_out or not rest:
            return rest
        return [rest[i] for i in dealt([lengths[i] for i in rest], self.ranks, self.ranks)]


@contextmanager
def rest_of_the_batch(trainer: Any, rollout: DictConfig) -> Iterator[None]:
    """Within it verl's pass of this trainer is `RestOfTheBatch`, in the first update of a step.

    In a later one verl takes the log-probs of the step's first weights; candidates have passed the current ones.
    """
    if trainer.local_trigger_step:
        yield
        return
    workers = trainer.actor_rollout_wg
    ranks = data_parallel_size(workers)
    trainer.actor_rollout_wg = RestOfTheBatch(workers, ranks, ranks * rows_at_a_time(rollout))
    try:
        yield
    finally:
        trainer.actor_rollout_wg = workers
