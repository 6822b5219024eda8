"""Reward by Math-Verify, as a verl custom reward function: 1 for a correct answer, else 0.

    reward.custom_reward_function.path=pkg://exgrpo.math_verify_reward
    reward.custom_reward_function.name=compute_score
    reward.custom_reward_function.reward_kwargs.require_think=True

verl calls reward functions from a thread of a Ray actor. Math-Verify's own time limits need
signals, which do not work there, and an answer that hangs would hang the run. So each actor judges
answers in a separate process, which is killed when an answer takes too long and replaced every few
thousand answers, since SymPy's caches only grow. A spare one, about 100 MB, stands ready.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from exgrpo import full_grader
from exgrpo.gold_answers import golds_of, latex_forms

STRICT, FULL = GRADERS = ("strict", "full")
FULL_GRADER = ("full grader", ("-m", "exgrpo.full_grader"))  # the arguments of its Verifier
THINK_END = "</think>"
MAX_CHARACTERS = 20_000  # the last ones of an answer are judged: parsing is slower than linear
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
) -> dict[str, Any]:
    """Whether ``solution_str`` ends in the answer ``ground_truth``.

    Args:
        data_source, extra_info, **_: passed by verl; unused.
        ground_truth: LaTeX of the correct answer, with or without its dollars; or several, each of
            which counts.
        solution_str: the response; the prompt's own ``<think>\\n`` before it makes no difference.
        require_think: if True, the text after the first </think>, up to a second one if there is,
            is judged, and a response without </think> is wrong (version 3 of the released rewards,
            the one its script uses); if False, the whole response is judged (version 4).
        timeout_s: seconds for this answer, not counting the wait for its turn (the threads of a
            caller share one process, which takes up to START_TIMEOUT_S to start); an answer that
            takes longer is wrong.
        grader: ``strict``, Math-Verify alone; or ``full``, which also judges by rules what
            Math-Verify rejects (docs/grading.md), if math-verify-rules is installed.

    Returns:
        ``score`` and ``acc``, both 1.0 or 0.0, and ``timed_out``, 1.0 if there was no verdict in
        time, or none at all; with ``full`` also ``rule``, the name of what accepted the answer,
        empty for a wrong one.

    Raises:
        ValueError: `grader` is full and its package is not installed: every answer would count as
            wrong. Nothing else raises, for any arguments.
    """
    if grader == FULL:
        full_grader.package()
    try:
        answer = judged_part(str(solution_str), require_think)
        verdict = _verdict(grader)
        for gold in filter(None, map(latex_forms, golds_of(ground_truth) if answer else ())):
            reply = _VERIFIERS[grader].judge(gold, answer, timeout_s, timeout_s)
            verdict = _verdict(grader, reply, timed_out=reply is None or verdict["timed_out"] > 0)
            if verdict["score"]:
                break
        return verdict
    except Exception:  # a reward that raises ends the run
        _logger.exception("no verdict, counted as a wrong answer")
        return _verdict(grader)


def close() -> None:
    """End the processes that judge for `compute_score`; a later call starts others."""
    for verifier in _VERIFIERS.values():
        verifier.close()


def is_right(reply: dict[str, Any], grader: str) -> bool:
    """The verdict of a reply by one of the GRADERS; the full one names a rule if it is right."""
    return bool(reply["correct"]) if grader == STRICT else reply["rule"] is not None


def judged_part(response: str, require_think: bool) -> str:
    """The part of a response that is judged, at most its last MAX_CHARACTERS; may be empty."""
    if require_think:
        _thought, closed, solution = response.partition(THINK_END)
        if not closed:
            return ""
        response = solution.partition(THINK_END)[0]
    return response[-MAX_CHARACTERS:] if response.strip() else ""


def _verdict(
    grader: str, reply: dict[str, Any] | None = None, timed_out: bool = False
) -> dict[str, Any]:
    correct = float(reply is not None and is_right(reply, grader))
    rule = {"rule": (reply or {}).get("rule") or ""} if grader == FULL else {}
    return {"score": correct, "acc": correct, "timed_out": float(timed_out), **rule}


class Verifier:
    """A process that judges answers, and a spare one; safe for any number of threads.

    An answer that takes too long ends the first; the spare one, whose imports are done, takes its
    place, and the next spare one starts while answers are judged. Both start when needed.
    """

    def __init__(
        self, name: str = "Math-Verify", worker: Sequence[str] = ("-m", "exgrpo.math_verify_worker")
    ) -> None:
        """Args: worker: arguments of the interpreter that start the process, see
        exgrpo.math_verify_worker.serve.
        """
        self._name = name
        self._worker = worker
        self._lock = threading.Lock()
        self._judging: _Process | None = None
        self._spare: _Process | None = None
        self._owner = 0

    @property
    def _process(self) -> subprocess.Popen[bytes] | None:
        return None if self._judging is None else self._judging.process

    def start(self) -> None:
        """Start the process now; OSError if it does not start."""
        with self._lock:
            self._make_ready()

    def judge(
        self, gold: Sequence[str], answer: str, timeout_s: float, cpu_s: float
    ) -> dict[str, Any] | None:
        """The process's reply; None if the answer took too long or crashed the process.

        Args:
            gold: LaTeX of the correct answer, in all its forms.
            timeout_s: limit in seconds of wall-clock time.
            cpu_s: limit in seconds of CPU time, which does not depend on the machine's load.
        """
        request = {"gold": list(gold), "answer": answer, "limit_s": timeout_s, "cpu_s": cpu_s}
        with self._lock:
            reply = None
            try:
                judging = self._make_ready()
                judging.answers += 1
                reply = self._ask(json.dumps(request).encode() + b"\n", timeout_s)
                if reply is None or judging.answers == ANSWERS_PER_PROCESS:
                    judging.end()
                    self._judging, self._spare = self._spare, None
                if self._spare is None:
                    self._spare = _Process(self._worker)
            except (OSError, ValueError):  # the process could not be started, or has just died
                lost = ", the answer counts as wrong" if reply is None else ""
                _logger.exception(f"no {self._name} process{lost}")
                self.close()
        return None if reply is None else json.loads(reply)

    def _make_ready(self) -> _Process:
        """Have a process that judges; may raise OSError."""
        self._owner = os.getpid()
        if self._judging is None or self._judging.process.poll() is not None:
            if self._judging is not None:
                self._judging.end()
            self._judging, self._spare = self._spare or _Process(self._worker), None
        if not self._judging.is_ready:
            if self._ask(b"", START_TIMEOUT_S) is None:
                raise OSError(f"the {self._name} process did not start")
            self._judging.is_ready = True
        return self._judging

    def _ask(self, request: bytes, timeout_s: float) -> bytes | None:
        """The process's next line; None if it does not arrive in time, or the process ended."""
        return None if self._judging is None else self._judging.ask(request, timeout_s)

    def forget(self) -> None:
        """For a forked child: processes are the parent's, and the lock may be held for ever."""
        for process in filter(None, (self._judging, self._spare)):
            process.socket.close()
        self._judging, self._spare, self._lock = None, None, threading.Lock()

    def close(self) -> None:
        """End the processes, if they are ours."""
        if self._owner == os.getpid():
            for process in filter(None, (self._judging, self._spare)):
                process.end()
        self._judging = self._spare = None


class _Process:
    """One process, started without waiting for its imports. Its maker may see an OSError."""

    def __init__(self, worker: Sequence[str]) -> None:
        self.socket, other = socket.socketpair()  # its standard input and output
        self.is_ready, self.answers = False, 0
        with other:
            end = other.fileno()
            command = [sys.executable, *worker]
            self.process = subprocess.Popen(command, stdin=end, stdout=end, process_group=0)

    def ask(self, request: bytes, timeout_s: float) -> bytes | None:
        deadline, received = time.monotonic() + timeout_s, b""
        try:
            self.socket.settimeout(max(timeout_s, 0))
            self.socket.sendall(request)
            while not received.endswith(b"\n"):
                self.socket.settimeout(max(deadline - time.monotonic(), 0))
                chunk = self.socket.recv(65536)
                if not chunk:
                    return None
                received += chunk
        except (TimeoutError, BlockingIOError, ConnectionResetError, BrokenPipeError):
            return None
        return received

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()


_VERIFIER = Verifier()
_VERIFIERS = {STRICT: _VERIFIER, FULL: Verifier(*FULL_GRADER)}
for _verifier in _VERIFIERS.values():
    atexit.register(_verifier.close)
    os.register_at_fork(after_in_child=_verifier.forget)
