"""What ExGRPO's trainers submit for generation: fresh questions, replayed ones, and room for whole past groups."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.mix_trainer_checkpoints import PARTITION, CheckpointedReplay
from exgrpo.on_verl import queue
from exgrpo.on_verl.prompts_out import Prompt
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.stored_groups import StoredGroups


class DrawnPrompts(CheckpointedReplay):
    """Draws questions and past groups; with ``trainer.experience=False`` only verl's own.

    Attributes:
        stored: the past groups of the step, of which there are none unless ``trainer.exp_unit=group``.
        mix_collate: makes the batch of prompts.
    """

    train_dataloader_it: Any  # verl's; it is not typed
    stored: StoredGroups
    mix_collate: ExperienceMixCollateFn

    def _row(self, question: str) -> dict[str, Any]:
        return self.train_dataset[self.row_of_question[question]]

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """rho * B replayed questions and the rest fresh; no question occurs twice, none is fetched and thrown away.

        With ``trainer.exp_unit=group`` (1 - rho) * B fresh questions; the past groups of the draw need no generation.

        In the synchronous mode a second call in a step replaces groups that failed
        (``trainer.v1.sampler.sync_refill_failed_groups``) with fresh questions that are not in the step yet. In an
        asynchronous mode every call is a draw of its own, of questions that are not out.
        """
        size = num_prompts or self.config.data.train_batch_size
        if not self.experience.experience:
            return super()._next_train_batch(size)
        step, in_flight = self.global_steps, None
        if self.asynchronous:
            self.prompts.keep_only(queue.prompts(PARTITION))
            in_flight = self.prompts.questions
        drawn = self.replay.draw(step, size, self._next_question, in_flight)
        self.stored.drawn += drawn.stored
        fresh = [self._row(question) for question in drawn.fresh]
        first = self.prompts.first_position(step, size - len(drawn.stored))
        columns = self.mix_collate(fresh, drawn.replayed, step, self.replay.rng, first)
        marks = columns.pop("is_replayed")
        rows = zip(columns["uid"], columns["question_id"], marks, strict=True)
        self.prompts.add((uid, Prompt(question, bool(mark), drawn.mixed)) for uid, question, mark in rows)
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        return batch

    def _next_question(self) -> tuple[str, bool]:
        """The next question of verl's stateful loader, whose position is saved; whether it begins a new epoch."""
        if self.train_dataloader_it is None:  # as verl does next; a run may resume at the very end of an epoch
            self.train_dataloader_it = iter(self.train_dataloader)
        epoch = self.train_dataloader_it
        question = next(iter(self._fetch_one_gen_batch()["question_id"]))
        return question, self.train_dataloader_it is not epoch

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> Batch:
        """verl's; for the past groups of the draw no finished prompts are waited for."""
        return super()._step_once(metrics, timing_raw, sample_batch_size - len(self.stored.drawn))
