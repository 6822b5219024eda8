"""The trainer of benchmarks/step.py: steps with and without replay in one run, on the same prompts.

    python benchmarks/paired_trainer.py +paired_warmup=N key=value ...

The other keys are those of exgrpo.main_mix_ppo.

After N steps with replay, which fill the pool, steps come in pairs: the same questions once with
replay and once with verl's own GRPO, in alternating order. The trainer and the task runner are
exgrpo's, with a switch and timers added.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import transfer_queue as tq
from common import descendants
from omegaconf import DictConfig
from tensordict import TensorDict
from trainer_start import start
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
from exgrpo.on_verl.complete import SCRATCH
from exgrpo.on_verl.task_runner import MixTaskRunner

NAME = "exgrpo_paired"
ROOT = "EXGRPO_BENCHMARK"  # in the environment: the process above all those of the training
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> Iterator[tuple[int, float]]:
    """(process, CPU seconds) of all processes below this one."""
    for pid in descendants(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        yield pid, (int(fields[11]) + int(fields[12])) / TICKS


@register_trainer(NAME)
class PairedTrainer(ExperienceMixPPOTrainer):
    """exgrpo's trainer, replay switched off in every second step after the warm-up."""

    experience: Any

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.noted: defaultdict[str, float] = defaultdict(float)
        self.modes = {
            on: dataclasses.replace(self.experience, experience=on) for on in (True, False)
        }
        self.cpu_seconds: dict[int, float] = {}  # process -> what it has used
        self.drawn: Any = None  # a TensorDict, for both steps of a pair
        self.past: list[StoredGroup] = []  # of exp_unit=group: the past groups of that draw

    def on_train_begin(self) -> None:
        super().on_train_begin()
        for name in ("kv_batch_get", "kv_batch_put", "kv_clear"):
            setattr(tq, name, self._watched(getattr(tq, name)))
        self.compute = self.actor_rollout_wg.compute_log_prob
        self.actor_rollout_wg.compute_log_prob = self._compute
        self.replay.choose = self._timed(self.replay.choose)  # type: ignore[method-assign]

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with its calls and seconds recorded."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.noted["queue_calls"] += 1
                self.noted["queue_s"] += time.perf_counter() - started

        return watched

    def _compute(self, batch: KVBatchMeta) -> KVBatchMeta:
        """The actor's pass, with tokens and seconds recorded separately for candidates and the
        step's rows.
        """
        kind = "candidates" if batch.partition_id == SCRATCH else "rows"
        started = time.perf_counter()
        result = self.compute(batch)
        self.noted[f"{kind}_s"] += time.perf_counter() - started
        self.noted[f"{kind}_tokens"] += sum(tag["seq_len"] for tag in batch.tags)
        return result

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """The first step of a pair draws for both; the one without replay has the same rows with K
        rollouts each.
        """
        turn = self.global_steps - 1 - self.config.paired_warmup
        second = turn > 0 and turn % 2 == 1
        self.experience = self.modes[turn < 0 or turn % 4 in (0, 3)]
        if not second:
            started = time.perf_counter()
            mode, self.experience = self.experience, self.modes[True]
            self.drawn = super()._next_train_batch(num_prompts)
            self.past, self.waiting = self.waiting, []
            self.experience = mode
            self.noted["draw_s"] = time.perf_counter() - started
        if self.experience.experience:
            batch, self.waiting = self.drawn, self.past
        else:
            names = [*self.drawn["question_id"], *(group.question for group in self.past)]
            rows = [dict(self.train_dataset[self.row_of_question[name]]) for name in names]
            for position, row in enumerate(rows):
                row["uid"] = f"{self.global_steps:07d}o{position:05d}"
            batch = tu.get_tensordict(collate_fn(rows))
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """exgrpo's, which has a part of experience/seconds inside verl's timer of the log-prob
        pass.
        """
        before = self.so_far.seconds
        batch = super()._compute_old_log_prob(batch, metrics)
        self.noted["after_s"] += metrics.get("experience/seconds", before) - before
        return batch

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; what it takes is time in which the step waits for scores."""

        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            result = call(*args)
            self.noted["scoring_s"] += time.perf_counter() - started
            return result

        return timed

    def cpu_of_step(self) -> float:
        """Since the last call, of all processes of the training."""
        before, self.cpu_seconds = self.cpu_seconds, dict(cpu_seconds(int(os.environ[ROOT])))
        return sum(seconds - before.get(pid, 0.0) for pid, seconds in self.cpu_seconds.items())

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        metrics.update({f"paired/{name}": float(value) for name, value in self.noted.items()})
        metrics["paired/cpu_s"] = self.cpu_of_step()
        metrics["paired/replay"] = float(self.experience.experience)
        self.noted.clear()


class PairedRunner(MixTaskRunner):
    """exgrpo's task runner with the trainer above."""

    trainers = "paired_trainer"  # the worker imports it through PYTHONPATH


@hydra.main(config_path="pkg://exgrpo.config", config_name="exgrpo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """As exgrpo.main_mix_ppo, with the other trainer."""
    start(config, NAME, PairedRunner)


if __name__ == "__main__":
    main()
