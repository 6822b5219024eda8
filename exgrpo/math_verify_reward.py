"""Verifiable reward by Math-Verify, as a verl custom reward function: 1 for a right answer, 0 for everything else.

    reward.custom_reward_function.path=pkg://exgrpo.math_verify_reward
    reward.custom_reward_function.name=compute_score
    reward.custom_reward_function.reward_kwargs.require_think=True

verl calls reward functions from a thread of a Ray actor, where the signals that Math-Verify's own time limits need do not
work, and where an answer that hangs would hang the run. So the verdict is made in a process of its own, one a caller,
which is killed when an answer takes too long and replaced every few thousand answers, since SymPy's caches only grow.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any

THINK_END = "</think>"
MAX_CHARACTERS = 20_000  # of an answer, counted from its end: where answers stand; parsing is not linear in the length
ANSWERS_PER_PROCESS = 5_000
START_TIMEOUT_S = 120.0  # importing SymPy on a busy machine


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    require_think: bool = True,
    timeout_s: float = 5.0,
) -> dict[str, float]:
    """Whether ``solution_str`` ends in the answer ``ground_truth``; never raises, returns within ``timeout_s``.

    Args:
        data_source, extra_info: verl passes them; unused.
        ground_truth: LaTeX of the right answer, with or without its dollars.
        require_think: what counts is what follows the closing </think>, and without one the answer is wrong (version 3
            of the released rewards, its script's); else the whole response (version 4).
        timeout_s: seconds for this answer; one that takes longer is wrong.

    Returns:
        ``score`` and ``acc``, both 1.0 or 0.0, and ``timed_out``, 1.0 where the time limit made the verdict.
    """
    answer = str(solution_str)
    if require_think:
        _, closed, answer = answer.rpartition(THINK_END)
        if not closed:
            return _verdict(False)
    gold = str(ground_truth).strip().strip("$")
    if ground_truth is None or not gold or not answer.strip():
        return _verdict(False)
    correct = _VERIFIER.verify(f"${gold}$", answer[-MAX_CHARACTERS:], timeout_s)
    return _verdict(bool(correct), timed_out=correct is None)


def _verdict(correct: bool, timed_out: bool = False) -> dict[str, float]:
    return {"score": float(correct), "acc": float(correct), "timed_out": float(timed_out)}


class _Verifier:
    """A Math-Verify process and the right to speak to it; one a process, for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._answers = 0

    def verify(self, gold: str, answer: str, timeout_s: float) -> bool | None:
        """The verdict; None where the answer took longer than ``timeout_s``, or killed the process it was judged in."""
        request = json.dumps({"gold": gold, "answer": answer}).encode() + b"\n"
        with self._lock:
            try:
                process = self._ready()
                assert process.stdin is not None
                process.stdin.write(request)
                process.stdin.flush()
                self._answers += 1
                reply = self._line(timeout_s)
            except (OSError, ValueError):
                reply = None
            if reply is None:
                self.close()
                return None
        return bool(json.loads(reply)["correct"])

    def _ready(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none, if it died, if it is another's (a fork), or if it is due for renewal."""
        if self._owner != os.getpid():
            self._process, self._owner = None, os.getpid()
        if self._process is not None and (self._process.poll() is not None or self._answers >= ANSWERS_PER_PROCESS):
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "exgrpo.math_verify_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._answers = 0
            if self._line(START_TIMEOUT_S) is None:
                raise OSError("the Math-Verify process did not start")
        return self._process

    def _line(self, timeout_s: float) -> bytes | None:
        """The next line of the process; None if it does not come in time."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline, received = time.monotonic() + timeout_s, b""
        while not received.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(descriptor, 65536) if ready else b""
            if not chunk:
                return None
            received += chunk
        return received

    def close(self) -> None:
        """End the process, if it is ours."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:  # what it would have flushed has no reader any more
                        pass
        self._process = None


_VERIFIER = _Verifier()
atexit.register(_VERIFIER.close)
