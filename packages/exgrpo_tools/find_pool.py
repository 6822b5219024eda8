"""Where a run's saved pool is."""

from __future__ import annotations

from pathlib import Path

from exgrpo.on_verl.checkpoints import POOL, marked_step, step_folder
from exgrpo.saved.durable import newest
from exgrpo.saved.pool_files import MANIFEST


def find_pool(checkpoint: Path) -> Path:
    """The saved pool of a run's folder (with its checkpoints/) or its folder of checkpoints (the
    latest), of a checkpoint, or the folder itself.

    Raises:
        FileNotFoundError: there is none.
    """
    candidates = [checkpoint, checkpoint / POOL]
    for folder in (checkpoint, checkpoint / "checkpoints"):
        if (step := marked_step(folder)) is not None:
            candidates.append(step_folder(folder, step) / POOL)
    for folder in candidates:
        if (newest(folder) / MANIFEST).is_file():
            return folder.absolute()
    raise FileNotFoundError(
        f"CHECKPOINT={checkpoint}: no saved pool there, nor in {candidates[-1]}"
    )
