"""The checkpoint that a run would resume from, and what has to be as it was."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from exgrpo.on_verl.checkpoints import marked_step, step_folder
from exgrpo.refusal import refuse_as


def resumed_folder(trainer: DictConfig) -> Path | None:
    """The checkpoint that this run would resume from, if it is on this node's disk."""
    folder = None
    if trainer.resume_mode == "resume_path":
        folder = Path(str(trainer.resume_from_path))
    elif trainer.resume_mode == "auto":
        root = Path(trainer.default_local_dir)
        folder = None if (step := marked_step(root)) is None else step_folder(root, step)
    return folder if folder is not None and folder.is_dir() else None


def verify_path(trainer: DictConfig) -> None:
    """ValueError or FileNotFoundError unless ``trainer.resume_from_path`` fits the mode."""
    mode, path = trainer.resume_mode, trainer.resume_from_path
    said = f"trainer.resume_from_path={path}"
    if mode != "resume_path":
        if path is not None:
            refuse_as(said, f"be null with trainer.resume_mode={mode}, or the mode resume_path")
    elif not re.search(r"global_step_\d+/?$", str(path)):
        raise ValueError(
            f"{said}: must be the folder of a checkpoint, .../global_step_<n>, with "
            "trainer.resume_mode=resume_path"
        )
    elif not Path(str(path)).is_dir():
        raise FileNotFoundError(f"{said}: no such folder")


def verify_loader(workers: int, folder: Path | None) -> None:
    """ValueError if the saved position of verl's data loader is of another number of workers.

    Args:
        workers: ``data.dataloader_num_workers``.
        folder: the checkpoint that is resumed from.
    """
    saved = None if folder is None else _saved_workers(folder / "data.pt")
    if saved is not None and saved != workers:
        raise ValueError(
            f"data.dataloader_num_workers={workers}: must be {saved}, with which {folder} was "
            "saved; the position in the data cannot be taken over by another number"
        )


def _saved_workers(file: Path) -> int | None:
    """None if the file is not there, or is not what torchdata's StatefulDataLoader writes."""
    if not file.is_file():
        return None
    import torch

    try:
        state: Any = torch.load(file, weights_only=True)
        snapshot = state.get("_snapshot")
        if snapshot is None:
            return 0 if "_num_yielded" in state else None
        return int(snapshot["_main_snapshot"]["_num_workers"])
    except (pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, KeyError, TypeError):
        return None  # verl says what is wrong with it
