"""ExGRPO on verl's V1 trainers, with a pool of past successes. Here is *when* things happen.

`ExperienceMixin` is the same for all of verl's modes; the trainers at the end of the file say which
mode they extend. The file has the order of a step:

1. Ask: replayed questions are drawn from the pool, the rest are fresh. In an asynchronous mode that
   is some steps earlier; until a group comes back, its question is not drawn again.
2. Complete: the candidates of the replayed questions are scored under the weights that generated;
   the best one of each question joins its group as a row. Past groups join as a whole.
3. Correct: after verl's log-prob pass each token is marked fresh or replayed for the loss, and
   replayed rows get their recorded log-probs. verl computes the advantages over the mixed groups.
4. Observe: the pool takes in the fresh rows.
5. Save: pool, generator and phase, written before verl's "latest" marker.

Each method that is a hook of verl calls one method of ours, or none.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
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
from exgrpo.experience.question_id import fingerprint, tokenizer_fingerprint
from exgrpo.experience.replay_log import ReplayedGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import (
    checkpoints,
    complete,
    correct,
    nodes,
    observe,
    optimizer_states,
    queue,
    rescue,
    seals,
    stored_groups,
)
from exgrpo.on_verl.complete import CandidateScorer
from exgrpo.on_verl.correct import LossShares
from exgrpo.on_verl.group_filter import GroupFilter
from exgrpo.on_verl.in_flight import InFlight, Prompt
from exgrpo.on_verl.metrics import StepMetrics, debug_metrics, staleness, with_averages
from exgrpo.on_verl.queue import Batch, split_key
from exgrpo.on_verl.sample_prints import first_prompt, first_response
from exgrpo.preflight.data_files import read_question_ids
from exgrpo.saved import durable

logger = logging.getLogger(__name__)
PARTITION = "train"  # verl's partition of the queue for training
Past = Mapping[str, Trajectory]  # key of a replayed row -> its trajectory


class ExperienceMixin(PPOTrainer):
    """The trainer owns the replay object and decides when to call it; other parts get values.

    With ``trainer.experience=False`` every method is verl's own: plain GRPO by the same program.

    Attributes:
        verl_mode: verl's name of the mode that the trainer extends.
        experience: the settings of replay.
        in_flight: the prompts that were submitted and have not been trained on.
        waiting: past groups of the draw that are not in the batch yet (``trainer.exp_unit=group``).
        replayed: what the batch replays, one record a group.
        mixed: whether mixing had begun when the batch was drawn.
        so_far: what the updates of the step have brought.
    """

    verl_mode: str
    experience: ExperienceConfig
    row_of_question: dict[str, int]  # question -> its row of the data set
    total_training_steps: int  # verl's; none of these five is typed
    local_trigger_step: int
    parameter_sync_step: int
    global_steps: int
    train_dataloader_it: Any

    # -- start -----------------------------------------------------------------------------------

    @property
    def asynchronous(self) -> bool:
        return self.verl_mode != "sync"

    @property
    def rollout(self) -> DictConfig:
        """verl's settings of the rollouts."""
        return self.config.actor_rollout_ref.rollout

    def init(self) -> None:
        """verl's: everything below, then the workers with the model, and the engine."""
        with phase("loading the model and starting the engine"):
            super().init()

    def _build_replay_buffer(self) -> ReplayBuffer:
        if "experience" not in self.config.trainer:  # verl's own configuration
            raise ValueError(
                "trainer.experience: missing; verl's own command needs --config-path "
                "pkg://exgrpo.config --config-name exgrpo_trainer with exgrpo's trainers"
            )
        # verl treats any mode but "sync" as asynchronous; this method is the first to read it.
        self.trainer_mode = self.verl_mode
        settings = self.config.trainer.v1.get(self.verl_mode) or {}
        # verl has looked below our trainer's name
        self.parameter_sync_step = settings.get("parameter_sync_step", 1)
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.config.trainer.rollout_poll_interval
        return buffer

    def _init_dataloader(self) -> None:
        """verl's data loaders; then replay, which needs the ids of the questions."""
        super()._init_dataloader()
        print(first_prompt(self.train_dataset, self.tokenizer), flush=True)
        self.response_shown = False
        self.until_first_response = contextlib.ExitStack()
        keys, rollout_n = self.config.trainer, self.rollout.n
        self.experience = ExperienceConfig.from_mapping(keys, rollout_n)
        self.waiting: list[StoredGroup] = []
        if self.experience.experience:
            self._begin_replay(rollout_n)

    def _begin_replay(self, rollout_n: int) -> None:
        """Everything that replay needs, from a checkpoint if there is one."""
        # preflight checks this only if the model is a local folder
        if self.processor is not None:
            text_only = "has a processor; a replayed trajectory is text only"
            raise ValueError(f"actor_rollout_ref.model.path: {text_only}")
        ids = self.train_dataset.question_ids()
        self.row_of_question = {question: row for row, question in enumerate(ids)}
        self.mix_collate = ExperienceMixCollateFn(self._row, rollout_n, collate_fn)
        self.in_flight = InFlight()
        self.mixed = False
        self.replayed: list[ReplayedGroup] = []
        self.so_far = StepMetrics()
        if isinstance(self.replay_buffer, GroupFilter):
            self.replay_buffer.follow(self.in_flight, self.experience.exp_success_threshold)
        config, keys = self.config, self.experience
        self.provenance = provenance.of_settings(config.reward.custom_reward_function)
        recorded = keys.exp_is_correct, keys.exp_missing_log_probs
        self.loss_shares = LossShares.of_config(config, *recorded)
        self._open_experience()

    def _open_experience(self) -> None:
        """Replay of the checkpoint to resume from; a wrong one fails before workers start."""
        trainer, data = self.config.trainer, self.config.data
        # verl's local copies, as exgrpo.preflight reads them
        ids = read_question_ids(self.train_dataset.data_files, data.prompt_key)
        self.identity = {
            "data_fingerprint": fingerprint(ids),
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "questions": len(self.row_of_question),  # after verl's length filter
        }
        root = Path(trainer.default_local_dir)
        root.mkdir(parents=True, exist_ok=True)
        # locks the folder as long as this process lives; a killed run may be ending
        self.writer = contextlib.ExitStack()
        self.writer.enter_context(durable.exclusive_on_all_hosts(root, patience_s=30))
        self.rotation = checkpoints.Rotation(root, trainer.get("max_actor_ckpt_to_keep"))
        actor, known = self.config.actor_rollout_ref.actor, self.row_of_question
        check = optimizer_states.check_if_loaded(actor.checkpoint.load_contents)
        opened = checkpoints.open_experience(
            trainer, self.experience, self.identity, known.keys(), check
        )
        self.resumed_step, self.replay, self.pool_folder, self.resumed_state = opened
        limits = data.max_prompt_length, data.max_response_length
        checkpoints.keep_usable(self.replay, known, *limits)

    def _validate(self) -> dict[str, float]:
        with phase("validating"):
            return super()._validate()

    def on_step_begin(self) -> None:
        if not self.response_shown:
            self.until_first_response.enter_context(phase("generating the first rollouts"))
        super().on_step_begin()

    # -- ask -------------------------------------------------------------------------------------

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """verl's next prompts; with replay those of `_ask`."""
        size = num_prompts or self.config.data.train_batch_size
        if not self.experience.experience:
            return super()._next_train_batch(size)
        return self._ask(size, ahead=num_prompts is not None)

    def _ask(self, size: int, ahead: bool) -> TensorDict:
        """rho * size replayed questions and the rest fresh; none twice, none thrown away.

        With ``trainer.exp_unit=group`` (1 - rho) * size fresh ones; past groups need no generation.
        They are drawn for the step that is beginning, which trains on them, so that none is in
        flight; prompts ahead of it, warm-up and refills, are all fresh.

        In the synchronous mode a second call in a step replaces groups that failed
        (``trainer.v1.sampler.sync_refill_failed_groups``) with fresh questions that are not in the
        step yet. In an asynchronous mode every call is a draw of its own, of questions that are not
        in flight.
        """
        step, elsewhere = self.global_steps, None
        if self.asynchronous:
            self.in_flight.keep_only(queue.prompts(PARTITION))
            elsewhere = self.in_flight.questions + [group.question for group in self.waiting]
        drawn = self.replay.draw(step, size, self._next_question, elsewhere, ahead)
        self.waiting += drawn.stored
        fresh = [self._row(question) for question in drawn.fresh]
        first = self.in_flight.first_position(step, size - len(drawn.stored))
        rng, mixed = self.replay.rng, drawn.mixed
        columns = self.mix_collate(fresh, drawn.replayed, step, rng, first)
        marks = columns.pop("is_replayed")
        rows = zip(columns["uid"], columns["question_id"], marks, strict=True)
        prompts = ((uid, Prompt(name, bool(mark), mixed)) for uid, name, mark in rows)
        self.in_flight.add(prompts)
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        return batch

    def _row(self, question: str) -> dict[str, Any]:
        return self.train_dataset[self.row_of_question[question]]

    def _next_question(self) -> tuple[str, bool]:
        """The next question of verl's loader, whose position is saved; whether an epoch begins."""
        # as verl does; a run may resume at an epoch's end
        if self.train_dataloader_it is None:
            self.train_dataloader_it = iter(self.train_dataloader)
        epoch = self.train_dataloader_it
        question = next(iter(self._fetch_one_gen_batch()["question_id"]))
        return question, self.train_dataloader_it is not epoch

    # -- complete --------------------------------------------------------------------------------

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> Batch:
        """verl's update; for its share of past groups no finished prompts are waited for."""
        prompts = sample_batch_size - self.past_groups_now
        return super()._step_once(metrics, timing_raw, prompts)

    @property
    def past_groups_now(self) -> int:
        """How many of the waiting past groups enter the next update: they are dealt out evenly."""
        return math.ceil(len(self.waiting) / (self.parameter_sync_step - self.local_trigger_step))

    def _balance_batch(self, batch: Batch, metrics: dict, **kwargs: Any) -> Batch:
        """verl's, of the batch with what is replayed; the actor still has the rollouts' weights."""
        self._show_first_response(batch)
        if self.experience.experience:
            batch = self._complete(batch)
        return super()._balance_batch(batch, metrics, **kwargs)

    def _show_first_response(self, batch: Batch) -> None:
        if not self.response_shown:
            self.until_first_response.close()
            print(first_response(batch, self.tokenizer), flush=True)
            self.response_shown = True

    def _complete(self, batch: Batch) -> Batch:
        """Add one past success to the fresh rollouts of each replayed question; and past groups."""
        with self._time_of_replay():
            complete.refuse_several_outputs(batch.keys)
            batch, pool = queue.in_order(batch), self.replay.pool
            questions = self._questions_to_complete(batch)
            siblings = complete.first_siblings(batch, questions)
            # a question may have left the pool since it was drawn: its group stays one row short
            left = [each for each in siblings if each in pool]
            scorer = self._scorer({each: siblings[each].row["prompts"] for each in left})
            choice = self.replay.choose(self.replay.candidates(left), scorer)
            for group in choice.groups:
                group.uid = siblings[group.question].uid
            self.so_far.add(batch, choice)
            # the session of the row that joins
            last = self.rollout.n - 1
            batch = rescue.make_room(batch, choice.groups, last)
            batch = complete.inject(batch, choice.groups, siblings, last)
            past = self._admit_past_groups()
            self.replayed = [*choice.groups, *past]
            return stored_groups.join(queue.in_order(batch), past, self._row)

    def _questions_to_complete(self, batch: Batch) -> dict[str, str]:
        """uid -> question of the groups of the batch that a past success is to join."""
        uids = {split_key(key)[0] for key in batch.keys}
        arrived = self.in_flight.take(uids)
        if not self.asynchronous:
            self.in_flight.keep_only(())  # groups that failed
        # past groups may join prompts that were drawn before mixing began
        self.mixed = bool(self.past_groups_now) or any(each.mixed for each in arrived.values())
        chosen = {uid: each for uid, each in arrived.items() if each.is_replayed}
        replayed = {uid: each.question for uid, each in chosen.items()}
        return replayed | self._questions_to_rescue(batch, arrived)

    def _questions_to_rescue(self, batch: Batch, arrived: Mapping[str, Prompt]) -> dict[str, str]:
        """uid -> fresh question whose rollouts all failed and that a past success may rescue."""
        if not self.experience.exp_rescue:
            return {}
        threshold = self.experience.exp_success_threshold
        fresh = {uid for uid, each in arrived.items() if each.mixed and not each.is_replayed}
        failed = rescue.failed(batch, fresh, threshold)
        uid_of = {arrived[uid].question: uid for uid in failed}
        return {uid_of[each]: each for each in self.replay.rescuable(uid_of)}

    def _admit_past_groups(self) -> list[ReplayedGroup]:
        """The update's past groups, but for those that the policy has left behind."""
        count = self.past_groups_now
        entering, self.waiting = self.waiting[:count], self.waiting[count:]
        scorer = self._scorer(stored_groups.prompts_of(entering))
        return self.replay.admit(entering, scorer)

    def _scorer(self, prompts: Mapping[str, torch.Tensor]) -> CandidateScorer:
        """The actor as what scores trajectories; question -> tokens of its prompt, int64 [P]."""
        return CandidateScorer.of(prompts, self.actor_rollout_wg, self.rollout)

    # -- correct ---------------------------------------------------------------------------------

    def _compute_old_log_prob(self, batch: Batch, metrics: dict) -> Batch:
        """verl's pass over the batch, after which we know how far the policy is from its past."""
        batch = super()._compute_old_log_prob(batch, metrics)
        loss_metrics.unscale_entropy(metrics, self.config)
        if self.experience.experience:
            self._correct_and_observe(batch, metrics)
        return batch

    def _correct_and_observe(self, batch: Batch, metrics: dict) -> None:
        """Marks and recorded log-probs for the loss; then the pool sees the fresh rows.

        The pool reads log-probs, masks and rewards that verl overwrites later in the step.
        """
        with self._time_of_replay():
            past: dict[str, Trajectory] = {}
            for group in self.replayed:
                past |= group.rows
            correct.mark(batch, correct.codes(self.mixed))
            self._put_recorded_log_probs(batch, past)
            metrics.update(self._observe(batch, past))
        if self.is_last_update:  # verl would average what each update reports
            step, self.so_far = self.so_far, StepMetrics()
            metrics["experience/generated_tokens"] = step.generated_tokens
            metrics["experience/seconds"] = step.seconds

    def _put_recorded_log_probs(self, batch: Batch, past: Past) -> None:
        """The denominators of importance ratios; rollout correction is for fresh rows alone."""
        keys = self.experience
        recorded = keys.exp_is_correct
        missing = keys.exp_missing_log_probs if recorded else None
        correct.put_recorded(batch, past, missing)
        all_known = recorded and all(each.has_log_probs for each in past.values())
        if self._corrects_rollouts or not all_known:
            correct.exempt_replayed_rows(batch, past)

    def _compute_advantage(self, batch: Batch, metrics: dict) -> Batch:
        """verl's; rollout correction overwrites the phase with its weights: both in one again."""
        batch = super()._compute_advantage(batch, metrics)
        if self.experience.experience and self._corrects_rollouts:
            batch = correct.add_correction(batch, correct.codes(self.mixed))
        return batch

    @property
    def _corrects_rollouts(self) -> bool:
        return correct.corrects(self.config.algorithm.rollout_correction)

    def _update_actor(self, batch: Batch, metrics: dict) -> Batch:
        """verl's update; the sums it reports become means and shares of the whole step."""
        batch = super()._update_actor(batch, metrics)
        loss_metrics.finish(metrics)
        return batch

    # -- observe ---------------------------------------------------------------------------------

    @property
    def is_last_update(self) -> bool:
        """Whether the step has no further update; only separate_async has several."""
        return bool(self.local_trigger_step + 1 == self.parameter_sync_step)

    def _observe(self, batch: Batch, past: Past) -> dict[str, float]:
        """Let the pool take in the fresh rows, once those of all updates are here; its metrics."""
        step, so_far, keys = self.global_steps, self.so_far, self.experience
        whole_groups = keys.exp_unit == "group"
        compare = bool(past) and self.rollout.calculate_log_probs
        rules = self.provenance.grader != "strict"
        rows = observe.scored_rows(batch, compare, rules, whole_groups)
        fresh = observe.fresh_rows(batch, rows)
        current = correct.current_log_probs(batch, past)
        so_far.groups += observe.rollout_groups(
            fresh, self.replayed, step, len(self.tokenizer), keys, self.provenance
        )
        so_far.replayed += self.replayed
        so_far.current |= current
        so_far.log_ratios += correct.log_ratios(past, current).values()
        self.loss_shares.fill(self.replayed, current, fresh)
        measured = staleness(batch, step)
        if self.is_last_update:
            if isinstance(self.replay_buffer, GroupFilter):
                so_far.groups += self.replay_buffer.take()
            noted = so_far.metrics(step)
            if whole_groups:
                noted |= stored_groups.metrics(so_far.replayed, so_far.current, step)
            measured |= noted
            measured |= self.replay.observe(step, so_far.groups, noted)
        ours = {f"experience/{name}": value for name, value in measured.items()}
        return (debug_metrics(rows) if compare else {}) | ours

    @contextlib.contextmanager
    def _time_of_replay(self) -> Iterator[None]:
        """What is done within it counts as the step's time for replay."""
        started = time.perf_counter()
        yield
        self.so_far.seconds += time.perf_counter() - started

    def _val_metrics_update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """verl's metrics of a validation; with averages over data sources, as released."""
        return with_averages(super()._val_metrics_update(*args, **kwargs))

    # -- save ------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """Pool and state first: verl writes its marker last, so a marked checkpoint has both. Then
        its seal.
        """
        root = Path(self.config.trainer.default_local_dir)
        folder = checkpoints.step_folder(root, self.global_steps)
        optimizer_states.expect_new(folder)
        checkpoints.expect_new(folder)
        gone = self._save_pool(folder) if self.experience.experience else []
        super()._save_checkpoint()
        run = self.resumed_state["run"] if self.experience.experience else None
        seals.write(folder, self.global_steps, run)
        if gone:
            nodes.on_all_nodes(checkpoints.delete_weights, str(root), gone)
        if keep := self.config.trainer.max_optim_to_keep:
            optimizer_states.delete_old(root, keep, optimizer_states.delete_on_all_nodes)

    def _save_pool(self, folder: Path) -> list[int]:
        """Save pool, generator, phase and prompts in flight; the steps that verl then deletes."""
        state = self.replay.state() | {"run": self.resumed_state["run"]}
        if self.asynchronous:
            self.in_flight.keep_only(queue.prompts(PARTITION))
            state |= {"prompts": self.in_flight.state()}
        pool, groups = self.replay.pool, list(self.replay.groups)
        target, step = folder / checkpoints.POOL, self.global_steps
        self.pool_folder.save(pool, target, step, self.identity, state, groups)
        return self.rotation.make_room(step)

    def _load_checkpoint(self) -> None:
        """verl's checkpoint; it must be of the step whose pool was loaded."""
        super()._load_checkpoint()
        if not self.experience.experience:
            return
        if self.global_steps != self.resumed_step:
            steps = f"step {self.global_steps} with the pool of step {self.resumed_step}"
            raise RuntimeError(f"weights of {steps}")
        self._find_prompts_again(self.resumed_state.get("prompts", {}))
        self._end_if_exhausted()

    def _find_prompts_again(self, saved: Mapping[str, Sequence[Any]]) -> None:
        """The prompts in flight when it was saved; verl has restored their groups in the queue."""
        if saved and not self.asynchronous:
            why = "trainer.v1.trainer_mode is not theirs"
            logger.warning("%d prompts were in flight and are dropped: %s", len(saved), why)
        elif lost := saved.keys() - (queue.prompts(PARTITION) if saved else set()):
            lacks = f"lacks {len(lost)} of {len(saved)} prompts"
            raise RuntimeError(f"step {self.resumed_step}: the saved queue {lacks}")
        else:
            self.in_flight.restore(saved)

    def on_step_end(self) -> None:
        """verl's weight update; if all questions are retired, the run ends and saves this step."""
        if self.experience.experience and self._end_if_exhausted():
            save_freq = self.config.trainer.save_freq
            if save_freq > 0 and self.global_steps % save_freq:
                self._save_checkpoint()
        super().on_step_end()

    def _end_if_exhausted(self) -> bool:
        """Whether all questions are retired before the last step, which this step then is."""
        ends = self.replay.exhausted and self.global_steps < self.total_training_steps
        if ends:
            why = "every question of the data is retired, training ends here"
            logger.warning("step %d: %s", self.global_steps, why)
            self.total_training_steps = self.global_steps
        return ends


@register_trainer("exgrpo")
class ExperienceMixPPOTrainer(ExperienceMixin, PPOTrainerSync):
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
