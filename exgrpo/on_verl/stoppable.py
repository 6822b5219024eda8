"""The trainer's side of an end by SIGTERM (`exgrpo.on_verl.stopping`)."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.stopping import FOLDER, STOP, UNSAVED


class StoppableTrainer(PPOTrainer):
    """verl's trainer; asked to stop, it saves the step that it is in and makes it the last.

    It tells the command by a file whether there is anything to wait for: from the first change of
    the weights on until they are saved.
    """

    global_steps: int
    total_training_steps: int
    _saved = 0  # the step of the latest checkpoint

    @cached_property
    def _stopping(self) -> Path | None:
        """Where the two meet; None under verl's own command, and where nothing is ever saved."""
        folder, saves = os.environ.get(FOLDER), self.config.trainer.save_freq > 0
        return Path(folder) if folder and saves and Path(folder).is_dir() else None

    @property
    def _asked(self) -> bool:
        return bool(self._stopping and (self._stopping / STOP).exists())

    def _update_actor(self, batch: Batch, metrics: dict) -> Batch:
        if self._stopping:
            (self._stopping / UNSAVED).touch()
        return super()._update_actor(batch, metrics)

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        self._saved = self.global_steps

    def on_step_end(self) -> None:
        """verl's weight update; before it the checkpoint, if one is due by a signal."""
        if self._asked and self._saved != self.global_steps:
            self._save_checkpoint()
        if self._stopping and self._saved == self.global_steps:
            (self._stopping / UNSAVED).unlink(missing_ok=True)
            if self._asked:
                self.total_training_steps = self.global_steps
        super().on_step_end()
