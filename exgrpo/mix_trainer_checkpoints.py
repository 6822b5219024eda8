"""The checkpoints of ExGRPO's trainers: pool, generator, phase and the prompts in flight, beside what verl saves."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.question_id import fingerprint, tokenizer_fingerprint
from exgrpo.on_verl import checkpoints, nodes, optimizer_states, queue
from exgrpo.on_verl.prompts_out import PromptsOut
from exgrpo.preflight.train_files import read_question_ids
from exgrpo.saved import durable

logger = logging.getLogger(__name__)
PARTITION = "train"  # verl's partition of the queue for training


class CheckpointedReplay(PPOTrainer):
    """Opens, saves and loads what replay needs; with ``trainer.experience=False`` only verl's own.

    Attributes:
        verl_mode: verl's name of the mode that the trainer extends.
        prompts: what was submitted and has not been trained on.
        row_of_question: question -> its row of the data set.
    """

    verl_mode: str
    experience: ExperienceConfig
    prompts: PromptsOut
    total_training_steps: int  # verl's; it is not typed
    row_of_question: dict[str, int]

    @property
    def asynchronous(self) -> bool:
        return self.verl_mode != "sync"

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
        self.resumed_step, self.replay, self.pool_folder, self.resumed_state = opened
        dropped = self.replay.pool.keep_only(self.row_of_question, self.config.data.max_response_length)
        if dropped:
            logger.warning(
                "%d trajectories are dropped: their question is not in the data, or they are too long", dropped
            )

        limits = self.config.data.max_prompt_length, self.config.data.max_response_length
        if left := self.replay.groups.keep_only(self.row_of_question, *limits):
            logger.warning("%d past groups are dropped: their question is not in the data, or they are too long", left)

    def _load_checkpoint(self) -> None:
        """verl's checkpoint; it must be of the step whose pool was loaded."""
        super()._load_checkpoint()
        if self.experience.experience and self.global_steps != self.resumed_step:
            raise RuntimeError(f"weights of step {self.global_steps} with the pool of step {self.resumed_step}")
        if self.experience.experience:
            self._find_prompts_again(self.resumed_state.get("prompts", {}))
            self._end_if_exhausted()

    def _find_prompts_again(self, saved: dict[str, Any]) -> None:
        """The prompts in flight when the checkpoint was saved; verl has restored their groups in the queue."""
        if saved and not self.asynchronous:
            logger.warning(
                "%d prompts were in flight and are dropped: trainer.v1.trainer_mode is not theirs", len(saved)
            )
        elif lost := saved.keys() - (queue.prompts(PARTITION) if saved else set()):
            raise RuntimeError(f"step {self.resumed_step}: the saved queue lacks {len(lost)} of {len(saved)} prompts")
        else:
            self.prompts.restore(saved)

    def _save_checkpoint(self) -> None:
        """Pool and state first: verl writes its "latest" marker last, so a marked checkpoint has both."""
        root = Path(self.config.trainer.default_local_dir)
        folder = checkpoints.step_folder(root, self.global_steps)
        optimizer_states.expect_new(folder)
        gone: list[int] = []
        if self.experience.experience:
            checkpoints.expect_new(folder)
            pool, state = self.replay.pool, self.replay.state()
            if self.asynchronous:
                self.prompts.keep_only(queue.prompts(PARTITION))
                state |= {"prompts": self.prompts.state()}
            target, groups = folder / checkpoints.POOL, list(self.replay.groups)
            self.pool_folder.save(pool, target, self.global_steps, self.identity, state, groups)
            gone = self.rotation.make_room(self.global_steps)
        super()._save_checkpoint()
        if gone:
            nodes.on_all_nodes(checkpoints.delete_weights, str(root), gone)
        if keep := self.config.trainer.max_optim_to_keep:
            optimizer_states.delete_old(root, keep, optimizer_states.delete_on_all_nodes)

    def on_step_end(self) -> None:
        """verl's weight update; if all questions are retired, the run ends with this step and saves it."""
        if self.experience.experience and self._end_if_exhausted():
            save_freq = self.config.trainer.save_freq
            if save_freq > 0 and self.global_steps % save_freq:
                self._save_checkpoint()
        super().on_step_end()

    def _end_if_exhausted(self) -> bool:
        """Whether all questions are retired before the last step, which this step then is."""
        ends = self.replay.exhausted and self.global_steps < self.total_training_steps
        if ends:
            logger.warning("step %d: every question of the data is retired, training ends here", self.global_steps)
            self.total_training_steps = self.global_steps
        return ends
