"""Read buffers saved before pools had notes (format 2): texts and rewards are in a table beside the pool.

rollouts-<sha>.parquet   question, key, text, reward, entropy; key is a digest of the tokens. text is null if the
                         tokens are the text's code points.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.packing import pack, unpack
from exgrpo.experience.trajectory import Trajectory
from exgrpo.replay.records import note_of
from exgrpo.saved import pool_files
from exgrpo.saved.pool_files import SavedPool

ROLLOUTS = "rollouts"
logger = logging.getLogger(__name__)


def read_pool(folder: Path, rollouts: Any, config: ExperienceConfig) -> ExperiencePool:
    """The pool in `folder`, with texts and rewards of the table in its trajectories; order and draws are unchanged.

    In that format a reward could be any number: rewards outside 0..1 are clipped, with one warning.
    """
    saved = pool_files.read_saved(folder)
    table = rollouts.to_pylist()
    outside = [row["reward"] for row in table if not 0 <= row["reward"] <= 1]
    if outside:
        logger.warning("%s: %d rewards, such as %s, are brought into 0..1", folder, len(outside), outside[0])
    rows = {(row["question"], row["key"]): row for row in table}
    numbers = saved.manifest["next_serial"], saved.manifest["counters"]
    return ExperiencePool.restore(config, saved.state, saved.history, _with_notes(saved, rows), *numbers)


def _with_notes(saved: SavedPool, rows: Mapping[tuple[str, bytes], Any]) -> Iterator[tuple[int, str, bytes]]:
    for serial, question, packed in saved.records():
        old = unpack(packed)
        row = rows[question, hashlib.blake2b(old.tokens.tobytes(), digest_size=16).digest()]
        other_fields = (old.step, old.entropy, None, min(max(row["reward"], 0.0), 1.0))
        if row["text"] is None:
            note = note_of("".join(map(chr, old.tokens)))
            yield serial, question, pack(serial, Trajectory.without_log_probs([], *other_fields, note))
        else:
            note = note_of(row["text"].decode(errors="surrogatepass"))
            yield serial, question, pack(serial, Trajectory(old.tokens, old.log_probs, *other_fields, note))
