"""The trainer of lab/benchmarks/growth.py: steps at chosen sizes, with rollouts that are written instead of generated.

    python lab/benchmarks/growth_trainer.py +growth.points=[...] +growth.file=FILE key=value ...

Everything but generation and the update is the trainer's own: the draw, the queue, the actor's passes, the pool. All of
it happens in verl's first step.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import benchmark_folders  # noqa: F401
import hydra
import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from paired_trainer import PairedTrainer
from tensordict import TensorDict
from trainer_start import start
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
from exgrpo.on_verl.complete import sequence_fields
from exgrpo.on_verl.task_runner import MixTaskRunner

NAME = "exgrpo_growth"
Point = dict[str, int]  # questions, rollouts (K), length (of responses), candidates


class Written:
    """Instead of verl's agent loops: rollouts of random tokens, every second one right."""

    def __init__(self, trainer: GrowthTrainer) -> None:
        self.trainer = trainer
        self.rng = np.random.default_rng(0)
        options = dict(trainer.config.data.get("apply_chat_template_kwargs") or {})
        self.builder = ContinuousTokenBuilder(trainer.tokenizer, chat_template_kwargs=options)

    def trajectory(self) -> Trajectory:
        """Of the point's length."""
        length = self.trainer.point["length"]
        tokens = self.rng.integers(3, len(self.trainer.tokenizer), length)
        return Trajectory(tokens, -self.rng.random(length), step=0, entropy=float(self.rng.random()))

    def generate_sequences(self, batch: TensorDict) -> None:
        """Into the queue, as verl's agent loop does when a group is finished."""
        step = self.trainer.global_steps
        for position, uid in enumerate(batch["uid"]):
            count = (
                int(batch["__rollout_n__"][position]) if "__rollout_n__" in batch else self.trainer.point["rollouts"]
            )
            question = batch["question_id"][position]
            rows = [self.row(uid, question, batch["raw_prompt"][position], session) for session in range(count)]
            keys = [f"{uid}_{session}_0" for session in range(count)]
            lengths = [(len(row["prompts"]), len(row["responses"])) for row in rows]
            tags = [{"prompt_len": p, "response_len": t, "seq_len": p + t, "status": "success"} for p, t in lengths]
            weights = {"global_steps": step, "min_global_steps": step - 1, "max_global_steps": step - 1}
            fields, tags = list_of_dict_to_tensordict(rows), [tag | weights for tag in tags]
            tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
            finished = {"is_prompt": True, "status": "finished", "global_steps": step}
            tq.kv_batch_put(keys=[uid], partition_id="train", tags=[finished])

    def row(self, uid: str, question: str, messages: Any, session: int) -> dict[str, Any]:
        """One rollout."""
        rollout = self.trajectory()
        prompt = torch.tensor(self.builder.build_initial_tokens(list(messages)))
        rewards = torch.zeros(len(rollout))
        rewards[-1] = float(session % 2 == 0)
        return {
            **sequence_fields(prompt, rollout),
            "uid": uid,
            "question_id": question,
            "session_id": session,
            "rm_scores": rewards,
            "rollout_log_probs": torch.from_numpy(rollout.log_probs.copy()),
            "multi_modal_inputs": {},
            "raw_prompt": list(messages),
            "num_turns": 2,
        }


@register_trainer(NAME)
class GrowthTrainer(PairedTrainer):
    """exgrpo's trainer, whose first step is all of the measurement."""

    point: Point
    global_steps: int  # verl's; it is not typed

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """All points, one after the other; at each the two kinds of step in alternating order."""
        first, settings = self.global_steps, self.config.growth
        self.agent_loop_manager = Written(self)
        with open(settings.file, "w", encoding="utf-8") as file:
            for point in settings.points:
                self._prepare(dict(point))
                warm_up = 2 if point is settings.points[0] else 0
                for turn in range(-warm_up, 2 * settings.pairs):
                    batch = self._measured(turn % 4 in (0, 3), metrics)
                    if turn >= 0:
                        figures = {**self.point, **self.noted, "replay": float(self.experience.experience)}
                        file.write(json.dumps(figures | {"bookkeeping_s": metrics.get("experience/seconds")}) + "\n")
                        file.flush()
        self.global_steps = first
        self.noted.clear()
        return batch

    def _prepare(self, point: Point) -> None:
        self.point = point
        with open_dict(self.config):
            self.config.actor_rollout_ref.rollout.n = point["rollouts"]
            self.config.data.train_batch_size = point["questions"]
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size = point["questions"]
        on = dataclasses.replace(
            self.modes[True],
            rollout_n=point["rollouts"],
            experience_rbound=point["rollouts"] - 1,
            experience_max_per_question=point["candidates"],
        )
        self.modes = {True: on, False: dataclasses.replace(on, experience=False)}
        self.mix_collate = ExperienceMixCollateFn(
            lambda question: self.train_dataset[self.row_of_question[question]], point["rollouts"], collate_fn
        )

    def _measured(self, replay: bool, metrics: dict) -> KVBatchMeta:
        """A step from the end of its generation to the start of its update; its batch."""
        self.global_steps += 1
        self.experience = self.modes[replay]
        self.replay = ExperienceReplay(self.modes[True], self.row_of_question.keys())
        self.replay.mixing = True
        written: Written = self.agent_loop_manager
        for question in list(self.row_of_question)[: self.point["questions"] // 2]:
            for _ in range(self.point["candidates"]):
                group = RolloutGroup(question, self.point["rollouts"], (written.trajectory(),))
                self.replay.pool.observe(group)
        metrics.clear()
        self._add_batch_to_generate()
        self.noted.clear()
        self.cpu_of_step()
        batch = self._step_once(metrics, {}, self.point["questions"])
        self.noted["cpu_s"] = self.cpu_of_step()
        tq.kv_clear(keys=batch.keys, partition_id="train")
        return batch

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        return ExperienceMixPPOTrainer._next_train_batch(self, num_prompts)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        return batch  # the same in both kinds of step

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> None:
        metrics.clear()


class GrowthRunner(MixTaskRunner):
    """exgrpo's task runner with the trainer above."""

    trainers = "growth_trainer"  # the worker imports it through PYTHONPATH


@hydra.main(config_path="pkg://exgrpo.config", config_name="exgrpo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """As exgrpo.main_mix_ppo, with the other trainer."""
    Path(config.growth.file).parent.mkdir(parents=True, exist_ok=True)
    start(config, NAME, GrowthRunner)


if __name__ == "__main__":
    main()
