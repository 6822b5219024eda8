"""The run on disk: the checkpoint that a trainer goes on from, and replay's part of the next."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from exgrpo import provenance
from exgrpo.data_files import golds_fingerprint, read_question_ids
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.on_verl import checkpoints, old_checkpoints
from exgrpo.on_verl.in_flight import InFlight
from exgrpo.saved.pool_folder import PoolFolder

logger = logging.getLogger(__name__)


@dataclass
class SavedRun:
    """What the trainer's saving and resuming need; no step reads it.

    Attributes:
        step: that was resumed from; 0 for a new run.
        state: JSON values saved with its pool; `run`, the id that its pools and seals name.
        identity: data, tokenizer and number of questions that a pool must belong to.
        judged: by whom and against which golds the run's rewards are; JSON values, saved with it.
        pool_folder: saves the pool; knows the segments on disk that it was loaded from.
        rotation: deletes old checkpoints.
    """

    step: int
    state: Mapping[str, Any]
    identity: Mapping[str, object]
    pool_folder: PoolFolder
    rotation: old_checkpoints.Rotation
    judged: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        config: DictConfig,
        experience: ExperienceConfig,
        files: Sequence[str],
        tokenizer: Any,
        questions: Collection[str],
    ) -> tuple[SavedRun, ExperienceReplay]:
        """With the replay of the checkpoint to resume from, or a new run's; a wrong one fails here,
        before workers start.

        Args:
            files: the training files, by the paths that verl has them at on this machine.
            questions: ids of the data set's questions, after verl's length filter.
        """
        keys, data = config.trainer, config.data
        ids = read_question_ids(files, data.prompt_key)
        identity = checkpoints.identity_of(ids, tokenizer, questions)
        kept = keys.get("max_actor_ckpt_to_keep")
        rotation = old_checkpoints.Rotation(Path(keys.default_local_dir), kept)
        loaded = config.actor_rollout_ref.actor.checkpoint.load_contents
        check = old_checkpoints.check_if_loaded(loaded)
        opened = checkpoints.open_experience(keys, experience, identity, questions, check)
        limits = data.max_prompt_length, data.max_response_length
        checkpoints.keep_usable(opened.replay, questions, *limits)
        judged = {
            "judged_by": str(provenance.of_settings(config.reward.custom_reward_function)),
            "golds": golds_fingerprint(files, data.prompt_key),
        }
        _compare(opened.state, judged, opened.replay, experience.experience_other_judge == "drop")
        state, folder = opened.state, opened.folder
        return cls(opened.step, state, identity, folder, rotation, judged=judged), opened.replay

    @property
    def run(self) -> str:
        """The id of the run."""
        return self.state["run"]

    def save(
        self, replay: ExperienceReplay, folder: Path, step: int, in_flight: InFlight | None
    ) -> list[int]:
        """Save pool, generator, phase and prompts in flight into a checkpoint's folder.

        Returns:
            The steps that verl then deletes.
        """
        state = replay.state() | {"run": self.run} | dict(self.judged)
        if in_flight is not None:
            state["prompts"] = in_flight.state()
        place, groups = folder / checkpoints.POOL, list(replay.groups)
        what = replay.pool, place, step, self.identity, state
        self.pool_folder.save(*what, groups=groups, memory=replay.memory)
        return self.rotation.make_room(step)

    def expect_weights_of(self, step: int) -> None:
        """RuntimeError unless the loaded weights are of the same step as the loaded pool."""
        if step != self.step:
            raise RuntimeError(f"weights of step {step} with the pool of step {self.step}")

    def restore(self, in_flight: InFlight, there: set[str] | None) -> None:
        """The prompts in flight when it was saved, of those that are in verl's queue again; None:
        in a mode that has none.
        """
        saved = self.state.get("prompts", {})
        if there is not None:
            in_flight.restore(saved, there, self.step)
        elif saved:
            logger.warning(
                "%d prompts were in flight and are dropped: trainer.v1.trainer_mode is not theirs",
                len(saved),
            )


def _compare(
    before: Mapping[str, Any], now: Mapping[str, str], replay: ExperienceReplay, drop: bool
) -> None:
    """Say what judged the pool of a checkpoint, where it is not what judges now.

    Args:
        drop: the pool is left empty then.
    """
    changed = [name for name in now if before.get(name) not in (None, now[name])]
    if not changed:
        return
    who = "by " + " and now by ".join((before["judged_by"], now["judged_by"]))
    parts = {"judged_by": who, "golds": "against other golds than now"}
    said = ", ".join(parts[name] for name in changed)
    if drop:
        left = replay.pool.keep_only((), 0) + replay.groups.keep_only((), 0, 0)
        what = f"dropped, {left} trajectories and groups"
    else:
        what = (
            "kept; trainer.experience_other_judge=drop leaves it out, exgrpo-inspect --quarantine "
            "--reward judges it again"
        )
    logger.warning("exgrpo: the checkpoint's pool was judged %s: it is %s", said, what)
