"""What a guarded run writes down of itself, so that the next one can clear up after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import process_tree


@dataclass
class RunRecord:
    """One running command. Times are clock ticks since the machine's start, as /proc has them."""

    NAME: ClassVar[str] = "running.json"
    MARK: ClassVar[str] = ".exgrpo-guarded"  # a file in the temporary folder: who made it

    machine: str  # numbers of processes mean something only there, and until it is started again
    guard: int
    started: int
    temporary: str
    session: int = 0  # of the command, by the number of its first process; 0: not started
    session_started: int = 0
    shared: set[str] = field(default_factory=set)

    @classmethod
    def of_this_process(cls, temporary: Path) -> RunRecord:
        """For the process that guards a command; marks the temporary folder as made for it."""
        itself = process_tree.look(os.getpid())
        assert itself is not None
        record = cls(_machine(), itself.pid, itself.started, str(temporary))
        record.mark()
        return record

    @classmethod
    def read(cls, folder: Path) -> RunRecord | None:
        """The record of a folder; None without one."""
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            values: dict[str, Any] = json.loads((folder / cls.NAME).read_text())
            return cls(**values | {"shared": set(values["shared"])})
        return None

    def mark(self) -> None:
        """Write into the temporary folder that this record's guard has made it."""
        Path(self.temporary, self.MARK).write_text(self._maker())

    def began(self, child: int) -> None:
        """Note the command, of which all processes are in the session of the first."""
        first = process_tree.look(child)
        self.session, self.session_started = child, first.started if first else self.started

    def write(self, folder: Path) -> None:
        """Replace the folder's record as a whole."""
        written = folder / f".{self.NAME}.tmp"
        written.write_text(json.dumps(asdict(self) | {"shared": sorted(self.shared)}))
        written.replace(folder / self.NAME)

    def guard_lives(self) -> bool:
        """Whether the process that wrote this is alive."""
        found = process_tree.look(self.guard) if self.machine == _machine() else None
        return found is not None and not found.ended and found.started == self.started

    def survivors(self) -> list[int]:
        """Process ids of the command's session."""
        if not self.session or self.machine != _machine():
            return []
        return process_tree.in_session(self.session, self.session_started)

    def remove(self, folder: Path) -> None:
        """Remove the temporary folder and the files in shared memory, then this record.

        A record may be damaged, or somebody else's. So a folder that no guarded run makes, and a
        file that is not in shared memory, are left alone, with a line about each.
        """
        in_use = process_tree.shared_files(process.pid for process in process_tree.everything())
        for name in self.shared - in_use:
            if Path(name).parent != process_tree.SHARED_MEMORY:
                self._left(folder, name)
                continue
            with contextlib.suppress(OSError):
                os.unlink(name)
        if self._is_ours(Path(self.temporary)):
            shutil.rmtree(self.temporary, ignore_errors=True)
        elif os.path.lexists(self.temporary):
            self._left(folder, self.temporary)
        (folder / self.NAME).unlink(missing_ok=True)

    def _maker(self) -> str:
        return f"{self.machine} {self.guard} {self.started}"

    def _is_ours(self, temporary: Path) -> bool:
        """Whether the guard of this record has made the folder."""
        with contextlib.suppress(OSError, ValueError):
            return (
                not temporary.is_symlink() and (temporary / self.MARK).read_text() == self._maker()
            )
        return False

    def _left(self, folder: Path, name: str) -> None:
        said = (
            f"exgrpo: {folder / self.NAME} names {name}, which its run has not made: left as it is"
        )
        print(said, file=sys.stderr, flush=True)


def _machine() -> str:
    """This start of this machine, and the numbering of processes that this process sees."""
    return (
        f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} "
        f"{os.readlink('/proc/self/ns/pid')}"
    )
