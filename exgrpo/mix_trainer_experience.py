"""ExGRPO on verl's V1 trainers, with a pool of past successes. Here is *when* things happen.

`ExperienceMixin` is the same for all of verl's modes; the trainers at the end of the file say which
mode they extend. The file has the order of a step, verl's `_step_once`, each part after the methods
in which it happens:

1. Ask (`_next_train_batch`): replayed questions are drawn from the pool, the rest are fresh. In an
   asynchronous mode that is some steps earlier; until a group comes back, its question is not drawn
   again.
2. Complete (`_balance_batch`): the candidates of the replayed questions are scored under the
   weights that are about to be trained; the best one of each question joins its group as a row.
   Past groups join as a whole.
3. Correct (`_compute_old_log_prob`): after verl's pass each token is marked fresh or replayed for
   the loss, and replayed rows get their recorded log-probs. verl then computes the advantages over
   the mixed groups.
4. Observe (in the same): the pool takes in the fresh rows, before verl overwrites what it reads.
5. Save (`_save_checkpoint`): pool, generator and phase, written before verl's "latest" marker.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from exgrpo import loss_metrics, provenance
from exgrpo.console import phase
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.prefixes import column
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.rl_dataset_with_experience import with_ids
from exgrpo.on_verl import (
    checkpoints,
    complete,
    correct,
    observe,
    old_checkpoints,
    queue,
    rescue,
    seals,
    stored_groups,
)
from exgrpo.on_verl.complete import CandidateScorer
from exgrpo.on_verl.correct import Past
from exgrpo.on_verl.finished_groups import KeepsFinishedGroups
from exgrpo.on_verl.group_filter import GroupFilter
from exgrpo.on_verl.in_flight import InFlight, Prompt
from exgrpo.on_verl.loss_shares import LossShares
from exgrpo.on_verl.metrics import StepMetrics, debug_metrics, staleness, with_averages
from exgrpo.on_verl.queue import Batch, split_key
from exgrpo.on_verl.rehearsal import Rehearsal
from exgrpo.on_verl.sample_prints import FirstResponse, first_prompt
from exgrpo.on_verl.saved_run import SavedRun
from exgrpo.on_verl.stoppable import StoppableTrainer
from exgrpo.on_verl.watch import WatchedTrainer
from exgrpo.on_verl.watched_rewards import Rewards

logger = logging.getLogger(__name__)
PARTITION = "train"  # verl's, of the queue


class ExperienceMixin(WatchedTrainer, StoppableTrainer):
    """The trainer owns the replay object and decides when to call it; other parts get values.

    With ``trainer.experience=False`` every method is verl's own: plain GRPO by the same program.

    Attributes:
        experience: the settings of replay.
        row_of_question: question -> its row of the data set.
        replay: the pool and its generator; what draws, chooses and takes in.
        in_flight: the prompts that were submitted and have not been trained on.
        waiting: past groups of the draw that are not in the batch yet (``trainer.exp_unit=group``).
        rehearsal: what waits likewise with ``exp_place=beside``.
        replayed: what the batch replays, one record a group.
        mixed: whether mixing had begun when the batch was drawn.
        so_far: what the updates of the step have brought.
        saved_run: the checkpoint that it was resumed from, and the next; no step reads it.
    """

    verl_mode: str
    experience: ExperienceConfig
    row_of_question: dict[str, int]
    # verl's; none of these five is typed
    total_training_steps: int
    local_trigger_step: int
    parameter_sync_step: int
    global_steps: int
    train_dataloader_it: Any

    # -- start -----------------------------------------------------------------------------------

    @property
    def asynchronous(self) -> bool:
        return self.verl_mode != "sync"

    @property
    def with_replay(self) -> bool:
        return self.experience.experience

    @property
    def rollout(self) -> DictConfig:
        return self.config.actor_rollout_ref.rollout

    def init(self) -> None:
        """verl's: everything below, then the workers with the model, and the engine."""
        with phase("loading the model and starting the engine"):
            super().init()

    def _build_replay_buffer(self) -> ReplayBuffer:
        keys = self.config.trainer
        # verl's own configuration has none
        if "experience" not in keys:
            raise ValueError(
                "trainer.experience: missing; verl's own command needs --config-path "
                "pkg://exgrpo.config --config-name exgrpo_trainer with exgrpo's trainers"
            )
        # verl treats any mode but "sync" as asynchronous; this method is the first to read it.
        self.trainer_mode = self.verl_mode
        # verl has read it below our trainer's name
        settings = keys.v1.get(self.verl_mode) or {}
        self.parameter_sync_step = settings.get("parameter_sync_step", 1)
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = keys.rollout_poll_interval
        return buffer

    def _init_dataloader(self) -> None:
        """verl's data loaders; then replay, which needs the ids of the questions."""
        super()._init_dataloader()
        data, tokenizer = self.train_dataset, self.tokenizer
        print(first_prompt(data, tokenizer), flush=True)
        self.first_response, self.rewards = FirstResponse(tokenizer), Rewards()
        keys, n = self.config.trainer, self.rollout.n
        self.experience = ExperienceConfig.from_mapping(keys, n)
        self.waiting: list[StoredGroup] = []
        self.rehearsal = Rehearsal(n, self._row, tokenizer, data)
        self.writer = checkpoints.only_writer(Path(keys.default_local_dir))
        if self.with_replay:
            self._begin_replay()

    def _begin_replay(self) -> None:
        """Everything that replay needs, from a checkpoint if there is one."""
        # preflight checks this only if the model is a local folder
        if self.processor is not None:
            raise ValueError(
                "actor_rollout_ref.model.path: has a processor; a replayed trajectory is text only"
            )
        ids = with_ids(self.train_dataset).question_ids()
        self.row_of_question = {name: row for row, name in enumerate(ids)}
        self.mix_collate = ExperienceMixCollateFn(self._row, self.rollout.n, collate_fn)
        self.in_flight = InFlight()
        self.mixed = False
        self.replayed: list[ReplayedGroup] = []
        self.so_far = StepMetrics()
        if isinstance(self.replay_buffer, GroupFilter):
            self.replay_buffer.follow(self.in_flight, self.experience.exp_success_threshold)
        self.provenance = provenance.of_settings(self.config.reward.custom_reward_function)
        self.loss_shares = LossShares.of_config(self.config)
        self.saved_run, self.replay = SavedRun.open(
            self.config,
            self.experience,
            self.train_dataset.data_files,
            self.tokenizer,
            self.row_of_question.keys(),
        )

    def _validate(self) -> dict[str, float]:
        with phase("validating"):
            return super()._validate()

    def on_step_begin(self) -> None:
        self.first_response.wait()
        super().on_step_begin()

    # -- ask -------------------------------------------------------------------------------------

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """With replay the prompts that `_ask` draws; else verl's next ones."""
        size = num_prompts or self.config.data.train_batch_size
        if not self.with_replay:
            return super()._next_train_batch(size)
        return self._ask(size, ahead=num_prompts is not None)

    def _ask(self, size: int, ahead: bool) -> TensorDict:
        """Draw a batch's questions and submit their prompts: a share rho replayed, the rest fresh.

        With ``trainer.exp_unit=group`` past groups and (1 - rho) * size fresh questions. The groups
        need no generation: they are of the step that begins; prompts ahead of it are all fresh.

        In the synchronous mode a second call in a step replaces groups that failed
        (``trainer.v1.sampler.sync_refill_failed_groups``) with fresh questions that are not in the
        step yet; in an asynchronous mode it draws anew, what is not in flight.
        """
        step, replay = self.global_steps, self.replay
        elsewhere = None
        if self.asynchronous:
            self._forget_evicted()
            elsewhere = [*self.in_flight.questions, *(each.question for each in self.waiting)]
        drawn = replay.draw(step, size, self._next_question, elsewhere, ahead)
        self.waiting += drawn.stored
        self.rehearsal.waiting |= drawn.rehearsed
        first = self.in_flight.first_position(step, len(drawn.replayed) + len(drawn.fresh))
        fresh = [self._row(question) for question in drawn.fresh]
        columns = self.mix_collate(fresh, drawn.replayed, step, replay.rng, first)
        self.in_flight.add_drawn(columns, drawn.mixed)
        if self.experience.exp_unit == "prefix":
            columns["prefix"] = column(columns["question_id"], drawn.prefixes)
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        return batch

    def _forget_evicted(self) -> None:
        """Free the questions of prompts that verl has given up as too old."""
        self.in_flight.keep_only(queue.prompts(PARTITION))

    def _row(self, question: str) -> dict[str, Any]:
        return self.train_dataset[self.row_of_question[question]]

    def _next_question(self) -> tuple[str, bool]:
        """The next question of verl's loader, and whether an epoch begins with it."""
        # as verl does; a run may resume at an epoch's end
        if self.train_dataloader_it is None:
            self.train_dataloader_it = iter(self.train_dataloader)
        epoch = self.train_dataloader_it
        fetched = self._fetch_one_gen_batch()
        question = next(iter(fetched["question_id"]))
        return question, self.train_dataloader_it is not epoch

    # -- complete --------------------------------------------------------------------------------

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> Batch:
        """verl's update; past groups take some places, so it waits for fewer finished prompts."""
        return super()._step_once(metrics, timing_raw, sample_batch_size - self.past_groups_now)

    @property
    def past_groups_now(self) -> int:
        """How many past groups enter the next update: the step's are dealt out evenly."""
        updates_left = self.parameter_sync_step - self.local_trigger_step
        return math.ceil((len(self.waiting) + self.rehearsal.places) / updates_left)

    def _balance_batch(self, batch: Batch, metrics: dict, **kwargs: Any) -> Batch:
        """Add what is replayed, then balance as verl does; the actor has not been updated yet."""
        batch = self.rewards.judged_alone(batch, metrics)
        self.first_response.show(batch)
        if self.with_replay:
            with self.so_far.timed():
                batch = self._complete(batch)
        return super()._balance_batch(batch, metrics, **kwargs)

    def _complete(self, batch: Batch) -> Batch:
        """Add one past success to the fresh rollouts of each replayed question; and past groups."""
        complete.refuse_several_outputs(batch.keys)
        batch = queue.in_order(batch)
        arrived = self._arrived(batch)
        questions = complete.to_complete(arrived, self.replay.pool)
        questions |= rescue.questions(batch, arrived, self.replay)
        siblings = complete.first_siblings(batch, questions)
        prompts = {name: each.row["prompts"] for name, each in siblings.items()}
        scorer = self._scorer(prompts)
        choice = self.replay.choose(self.replay.candidates(siblings), scorer)
        for group in choice.groups:
            group.uid = siblings[group.question].uid
        self.so_far.add(batch, choice)
        last, groups = self.rollout.n - 1, choice.groups  # the session of the row that joins
        batch = rescue.make_room(batch, groups, last)
        batch = complete.inject(batch, groups, siblings, last)
        due = self.past_groups_now
        if self.experience.exp_place == "dead":
            batch, past = self._replace_dead_groups(batch)
        elif self.experience.rehearses:
            choice = self.rehearsal.choose(self.replay, due, self._scorer)
            self.so_far.choices.append(choice)
            past = choice.groups
        else:
            entering, self.waiting = self.waiting[:due], self.waiting[due:]
            past = self._admit(entering)
        # past groups may join prompts that were drawn before mixing began
        self.mixed = due > 0 or bool(past) or any(each.mixed for each in arrived.values())
        self.replayed = [*groups, *past]
        batch = queue.in_order(batch)
        if self.experience.rehearses:
            return self.rehearsal.join(batch, past)
        return stored_groups.join(batch, past, self._row)

    def _arrived(self, batch: Batch) -> dict[str, Prompt]:
        """uid -> prompt of each group in the batch; they are no longer in flight."""
        uids = {split_key(key)[0] for key in batch.keys}
        arrived = self.in_flight.take(uids)
        # what is left of a synchronous step are groups that failed
        if not self.asynchronous:
            self.in_flight.keep_only(())
        return arrived

    def _replace_dead_groups(self, batch: Batch) -> tuple[Batch, list[ReplayedGroup]]:
        """The batch without fresh groups of equal rewards, and the past groups in their place.

        The pool learns of the fresh ones, whose rows are dropped, from their rewards.
        """
        # a step may have several updates, and prompts that wait for the next
        elsewhere = {*self.in_flight.questions, *self.so_far.questions}
        what = self.replay, elsewhere, self._admit
        batch, past, dead = stored_groups.in_place_of_dead(batch, *what)
        self.so_far.groups += dead
        return batch, past

    def _admit(self, entering: Sequence[StoredGroup]) -> list[ReplayedGroup]:
        """These past groups, but for those that the policy has left behind."""
        prompts = stored_groups.prompts_of([*self.replay.groups, *entering])
        out = [*self.in_flight.questions, *(group.question for group in self.waiting)]
        return self.replay.admit(entering, self._scorer(prompts), {*out, *self.so_far.questions})

    def _scorer(self, prompts: Mapping[str, torch.Tensor]) -> CandidateScorer:
        """The actor as a scorer of trajectories; `prompts`: question -> tokens, int64 [P]."""
        return CandidateScorer.of(prompts, self.actor_rollout_wg, self.rollout)

    # -- correct ---------------------------------------------------------------------------------

    def _compute_old_log_prob(self, batch: Batch, metrics: dict) -> Batch:
        """verl's log-prob pass; then measure the drift from the authors of the replayed rows."""
        batch = super()._compute_old_log_prob(batch, metrics)
        loss_metrics.unscale_entropy(metrics, self.config)
        if self.with_replay:
            with self.so_far.timed():
                metrics |= self._correct_and_observe(batch)
            if self.is_last_update:
                step, self.so_far = self.so_far, StepMetrics()
                metrics |= step.work()
        return batch

    def _correct_and_observe(self, batch: Batch) -> dict[str, float]:
        """Give the loss marks and recorded log-probs; read for the pool what verl overwrites."""
        past = {key: each for group in self.replayed for key, each in group.rows.items()}
        keys, config = self.experience, self.config
        correct.number(batch, self.global_steps, config.actor_rollout_ref.actor.policy_loss)
        correct.mark(batch, self.mixed)
        all_known = correct.put_recorded(batch, past, keys)
        if correct.corrects(config) or not all_known:
            correct.exempt_replayed_rows(batch, past)
        return self._observe(batch, past)

    def _compute_advantage(self, batch: Batch, metrics: dict) -> Batch:
        """verl's advantages; weights of rollout correction are combined with the phase."""
        batch = super()._compute_advantage(batch, metrics)
        if self.with_replay and correct.corrects(self.config):
            batch = correct.add_correction(batch, self.mixed)
        return batch

    def _update_actor(self, batch: Batch, metrics: dict) -> Batch:
        """verl's update; the sums it reports become means and shares of the whole step."""
        batch = super()._update_actor(batch, metrics)
        loss_metrics.finish(metrics)
        return batch

    # -- observe ---------------------------------------------------------------------------------

    @property
    def is_last_update(self) -> bool:
        """Whether the step has no further update; only separate_async has several."""
        return self.local_trigger_step + 1 == self.parameter_sync_step

    def _observe(self, batch: Batch, past: Past) -> dict[str, float]:
        """Note the fresh rows of an update; once those of all are here, the pool takes them in."""
        step, so_far, keys = self.global_steps, self.so_far, self.experience
        compare = bool(past) and self.rollout.calculate_log_probs
        rules = self.provenance.grader != "strict"
        rows = observe.scored_rows(batch, compare, rules, keys.keeps_groups)
        fresh = observe.fresh_rows(batch, rows)
        current = correct.current_log_probs(batch, past)
        self.loss_shares.fill(self.replayed, current, fresh)
        so_far.groups += observe.rollout_groups(
            fresh,
            self.replayed,
            step,
            vocab_size=len(self.tokenizer),
            config=keys,
            judged_by=self.provenance,
        )
        so_far.replayed += self.replayed
        so_far.current |= current
        measured = staleness(batch, step)
        if self.is_last_update:
            measured |= self._fill_pool()
        ours = {f"experience/{name}": value for name, value in measured.items()}
        return debug_metrics(rows) | ours if compare else ours

    def _fill_pool(self) -> dict[str, float]:
        """Let the pool take in the step's fresh rows; its metrics and those of what is replayed."""
        step, so_far = self.global_steps, self.so_far
        if isinstance(self.replay_buffer, GroupFilter):
            so_far.groups += self.replay_buffer.take()
        noted = so_far.metrics(step)
        if self.experience.whole_groups:
            noted |= stored_groups.metrics(so_far.replayed, so_far.current, step)
        measured = self.replay.observe(step, so_far.groups, noted)
        return noted | measured

    def _compute_metrics(self, batch: Batch, metrics: dict, *args: Any, **kwargs: Any) -> None:
        """verl's metrics of a step."""
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self.rewards.look(self.global_steps, metrics)

    def _val_metrics_update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """verl's metrics of a validation; with averages over data sources, as released."""
        metrics = super()._val_metrics_update(*args, **kwargs)
        return with_averages(metrics)

    # -- save ------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """Save the pool, then verl's part and marker, so that a marked step has both; seal it."""
        keys, step = self.config.trainer, self.global_steps
        root = Path(keys.default_local_dir)
        folder = checkpoints.step_folder(root, step)
        checkpoints.expect_new(folder)
        gone, run = [], None
        if self.with_replay:
            gone = self._save_pool(folder)
            run = self.saved_run.run
        super()._save_checkpoint()
        seals.write(folder, step, run)
        if gone:
            old_checkpoints.on_all_nodes(old_checkpoints.delete_weights, str(root), gone)
        if keep := keys.max_optim_to_keep:
            old_checkpoints.delete_states(root, keep)

    def _save_pool(self, folder: Path) -> list[int]:
        """Save pool and prompts in flight; returns the steps that verl then deletes."""
        prompts = None
        if self.asynchronous:
            self._forget_evicted()
            prompts = self.in_flight
        return self.saved_run.save(self.replay, folder, self.global_steps, prompts)

    def _load_checkpoint(self) -> None:
        """verl's checkpoint; it must be of the step whose pool was loaded."""
        super()._load_checkpoint()
        if not self.with_replay:
            return
        self.saved_run.expect_weights_of(self.global_steps)
        self._restore_prompts()
        self._end_if_exhausted()

    def _restore_prompts(self) -> None:
        """The prompts in flight when it was saved; verl has restored their groups in the queue."""
        there = queue.prompts(PARTITION) if self.asynchronous else None
        self.saved_run.restore(self.in_flight, there)

    def on_step_end(self) -> None:
        """verl's weight update; if all questions are retired, the run ends and saves this step."""
        if self.with_replay and self._end_if_exhausted():
            save_freq = self.config.trainer.save_freq
            if save_freq > 0 and self.global_steps % save_freq:
                self._save_checkpoint()
        super().on_step_end()

    def _end_if_exhausted(self) -> bool:
        """If all questions are retired, make this step the last; whether it is."""
        step = self.global_steps
        ends = self.replay.exhausted and step < self.total_training_steps
        if ends:
            logger.warning(
                "step %d: every question of the data is retired, training ends here", step
            )
            self.total_training_steps = step
        return ends


@register_trainer("exgrpo")
class ExperienceMixPPOTrainer(KeepsFinishedGroups, ExperienceMixin, PPOTrainerSync):
    """Generate, train, synchronize the weights: the mode of the paper."""

    verl_mode = "sync"


@register_trainer("exgrpo_colocate_async")
class ExperienceMixPPOTrainerColocateAsync(ExperienceMixin, PPOTrainerColocateAsync):
    """Prompts are submitted ahead; an update interrupts rollouts, which go on under new weights."""

    verl_mode = "colocate_async"


@register_trainer("exgrpo_separate_async")
class ExperienceMixPPOTrainerSeparateAsync(ExperienceMixin, PPOTrainerSeparateAsync):
    """Rollout servers of their own generate while the actor trains; a step has several updates."""

    verl_mode = "separate_async"
