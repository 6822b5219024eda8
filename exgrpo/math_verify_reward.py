"""Verifiable reward by Math-Verify, as a verl custom reward function: 1 for a right answer, 0 for everything else.

    reward.custom_reward_function.path=pkg://exgrpo.math_verify_reward
    reward.custom_reward_function.name=compute_score
    reward.custom_reward_function.reward_kwargs.require_think=True

verl calls reward functions from a thread of a Ray actor, where the signals that Math-Verify's own time limits need do
not work, and where an answer that hangs would hang the run. So the verdict is made in a process of its own, one each,
killed when an answer takes too long and replaced every few thousand answers, since SymPy's caches only grow.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from exgrpo.gold_answers import latex_forms

STRICT, FULL = GRADERS = ("strict", "full")
FULL_GRADER = ("full grader", ("-m", "exgrpo.grading.worker"))  # name and start of its process, for a Verifier
THINK_END = "</think>"
MAX_CHARACTERS = 20_000  # of an answer, counted from its end: where answers stand; parsing is not linear in the length
ANSWERS_PER_PROCESS = 5_000
START_TIMEOUT_S = 120.0  # importing SymPy on a busy machine
_logger = logging.getLogger(__name__)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    require_think: bool = True,
    timeout_s: float = 5.0,
    grader: str = STRICT,
    **_: Any,
) -> dict[str, float]:
    """Whether ``solution_str`` ends in the answer ``ground_truth``; never raises, whatever the arguments.

    Args:
        data_source, extra_info: verl passes them; unused.
        ground_truth: LaTeX of the right answer, with or without its dollars.
        solution_str: the response. The prompt's own ``<think>\\n`` may stand before it or not, the verdict is the same.
        require_think: what counts is what follows the first </think>, up to a second one if there is, and without one
            the answer is wrong (version 3 of the released rewards, its script's); else the whole response (version 4).
        timeout_s: seconds for this answer once its turn has come (the threads of a caller share one process, which
            takes up to START_TIMEOUT_S to start); one that takes longer is wrong.
        grader: ``strict``, Math-Verify alone; or ``full``, which judges what that rejects by rules (docs/grading.md).
        **_: verl passes the address and the tokenizer of a reward model where there is one; unused.

    Returns:
        ``score`` and ``acc``, both 1.0 or 0.0, and ``timed_out``, 1.0 where there was no verdict in time, or at all.
    """
    try:
        answer = judged_part(str(solution_str), require_think)
        gold = () if ground_truth is None else latex_forms(str(ground_truth))
        if not gold or not answer:
            return _verdict(False)
        reply = _VERIFIERS[grader].judge(gold, answer, timeout_s, timeout_s)
        return _verdict(reply is not None and is_right(reply, grader), timed_out=reply is None)
    except Exception:  # a reward that raises ends the run
        _logger.exception("no verdict, counted as a wrong answer")
        return _verdict(False)


def is_right(reply: dict[str, Any], grader: str) -> bool:
    """What a reply says by one of the GRADERS; by the full one an answer is right where a rule is named."""
    return bool(reply["correct"]) if grader == STRICT else reply["rule"] is not None


def judged_part(response: str, require_think: bool) -> str:
    """What of a response counts, at most MAX_CHARACTERS from its end; empty where nothing does."""
    if require_think:
        _thought, closed, solution = response.partition(THINK_END)
        if not closed:
            return ""
        response = solution.partition(THINK_END)[0]
    return response[-MAX_CHARACTERS:] if response.strip() else ""


def _verdict(correct: bool, timed_out: bool = False) -> dict[str, float]:
    return {"score": float(correct), "acc": float(correct), "timed_out": float(timed_out)}


class Verifier:
    """A process that judges answers, started when needed, and the right to speak to it; for any number of threads."""

    def __init__(self, name: str = "Math-Verify", worker: Sequence[str] = ("-m", "exgrpo.math_verify_worker")) -> None:
        """Args: worker: the interpreter's arguments that start the process, see exgrpo.math_verify_worker.serve."""
        self._name = name
        self._worker = worker
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._answers = 0

    def start(self) -> None:
        """Start the process now; OSError if it does not start."""
        with self._lock:
            self._make_ready()

    def judge(self, gold: Sequence[str], answer: str, timeout_s: float, cpu_s: float) -> dict[str, Any] | None:
        """The process's reply; None where the answer took too long, or killed the process it was judged in.

        Args:
            gold: LaTeX of the right answer, in as many forms as there are.
            timeout_s: seconds on the clock.
            cpu_s: seconds of computing; the same whatever else the machine does.
        """
        request = {"gold": list(gold), "answer": answer, "limit_s": timeout_s, "cpu_s": cpu_s}
        with self._lock:
            reply = None
            try:
                self._make_ready()
                self._answers += 1
                deadline = time.monotonic() + timeout_s
                if self._send(json.dumps(request).encode() + b"\n", deadline):
                    reply = self._line(deadline)
            except (OSError, ValueError):  # it cannot be started, or has just died
                _logger.exception(f"no {self._name} process, the answer counts as wrong")
            if reply is None:
                self.close()
                return None
        verdict: dict[str, Any] = json.loads(reply)
        return verdict

    def _make_ready(self) -> None:
        """Start a process if there is none, if it died, or if it is due for renewal; OSError if it does not start."""
        if self._process is not None and (self._process.poll() is not None or self._answers >= ANSWERS_PER_PROCESS):
            self.close()
        if self._process is not None:
            return
        command = [sys.executable, *self._worker]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._owner, self._answers = os.getpid(), 0
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # a process that stopped reading must not stop us
        if self._line(time.monotonic() + START_TIMEOUT_S) is None:
            raise OSError(f"the {self._name} process did not start")

    def _send(self, request: bytes, deadline: float) -> bool:
        """Write ``request`` to the process; False if it does not take all of it in time."""
        assert self._process is not None and self._process.stdin is not None
        descriptor, rest = self._process.stdin.fileno(), memoryview(request)
        while rest and _wait(descriptor, select.POLLOUT, deadline):
            rest = rest[os.write(descriptor, rest) :]
        return not rest

    def _line(self, deadline: float) -> bytes | None:
        """The next line of the process; None if it does not come in time, or the process ended."""
        assert self._process is not None and self._process.stdout is not None
        descriptor, received = self._process.stdout.fileno(), b""
        while not received.endswith(b"\n"):
            chunk = os.read(descriptor, 65536) if _wait(descriptor, select.POLLIN, deadline) else b""
            if not chunk:
                return None
            received += chunk
        return received

    def forget(self) -> None:
        """In the child of a fork: the process is the parent's, and the lock may be held by a thread not forked."""
        self._process, self._lock = None, threading.Lock()

    def close(self) -> None:
        """End the process, if it is ours."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what it would have flushed has no reader any more
                        pipe.close()
        self._process = None


def _wait(descriptor: int, event: int, deadline: float) -> bool:
    """Whether ``descriptor`` is ready for ``event`` before ``deadline``, in seconds of the monotonic clock."""
    poll = select.poll()  # not select(), which takes no descriptor above 1,023
    poll.register(descriptor, event)
    return bool(poll.poll(max(deadline - time.monotonic(), 0) * 1_000))


_VERIFIER = Verifier()
_VERIFIERS = {STRICT: _VERIFIER, FULL: Verifier(*FULL_GRADER)}
for _each in _VERIFIERS.values():
    atexit.register(_each.close)
    os.register_at_fork(after_in_child=_each.forget)
