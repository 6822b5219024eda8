"""SIGTERM, as a cluster sends it before it takes the machine: the step is finished and saved, the
run ends with 143, and the same command goes on.

The command has the signal, the trainer is another process of the same node: they meet in a folder.
Where the last finished step is saved already, as during the generation after a save, the run ends
at once; so it does at a second signal.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "EXGRPO_STOPPING"  # of the runner's environment: the folder
STOP, UNSAVED = "stop", "unsaved"  # files in it: of the command; of the trainer (stoppable.py)
_CODE = 128 + signal.SIGTERM


class Stopping:
    """The command's side. ``folder`` is for the trainer; whoever makes it uses `ends`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"exgrpo-{os.getpid()}-"))
        self.asked = False

    def listen(self) -> None:
        """From now on, and again once Ray, which has a handler of its own, is up."""
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        again, self.asked = self.asked, True
        if again or not (self.folder / UNSAVED).exists():
            raise KeyboardInterrupt  # the one exception that Ray lets out of a wait
        (self.folder / STOP).touch()
        line = "exgrpo: SIGTERM: the step is finished and saved first; a second one ends it at once"
        os.write(2, f"{line}\n".encode())  # a print may be going on

    @contextmanager
    def ends(self) -> Iterator[None]:
        """What runs within it ends the program with 143 and a line if the signal came."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.asked:
                raise
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.asked:
            line = "stopped by SIGTERM; the same command continues from the last checkpoint"
            print(f"exgrpo: {line}", file=sys.stderr, flush=True)
            sys.exit(_CODE)
