"""verl's checkpoint folder: ``global_step_<n>/`` and a marker that names the latest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MARKER = "latest_checkpointed_iteration.txt"
POOL, STATE = "experience", "experience_state.json"  # what a checkpoint of ours has beside verl's files


def step_folder(root: Path, step: int) -> Path:
    """The checkpoint of a step, as verl names it."""
    return root / f"global_step_{step}"


def marked_step(root: Path) -> int | None:
    """The step the marker names; None without a marker, or with one that a kill left empty."""
    marker = root / MARKER
    text = marker.read_text().strip() if marker.is_file() else ""
    return int(text) if text.isdigit() else None


def mend_marker(root: Path) -> int | None:
    """Rewrite a marker that a kill left empty; the step it names then, None where nothing was to be done.

    verl writes the marker in place, after everything else of a checkpoint, ``data.pt`` being the last before it: where
    the marker is empty, the newest checkpoint with a ``data.pt`` is whole.
    """
    if not (root / MARKER).is_file() or marked_step(root) is not None:
        return None
    steps = [int(path.parent.name.removeprefix("global_step_")) for path in root.glob("global_step_*/data.pt")]
    if not steps:
        return None
    temporary = root / f"{MARKER}.tmp"
    temporary.write_text(str(max(steps)))
    os.replace(temporary, root / MARKER)
    return max(steps)


def drop_experience_without_weights(root: Path) -> None:
    """verl's rotation deletes old weights only; the experience of a checkpoint whose weights are gone goes too."""
    for folder in root.glob("global_step_*"):
        if not (folder / "actor").exists():
            shutil.rmtree(folder / POOL, ignore_errors=True)
            (folder / STATE).unlink(missing_ok=True)
