"""ExGRPO on verl's V1 trainers, with a pool of past successes. This file decides *when* things happen.

`ExperienceMixin` is the same for all of verl's modes; the trainers at the end of the file say which mode they extend.
One step, by the methods below:

1. ``_next_train_batch`` (exgrpo.mix_trainer_draws): replayed questions are drawn from the pool, the rest are fresh. In
   an asynchronous mode that is some steps earlier; until a group comes back, its question is not drawn again.
2. ``_balance_batch``: the candidates of the replayed questions are scored under the weights that generated; the best
   one of each question joins its group as a row. Past groups join as a whole.
3. ``_compute_old_log_prob``: verl's pass, while each token is marked fresh or replayed for the loss; then replayed rows
   get their recorded log-probs. verl computes the advantages over the mixed groups.
4. ``_step_once`` (exgrpo.mix_trainer_observation): beside verl's update the pool observes the fresh rows; the step ends
   when both are done.
5. ``_save_checkpoint`` / ``_load_checkpoint``: pool, generator and phase, written before verl's "latest" marker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from exgrpo import judged_by, loss_metrics
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.experience.trajectory import Trajectory
from exgrpo.mix_trainer_observation import ObservedRollouts
from exgrpo.on_verl import queue_ops as ops
from exgrpo.on_verl import rescue
from exgrpo.on_verl.average_score import with_averages
from exgrpo.on_verl.candidate_scoring import CandidateScorer
from exgrpo.on_verl.effects import Weighing
from exgrpo.on_verl.first_look import first_prompt, first_response
from exgrpo.on_verl.group_filter import GroupFilter
from exgrpo.on_verl.phase import codes, corrects
from exgrpo.on_verl.prompts_out import Prompt, PromptsOut
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import refuse_several_outputs, split_key
from exgrpo.on_verl.step_so_far import StepSoFar
from exgrpo.on_verl.stored_groups import StoredGroups


class ExperienceMixin(ObservedRollouts):
    """The trainer owns the replay object and decides when to call it; all other parts get values as arguments.

    With ``trainer.experience=False`` every method below falls back to verl's own: plain GRPO by the same program.
    """

    def _build_replay_buffer(self) -> ReplayBuffer:
        # verl treats any mode but "sync" as asynchronous; this method is the first to read it.
        self.trainer_mode = self.verl_mode
        settings = self.config.trainer.v1.get(self.verl_mode) or {}
        self.parameter_sync_step = settings.get("parameter_sync_step", 1)  # verl has looked below our trainer's name
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.config.trainer.rollout_poll_interval
        return buffer

    def _init_dataloader(self) -> None:
        """verl's data loaders; then replay, which needs the ids of the questions."""
        super()._init_dataloader()
        print(first_prompt(self.train_dataset, self.tokenizer), flush=True)
        self.response_shown = False
        self.stored = StoredGroups()
        rollout_n = self.config.actor_rollout_ref.rollout.n
        self.experience = ExperienceConfig.from_mapping(self.config.trainer, rollout_n)
        if not self.experience.experience:
            return
        if self.processor is not None:  # preflight checks this only if the model is a local folder
            raise ValueError("actor_rollout_ref.model.path: has a processor; a replayed trajectory is text only")
        questions = self.train_dataset.question_ids()
        self.row_of_question = {question: row for row, question in enumerate(questions)}
        self.mix_collate = ExperienceMixCollateFn(self._row, rollout_n, collate_fn)
        self.prompts = PromptsOut()
        self.mixed = False  # whether mixing had begun when the batch was drawn
        self.replayed_uids: dict[str, str] = {}  # replayed question of the batch -> uid of its group
        self.so_far = StepSoFar()
        self.replayed: dict[str, Trajectory] = {}  # uid -> the trajectory that joined its group
        self.rescued: dict[str, float] = {}  # uid -> reward of the failure in whose place its replayed trajectory is
        self.group_filter = None
        if self.config.algorithm.filter_groups.enable:
            threshold = self.experience.exp_success_threshold
            self.group_filter = GroupFilter(self.replay_buffer, self.prompts, threshold)
        self.beside = ThreadPoolExecutor(1, thread_name_prefix="exgrpo-beside")  # what no pass or update waits for
        self.judge = judged_by.of_settings(self.config.reward.custom_reward_function)
        missing = self.experience.exp_missing_log_probs
        self.weighing = Weighing.of_config(self.config, self.experience.exp_is_correct, missing)
        self._open_experience()

    # -- after generation ----------------------------------------------------------------------------------------

    def _balance_batch(self, batch: Batch, metrics: dict, **kwargs: Any) -> Batch:
        """Complete each replayed group with one trajectory, while the actor still has the weights that generated."""
        if not self.response_shown:
            print(first_response(batch, self.tokenizer), flush=True)
            self.response_shown = True
        if not self.experience.experience:
            return super()._balance_batch(batch, metrics, **kwargs)
        started = time.perf_counter()
        refuse_several_outputs(batch.keys)
        batch = ops.in_order(batch)
        taken = self.prompts.take({split_key(key)[0] for key in batch.keys})
        if not self.asynchronous:
            self.prompts.keep_only(())  # groups that failed
        self.mixed = any(prompt.mixed for prompt in taken.values())
        asked = {uid: prompt.question for uid, prompt in taken.items() if prompt.is_replayed}
        asked |= self._failed(batch, taken)
        siblings = ops.first_siblings(batch, asked)
        # a question may have left the pool since it was drawn: its group stays one row short
        uid_of = {question: uid for uid, question in asked.items() if uid in siblings and question in self.replay.pool}
        self.replayed_uids = uid_of
        prompts = {question: siblings[uid].row["prompts"] for question, uid in uid_of.items()}
        rollout = self.config.actor_rollout_ref.rollout
        scorer = CandidateScorer.of(prompts, self.actor_rollout_wg, rollout)
        choice = self.replay.choose(self.replay.candidates(uid_of), scorer)
        self.so_far.choices.append(choice)
        self.replayed = {uid_of[question]: trajectory for question, trajectory in choice.trajectories.items()}
        session = rollout.n - 1
        self.so_far.generated_tokens += sum(tag["response_len"] for tag in batch.tags)
        fresh = [uid for uid in self.replayed if not taken[uid].is_replayed]
        batch, self.rescued = rescue.make_room(batch, fresh, session)
        batch = ops.in_order(ops.inject(batch, siblings, self.replayed, session))
        batch = self._with_stored_groups(batch)
        self.so_far.seconds += time.perf_counter() - started
        return super()._balance_batch(batch, metrics, **kwargs)

    def _failed(self, batch: Batch, taken: Mapping[str, Prompt]) -> dict[str, str]:
        """uid -> fresh question whose rollouts all failed and that a stored success may rescue."""
        if not self.experience.exp_rescue:
            return {}
        fresh = {uid for uid, prompt in taken.items() if not prompt.is_replayed}
        uid_of = {
            taken[uid].question: uid for uid in rescue.failed(batch, fresh, self.experience.exp_success_threshold)
        }
        return {uid_of[question]: question for question in self.replay.rescuable(uid_of)}

    def _with_stored_groups(self, batch: Batch) -> Batch:
        """The batch with the past groups of the draw, but for those that the policy has drifted away from."""
        scorer = CandidateScorer.of(self.stored.prompts, self.actor_rollout_wg, self.config.actor_rollout_ref.rollout)
        return self.stored.join(batch, self.replay.admit(self.stored.drawn, scorer), self._row)

    # -- log-probs ---------------------------------------------------------------------------------------------------

    def _compute_old_log_prob(self, batch: Batch, metrics: dict) -> Batch:
        """verl's pass over the batch, beside which its tokens are marked; then replayed rows get recorded log-probs."""
        replays = self.experience.experience
        marking = self.beside.submit(ops.mark, batch, codes(self.mixed)) if replays else None
        batch = super()._compute_old_log_prob(batch, metrics)
        loss_metrics.unscale_entropy(metrics, self.config)
        if marking is None:
            return batch
        started = time.perf_counter()
        marking.result()
        past = self.replayed | self.stored.rows
        self.observing = self.beside.submit(self._observe, batch, past)
        ops.put_recorded(batch, past, self.experience.exp_missing_log_probs if self.experience.exp_is_correct else None)
        recorded = self.experience.exp_is_correct and all(each.has_log_probs for each in past.values())
        if corrects(self.config.algorithm.rollout_correction) or not recorded:
            ops.exempt_replayed_rows(batch, past)
        self.so_far.seconds += time.perf_counter() - started
        return batch

    def _compute_ref_log_prob(self, batch: Batch, metrics: dict) -> Batch:
        """verl's; the reference's pass overwrites the actor's log-probs, which the pool reads."""
        if self.experience.experience:
            self._await_observation()
        return super()._compute_ref_log_prob(batch, metrics)

    def _compute_advantage(self, batch: Batch, metrics: dict) -> Batch:
        """verl's; rollout correction overwrites the masks, which the pool reads, and with its weights the phase.

        Phase and weights are written again, in one.
        """
        if not self.experience.experience or not corrects(self.config.algorithm.rollout_correction):
            return super()._compute_advantage(batch, metrics)
        self._await_observation()
        return ops.add_correction(super()._compute_advantage(batch, metrics), codes(self.mixed))

    def _update_actor(self, batch: Batch, metrics: dict) -> Batch:
        """verl's update; the sums it reports are converted to means and shares of the whole step."""
        batch = super()._update_actor(batch, metrics)
        loss_metrics.finish(metrics)
        return batch

    def _val_metrics_update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """verl's metrics of a validation; with averages over data sources, as the release has."""
        return with_averages(super()._val_metrics_update(*args, **kwargs))


@register_trainer("exgrpo")
class ExperienceMixPPOTrainer(ExperienceMixin, PPOTrainerSync):
    """Generate, train, synchronize the weights: the mode of the paper."""

    verl_mode = "sync"


@register_trainer("exgrpo_colocate_async")
class ExperienceMixPPOTrainerColocateAsync(ExperienceMixin, PPOTrainerColocateAsync):
    """Prompts are submitted ahead; unfinished rollouts are interrupted for the update and go on under new weights."""

    verl_mode = "colocate_async"


@register_trainer("exgrpo_separate_async")
class ExperienceMixPPOTrainerSeparateAsync(ExperienceMixin, PPOTrainerSeparateAsync):
    """Rollout servers of their own generate while the actor trains; a step has several updates."""

    verl_mode = "separate_async"
