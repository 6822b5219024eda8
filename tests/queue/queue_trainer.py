"""Our trainers on a real queue, with rollouts that are written instead of generated, as far as a
step's advantages.
"""

from pathlib import Path

import pytest
import torch
import transfer_queue as tq
from composed import job
from queue_rows import Model, rollout
from transformers import AutoTokenizer
from verl.trainer.ppo.v1 import replay_buffer
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo import provenance
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl.group_filter import GroupFilter
from exgrpo.on_verl.in_flight import InFlight
from exgrpo.on_verl.loss_shares import LossShares
from exgrpo.on_verl.metrics import StepMetrics
from exgrpo.on_verl.rehearsal import Rehearsal
from exgrpo.on_verl.sample_prints import FirstResponse
from exgrpo.on_verl.watched_rewards import Rewards
from exgrpo.preflight.checks import resolve
from exgrpo.preflight.modes import use_group_filter

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"
K, STEP = 4, 3
FILTERED = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"]
filters_by_reward = pytest.mark.skipif(
    not hasattr(replay_buffer, "FILTER_GROUPS_REWARD_METRIC"),
    reason="this verl's filter needs a metric that the reward function reports",
)
WHOLE_STEP = [
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
]


class Rollouts:
    """Instead of verl's agent loops: the questions in `failing` have no rollout, the others all
    they ask for.

    Of a question in `rewards` every rollout has that reward, of the others the first alone is
    right.
    """

    def __init__(self, failing):
        self.failing, self.rewards, self.asked = failing, {}, {}

    def generate_sequences(self, batch):
        step = batch["global_steps"]
        for uid, question, count in zip(
            batch["uid"], batch["question_id"], batch["__rollout_n__"], strict=True
        ):
            assert uid not in self.asked, f"{uid} is {self.asked[uid]} and {question}"
            self.asked[uid] = question
            if question not in self.failing:
                keys = [f"{uid}_{session}_0" for session in range(int(count))]
                rows = [self.row(question, session) for session in range(int(count))]
                tags = [self.tag(row) | {"global_steps": step, "status": "success"} for row in rows]
                tq.kv_batch_put(
                    keys=keys,
                    partition_id="train",
                    fields=list_of_dict_to_tensordict(rows),
                    tags=tags,
                )
            status = "failure" if question in self.failing else "finished"
            tags = [{"is_prompt": True, "status": status, "global_steps": step}]
            tq.kv_batch_put(keys=[uid], partition_id="train", tags=tags)

    def tag(self, row):
        return {"seq_len": 2}

    def row(self, question, session):
        reward = self.rewards.get(question, float(session == 0))
        return {
            "question_id": question,
            "responses": torch.ones(2),
            "rm_scores": torch.tensor([0.0, reward]),
        }


class WholeRollouts(Rollouts):
    """With all the columns and tags that verl's agent loop writes."""

    def row(self, question, session):
        uid = next(uid for uid, asked in self.asked.items() if asked == question)
        reward = self.rewards.get(question, float(session == 0))
        row = rollout(uid, session, [11 + session] * (2 + session), reward) | {
            "question_id": question
        }
        return {
            name: value for name, value in row.items() if name not in ("old_log_probs", "entropy")
        }

    def tag(self, row):
        lengths = {
            "prompt_len": 3,
            "response_len": len(row["responses"]),
            "seq_len": len(row["input_ids"]),
        }
        return lengths | {"min_global_steps": STEP - 1, "max_global_steps": STEP - 1}


def make_trainer(trainer_class, questions, failing, *overrides):
    """A trainer of some questions, with one success of q0 in its pool."""
    keys = ["trainer.v1.sampler.sync_refill_failed_groups=True", "data.train_batch_size=4"]
    keys += [f"actor_rollout_ref.rollout.n={K}", "trainer.rollout_poll_interval=0.05"]
    keys += ["trainer.experience_ratio=0.25"]
    keys += [f"trainer.v1.trainer_mode={trainer_class.verl_mode}", *overrides]
    trainer = object.__new__(trainer_class)
    trainer.config = job(*keys)
    trainer.experience = ExperienceConfig.from_mapping(trainer.config.trainer, K)
    messages = [{"role": "user", "content": "?"}]
    trainer.train_dataset = [
        {"question_id": f"q{i}", "raw_prompt": messages} for i in range(questions)
    ]
    trainer.row_of_question = {f"q{i}": i for i in range(questions)}
    stream = iter([f"q{i}" for i in range(questions)] * 9)
    trainer._next_question = lambda: (next(stream), False)
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.pool.observe(RolloutGroup("q0", K, (Trajectory([1], [-1.0], step=1),)))
    trainer.replay.mixing = True
    trainer.mix_collate = ExperienceMixCollateFn(trainer._row, K, collate_fn)
    trainer.global_steps, trainer.in_flight, trainer.waiting = STEP, InFlight(), []
    trainer.rehearsal = Rehearsal(K, trainer._row, None, None)
    use_group_filter(trainer.config)
    trainer.replay_buffer = trainer._build_replay_buffer()
    if isinstance(trainer.replay_buffer, GroupFilter):
        trainer.replay_buffer.follow(trainer.in_flight, threshold=0.5)
    trainer.agent_loop_manager = Rollouts(failing)
    return trainer


def make_ready(trainer):
    """Give a trainer what a step needs after its draw: whole rollouts, an actor, what scores,
    weighs and observes.
    """
    resolve(trainer.config)
    trainer.agent_loop_manager = WholeRollouts(trainer.agent_loop_manager.failing)
    trainer.tokenizer, trainer.actor_rollout_wg = AutoTokenizer.from_pretrained(BASE_MODEL), Model()
    trainer.loss_shares = LossShares.of_config(trainer.config)
    trainer.provenance = provenance.of_settings(trainer.config.reward.custom_reward_function)
    trainer.rewards = Rewards()
    trainer.so_far, trainer.first_response = StepMetrics(), FirstResponse(trainer.tokenizer)
    trainer.local_trigger_step, trainer.use_critic = 0, False


def sample(trainer, prompts=4):
    """The batch of so many prompts, as verl's step begins with it."""
    waited_for = prompts - len(trainer.waiting)
    batch, _ = trainer.replay_buffer.sample(
        global_steps=STEP, partition_id="train", batch_size=waited_for
    )
    batch.extra_info["temperature"] = trainer.config.actor_rollout_ref.rollout.temperature
    return batch


def pass_batch(trainer, batch, metrics):
    """From the batch that came back to its advantages."""
    for stage in (
        trainer._balance_batch,
        trainer._compute_old_log_prob,
        trainer._compute_advantage,
    ):
        batch = stage(batch, metrics)
    return batch
