"""What ExGRPO's trainers make of a step's rollouts, while verl computes the advantages and updates the policy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from exgrpo.experience.trajectory import Trajectory
from exgrpo.judged_by import JudgedBy
from exgrpo.mix_trainer_draws import DrawnPrompts
from exgrpo.on_verl import queue_ops as ops
from exgrpo.on_verl.effects import Weighing, log_ratios
from exgrpo.on_verl.group_filter import GroupFilter
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import rollout_groups
from exgrpo.on_verl.step_so_far import StepSoFar


class ObservedRollouts(DrawnPrompts):
    """The pool observes the fresh rows of each step; with ``trainer.experience=False`` nothing is observed.

    Attributes:
        beside: the one thread for what no pass or update has to wait for.
        observing: the observation that is under way.
        so_far: of the step.
        replayed: uid -> the trajectory that joined its group.
        replayed_uids: replayed question of the batch -> uid of its group.
        rescued: uid -> reward of the failure in whose place its replayed trajectory is.
    """

    beside: ThreadPoolExecutor
    observing: Future[dict[str, float]]
    so_far: StepSoFar
    replayed: dict[str, Trajectory]
    replayed_uids: dict[str, str]
    rescued: dict[str, float]
    judge: JudgedBy
    weighing: Weighing
    group_filter: GroupFilter | None
    local_trigger_step: int  # verl's; none of these four is typed
    parameter_sync_step: int
    global_steps: int
    tokenizer: Any

    @property
    def whole_groups(self) -> bool:
        """Whether whole past groups are replayed, so that fresh ones are kept with their failures."""
        return self.experience.exp_unit == "group"

    @property
    def is_last_update(self) -> bool:
        """Whether the step has no further update; only separate_async has several."""
        return bool(self.local_trigger_step + 1 == self.parameter_sync_step)

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> Batch:
        """verl's update, at whose end the pool has observed the fresh rows."""
        batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        if self.experience.experience:
            self._end_observation(metrics)
        return batch

    def _observe(self, batch: Batch, past: Mapping[str, Trajectory]) -> dict[str, float]:
        """Read the fresh rows and let the pool observe them once they are all there; only then there are its metrics.

        Neither verl's advantages nor its update use what this changes. Where verl overwrites what this reads, it
        has to wait (`_await_observation`).

        Args:
            past: uid of a group or key of a row -> the trajectory that is replayed there.
        """
        compare = bool(past) and self.config.actor_rollout_ref.rollout.calculate_log_probs
        rows = ops.scored_rows(batch, compare, rules=self.judge.grader != "strict", prompts=self.whole_groups)
        fresh, current, found = ops.fresh_rows(batch, rows), ops.current_log_probs(batch, past), self.so_far
        metrics, ours = ops.debug_metrics(rows) if compare else {}, ops.staleness(batch, self.global_steps)
        threshold, vocabulary = self.experience.exp_success_threshold, len(self.tokenizer)
        found.groups += rollout_groups(
            fresh,
            self.replayed,
            self.global_steps,
            vocabulary,
            threshold,
            self.judge,
            self.rescued,
            self.whole_groups,
            self.experience.bounded_rewards,
        )
        found.log_ratios += log_ratios(past, current).values()
        by_uid = self.weighing.effects(self.replayed, current, fresh)
        found.effects |= {question: by_uid[uid] for question, uid in self.replayed_uids.items() if uid in by_uid}
        if self.is_last_update:
            found.groups += self.group_filter.take() if self.group_filter is not None else []
            noted = found.metrics(self.global_steps)
            if self.whole_groups:
                noted |= self.stored.metrics(current, self.global_steps)
                found.effects |= self.stored.effects(current)
            ours |= noted | self.replay.observe(self.global_steps, found.groups, noted, found.effects)
        return metrics | {f"experience/{name}": value for name, value in ours.items()}

    def _await_observation(self) -> dict[str, float]:
        """What the pool has to say of the update, once it has."""
        started = time.perf_counter()
        said = self.observing.result()
        self.so_far.seconds += time.perf_counter() - started
        return said

    def _end_observation(self, metrics: dict) -> None:
        """Add its metrics; after the last update of a step, the step's."""
        metrics.update(self._await_observation())
        if self.is_last_update:  # verl would average what each update reports
            metrics["experience/generated_tokens"] = self.so_far.generated_tokens
            metrics["experience/seconds"], self.so_far = self.so_far.seconds, StepSoFar()
