"""ExGRPO on verl's V1 trainer: PPOTrainerSync with a pool of past successes. This file decides *when* things happen.

One step, by the methods below:

1. ``_next_train_batch``: replayed questions are drawn from the pool, the rest are fresh.
2. ``_balance_batch``: after generation, the candidates of the replayed questions are scored under the same weights
   that generated, and the best one of each question joins its group as a row.
3. ``_compute_old_log_prob``: the pool observes the fresh rows; replayed rows get their recorded log-probs, and each
   token is marked fresh or replayed for the loss. verl computes the advantages over the mixed groups.
4. ``_save_checkpoint`` / ``_load_checkpoint``: pool, generator and phase, written before verl's "latest" marker.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Any

from tensordict import TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from exgrpo import judged_by, loss_metrics
from exgrpo.experience.choice import ratio_metrics
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.experience.question_id import fingerprint, tokenizer_fingerprint
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import checkpoints, optimizer_states
from exgrpo.on_verl import queue_ops as ops
from exgrpo.on_verl.candidate_scoring import CandidateScorer
from exgrpo.on_verl.effects import Weighing
from exgrpo.on_verl.first_look import first_prompt, first_response
from exgrpo.on_verl.phase import FRESH, ON_POLICY, REPLAYED
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import rollout_groups
from exgrpo.preflight.train_files import read_question_ids
from exgrpo.saved import durable

logger = logging.getLogger(__name__)


@register_trainer("exgrpo")
class ExperienceMixPPOTrainer(PPOTrainerSync):
    """The trainer owns the replay object and decides when to call it; all other parts get values as arguments.

    With ``trainer.experience=False`` every method below falls back to verl's own: plain GRPO by the same program.
    """

    train_dataloader_it: Any  # verl's; it is not typed
    total_training_steps: int

    def _build_replay_buffer(self) -> ReplayBuffer:
        # verl treats any mode but "sync" as asynchronous; this method is the first to read it.
        self.trainer_mode = "sync"
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.config.trainer.rollout_poll_interval
        return buffer

    def _init_dataloader(self) -> None:
        """verl's data loaders; then replay, which needs the ids of the questions."""
        super()._init_dataloader()
        print(first_prompt(self.train_dataset, self.tokenizer), flush=True)
        self.response_shown = False
        rollout_n = self.config.actor_rollout_ref.rollout.n
        self.experience = ExperienceConfig.from_mapping(self.config.trainer, rollout_n)
        if not self.experience.experience:
            return
        if self.processor is not None:  # preflight checks this only if the model is a local folder
            raise ValueError("actor_rollout_ref.model.path: has a processor; a replayed trajectory is text only")
        questions = self.train_dataset.question_ids()
        self.row_of_question = {question: row for row, question in enumerate(questions)}
        self.mix_collate = ExperienceMixCollateFn(self._row, rollout_n, collate_fn)
        self.asked_at = -1  # the step that `asked` and `replayed_questions` describe
        self.asked = 0  # number of its prompts so far
        self.replayed_questions: dict[str, str] = {}  # question -> uid of its replayed group
        self.choice_metrics: dict[str, float] = {}
        self.replayed: dict[str, Trajectory] = {}  # uid -> the trajectory that joined its group
        self.replay_seconds = 0.0
        self.judge = judged_by.of_settings(self.config.reward.custom_reward_function)
        missing = self.experience.exp_missing_log_probs
        self.weighing = Weighing.of_config(self.config, self.experience.exp_is_correct, missing)
        self._open_experience()

    def _row(self, question: str) -> dict[str, Any]:
        return self.train_dataset[self.row_of_question[question]]

    # -- 1. draw prompts ------------------------------------------------------------------------------------------

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """rho * B replayed questions and the rest fresh; no question occurs twice, none is fetched and thrown away.

        A second call in a step replaces groups that failed (``trainer.v1.sampler.sync_refill_failed_groups``) with
        fresh questions that are not in the step yet.
        """
        size = num_prompts or self.config.data.train_batch_size
        if not self.experience.experience:
            return super()._next_train_batch(size)
        if self.asked_at != self.global_steps:
            self.asked_at, self.asked, self.replayed_questions = self.global_steps, 0, {}
        drawn = self.replay.draw(self.global_steps, size, self._next_question)
        self.mixed = drawn.mixed
        fresh = [self._row(question) for question in drawn.fresh]
        columns = self.mix_collate(fresh, drawn.replayed, self.global_steps, self.replay.rng, first=self.asked)
        self.asked += size
        marks = columns.pop("is_replayed")
        rows = zip(columns["uid"], columns["question_id"], marks, strict=True)
        self.replayed_questions |= {question: uid for uid, question, is_replayed in rows if is_replayed}
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _next_question(self) -> tuple[str, bool]:
        """The next question of verl's stateful loader, whose position is saved; whether it begins a new epoch."""
        if self.train_dataloader_it is None:  # as verl does next; a run may resume at the very end of an epoch
            self.train_dataloader_it = iter(self.train_dataloader)
        epoch = self.train_dataloader_it
        question = next(iter(self._fetch_one_gen_batch()["question_id"]))
        return question, self.train_dataloader_it is not epoch

    # -- 2. after generation --------------------------------------------------------------------------------------

    def _balance_batch(self, batch: Batch, metrics: dict, **kwargs: Any) -> Batch:
        """Complete each replayed group with one trajectory, while the actor still has the weights that generated."""
        if not self.response_shown:
            print(first_response(batch, self.tokenizer), flush=True)
            self.response_shown = True
        if not self.experience.experience:
            return super()._balance_batch(batch, metrics, **kwargs)
        started = time.perf_counter()
        batch = ops.in_order(batch)
        siblings = ops.first_siblings(batch, self.replayed_questions.values())
        questions = [question for question, uid in self.replayed_questions.items() if uid in siblings]
        choice = self.replay.choose(self.replay.candidates(questions), self._scorer(siblings))
        self.choice_metrics = choice.metrics(self.global_steps)
        chosen = choice.trajectories.items()
        self.replayed = {self.replayed_questions[question]: trajectory for question, trajectory in chosen}
        session = self.config.actor_rollout_ref.rollout.n - 1
        batch = ops.in_order(ops.inject(batch, siblings, self.replayed, session))
        self.replay_seconds = time.perf_counter() - started
        return super()._balance_batch(batch, metrics, **kwargs)

    def _scorer(self, siblings: dict[str, ops.Sibling]) -> CandidateScorer:
        rollout = self.config.actor_rollout_ref.rollout
        questions = self.replayed_questions.items()
        return CandidateScorer(
            prompts={question: siblings[uid].row["prompts"] for question, uid in questions if uid in siblings},
            compute_log_prob=self.actor_rollout_wg.compute_log_prob,
            ranks=self._data_parallel_size(),
            micro_batch=1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu,
            temperature=rollout.temperature,
        )

    def _data_parallel_size(self) -> int:
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return max(workers._dispatch_info["actor"]) + 1

    # -- 3. log-probs ---------------------------------------------------------------------------------------------

    def _compute_old_log_prob(self, batch: Batch, metrics: dict) -> Batch:
        """verl's pass over the batch; then the pool observes fresh rows and replayed rows get recorded log-probs."""
        batch = super()._compute_old_log_prob(batch, metrics)
        actor, length = self.config.actor_rollout_ref.actor, self.config.data.max_response_length
        if actor.loss_agg_mode == "seq-mean-token-sum-norm":  # undo verl's division of the entropy by the loss's scale
            metrics["actor/entropy"] *= (actor.loss_scale_factor or length) / length
        if not self.experience.experience:
            return batch
        started = time.perf_counter()
        compare = bool(self.replayed) and self.config.actor_rollout_ref.rollout.calculate_log_probs
        rows = ops.scored_rows(batch, rollout_log_probs=compare, rules=self.judge.grader != "strict")
        metrics.update(self._observe(batch, rows))
        if compare:
            metrics.update(ops.fresh_debug_metrics(batch, rows))
        if self.experience.exp_is_correct:
            ops.put_recorded_log_probs(batch, self.replayed, self.experience.exp_missing_log_probs)
        batch = ops.put_phase(batch, rows, FRESH if self.mixed else ON_POLICY, REPLAYED)
        metrics["experience/seconds"] = self.replay_seconds + time.perf_counter() - started
        return batch

    def _observe(self, batch: Batch, rows: TensorDict) -> dict[str, float]:
        """Let the pool observe the step's fresh rows; returns all metrics of replay."""
        threshold, vocabulary = self.experience.exp_success_threshold, len(self.tokenizer)
        fresh = ops.fresh_rows(batch, rows)
        groups = rollout_groups(fresh, self.replayed, self.global_steps, vocabulary, threshold, self.judge)
        noted = self.choice_metrics | ratio_metrics(ops.log_ratios(batch, rows, self.replayed))
        by_uid = self.weighing.effects(self.replayed, ops.current_log_probs(batch, rows, self.replayed), fresh)
        effects = {name: by_uid[uid] for name, uid in self.replayed_questions.items() if uid in by_uid}
        observed = self.replay.observe(self.global_steps, groups, noted, effects)
        return {f"experience/{name}": value for name, value in (noted | observed).items()}

    def _update_actor(self, batch: Batch, metrics: dict) -> Batch:
        """verl's update; the sums it reports are converted to means and shares of the whole step."""
        batch = super()._update_actor(batch, metrics)
        loss_metrics.finish(metrics)
        return batch

    # -- 4. checkpoints -------------------------------------------------------------------------------------------

    def _open_experience(self) -> None:
        """Replay from the checkpoint to resume from, if there is one; a wrong checkpoint fails before workers start."""
        trainer = self.config.trainer
        files = self.train_dataset.data_files  # verl's local copies; the same ids as exgrpo.preflight reads
        self.identity = {
            "data_fingerprint": fingerprint(read_question_ids(files, self.config.data.prompt_key)),
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "questions": len(self.row_of_question),  # after verl's length filter
        }
        root = Path(trainer.default_local_dir)
        root.mkdir(parents=True, exist_ok=True)
        self.writer = contextlib.ExitStack()  # keeps the folder locked as long as this process lives
        self.writer.enter_context(durable.exclusive_on_all_hosts(root, patience_s=30))  # a killed run may be ending
        self.rotation = checkpoints.Rotation(root, trainer.get("max_actor_ckpt_to_keep"))
        check = optimizer_states.check_if_loaded(self.config.actor_rollout_ref.actor.checkpoint.load_contents)
        questions = self.row_of_question.keys()
        opened = checkpoints.open_experience(trainer, self.experience, self.identity, questions, check)
        self.resumed_step, self.replay, self.pool_folder = opened
        dropped = self.replay.pool.keep_only(self.row_of_question, self.config.data.max_response_length)
        if dropped:
            logger.warning(
                "%d trajectories are dropped: their question is not in the data, or they are too long", dropped
            )

    def _load_checkpoint(self) -> None:
        """verl's checkpoint; it must be of the step whose pool was loaded."""
        super()._load_checkpoint()
        if self.experience.experience and self.global_steps != self.resumed_step:
            raise RuntimeError(f"weights of step {self.global_steps} with the pool of step {self.resumed_step}")

    def _save_checkpoint(self) -> None:
        """Pool and state first: verl writes its "latest" marker last, so a marked checkpoint has both."""
        root = Path(self.config.trainer.default_local_dir)
        folder = checkpoints.step_folder(root, self.global_steps)
        optimizer_states.expect_new(folder)
        if self.experience.experience:
            pool, state = self.replay.pool, self.replay.state()
            self.pool_folder.save(pool, folder / checkpoints.POOL, self.global_steps, self.identity, state)
            self.rotation.make_room(self.global_steps)
        super()._save_checkpoint()
        if keep := self.config.trainer.max_optim_to_keep:
            optimizer_states.delete_old(root, keep, optimizer_states.delete_on_all_nodes)

    def on_step_end(self) -> None:
        """verl's weight update; if all questions are retired, the run ends with this step and saves it."""
        if self.experience.experience and self.replay.exhausted and self.global_steps < self.total_training_steps:
            logger.warning("step %d: every question of the data is retired, training ends here", self.global_steps)
            if self.config.trainer.save_freq > 0 and self.global_steps % self.config.trainer.save_freq:
                self._save_checkpoint()
            self.total_training_steps = self.global_steps
        super().on_step_end()
