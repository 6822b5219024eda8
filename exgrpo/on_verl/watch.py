"""What a step waits for is watched: who dies or hangs ends the run in one line, instead of never.

verl's trainer waits without a limit for the queue, for rollouts and for its workers. A thread of
its process asks all Ray actors of the run, the engines and the queue every `LOOK_S` seconds:

- one that has died, or is on a node that is gone, ends the run at once;
- so does a queue that gives no answer for `ANSWER_S` seconds, but in a save, in which it may
  write itself. Other actors may be busy;
- they are named when the step has come no further for too long (`Watch.limit`).

The thread interrupts the trainer, whose error goes to the command by verl's own way; should the
trainer's process still be there `END_S` later, it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import psutil
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from exgrpo.on_verl import checkpoints, queue, seals
from exgrpo.on_verl.task_runner import Lost

LOOK_S, REPLY_S, ANSWER_S, END_S = 10.0, 5.0, 35.0, 30.0
# without trainer.rollout_patience_s
AT_LEAST_S, FIRST_S, TIMES = 1800.0, 7200.0, 10
ROLLOUTS, SAVE = "rollouts", "the save"
# functions of verl's trainer, the innermost that runs -> what the step waits for in it
PARTS = {
    "sample": ROLLOUTS,
    "wait_for_sampleable": ROLLOUTS,
    "_compute_old_log_prob": "log-probs",
    "_compute_ref_log_prob": "log-probs of the reference",
    "_balance_batch": "scores of candidates",
    "_update_critic": "the critic's update",
    "_update_actor": "the update",
    "_save_checkpoint": SAVE,
    "update_weights": "the engine's new weights",
}
# in Ray's names of verl's actors
KINDS = {
    queue.CONTROLLER: "the queue's controller",
    queue.STORAGE: "a storage unit of the queue",
    "agent_loop_worker": "an agent-loop worker",
    "reward_loop_worker": "a reward worker",
    "vllm_server": "a rollout server",
    "WorkerDict": "a worker of the actor",
}
ENGINE = "engine of "
logger = logging.getLogger(__name__)


class WatchedTrainer(PPOTrainer):
    """verl's trainer under a watch."""

    def fit(self, agent_loop_manager: Any) -> None:
        """verl's: all validations and steps."""
        keys = self.config.trainer
        root, patience = Path(keys.default_local_dir), keys.rollout_patience_s
        with Watch(lambda: (self.global_steps, self.local_trigger_step), root, patience):
            super().fit(agent_loop_manager)


class Watch:
    """A context around the training; raises `Lost` in it.

    Args:
        place: the step and the update in it.
        root: the folder of checkpoints.
        patience_s: ``trainer.rollout_patience_s``.
    """

    def __init__(
        self, place: Callable[[], tuple[int, int]], root: Path, patience_s: float | None
    ) -> None:
        self._place, self._root, self._patience = place, root, patience_s
        self._over = threading.Event()
        self._line: str | None = None
        self._actors = {name: ray.get_actor(name, space) for name, space in queue.actors_of_run()}
        self._asked: dict[str, tuple[Any, float]] = {}  # name -> answer to come, since when
        self._processes: dict[str, psutil.Process] = {}  # of the actors on this node
        self._node = ray.get_runtime_context().get_node_id()
        self._at: tuple[Any, ...] = ()
        self._since, self._has_stepped = time.monotonic(), False
        self._finished: set[str] = set()
        self._longest: dict[str, float] = {}

    def __enter__(self) -> Watch:
        self._who_died()  # so that the processes are known
        self._trainer = threading.get_ident()
        signal.signal(signal.SIGUSR1, self._interrupt)
        threading.Thread(target=self._look, daemon=True, name="watch").start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        # whatever an error says, if somebody has died it is for that
        if isinstance(error, Exception) and (gone := self._who_died()):
            traceback.print_exception(error)
            met = [frame for frame, _ in traceback.walk_tb(trace)]
            self._line = self._told(gone, part_of(reversed(met)))
        if self._line:
            self._kill()
            raise Lost(self._line) from None

    def limit(self, part: str) -> float:
        """How long a part of a step may go on without a sign: a rollout, or the part's end, in s.

        `TIMES` what it has taken so far, in steps or between two rollouts, and at least
        `AT_LEAST_S`; `FIRST_S` before a step has ended. The key is exact for rollouts, and replaces
        `AT_LEAST_S` for all else.
        """
        if part == ROLLOUTS and self._patience:
            return self._patience
        if part not in self._longest and not self._has_stepped:
            return FIRST_S
        return max(self._patience or AT_LEAST_S, TIMES * self._longest.get(part, 0))

    # -- the thread ------------------------------------------------------------------------------

    def _look(self) -> None:
        loop = asyncio.new_event_loop()
        while not self._over.wait(LOOK_S):
            try:
                lost = self._who_died() or loop.run_until_complete(self._stands_still())
            except Exception:  # a watch that fails ends no training
                logger.warning("the watch could not look", exc_info=True)
                continue
            if lost and not self._over.is_set():
                self._end(lost)

    def _end(self, lost: str) -> None:
        self._line = self._told(lost, self._part())
        signal.pthread_kill(self._trainer, signal.SIGUSR1)
        time.sleep(END_S)  # the process ends meanwhile
        print(f"exgrpo: {self._line}", file=sys.stderr, flush=True)
        os._exit(1)

    def _kill(self) -> None:
        """End the actors of this node and what they have started; a stopped process notices no end
        of a run.
        """
        for actor in self._processes.values():
            with contextlib.suppress(psutil.Error):
                for process in [*actor.children(recursive=True), actor]:
                    process.kill()

    def _interrupt(self, *_: object) -> None:
        """Ends the trainer's wait; of the exceptions that a handler raises Ray's own waits let
        this one through.
        """
        if not self._over.is_set():
            raise KeyboardInterrupt

    def _who_died(self) -> str | None:
        """Ask all that have no question open; who has died, as far as the answers say so."""

        def process(_: Any) -> tuple[str, int]:  # within: by its name it would be imported there
            return ray.get_runtime_context().get_node_id(), os.getpid()

        now = time.monotonic()
        for name, actor in self._actors.items():
            if name not in self._asked:
                self._asked[name] = actor.__ray_call__.remote(process), now
            engine = f"{ENGINE}{name}"
            if name.startswith("vllm_server") and engine not in self._asked:
                self._asked[engine] = actor.collective_rpc.remote("check_health"), now
        asked = [answer for answer, _ in self._asked.values()]
        answers, _ = ray.wait(asked, num_returns=len(asked), timeout=REPLY_S)
        for name, (answer, _) in list(self._asked.items()):
            if answer in answers:
                del self._asked[name]
                try:
                    told = ray.get(answer)
                    if told and name not in self._processes and told[0] == self._node:
                        self._processes[name] = psutil.Process(told[1])
                except ActorUnavailableError:
                    continue  # Ray tries again
                except RayActorError as error:
                    gone = ", its node is gone" if "node has died" in str(error) else ""
                    return f"{described(name)} has died{gone}"
                except RayTaskError as error:
                    if "EngineDeadError" in str(error):
                        return f"{described(name)} has died"
        return None

    async def _stands_still(self) -> str | None:
        """Who does not answer, or what has not come, for longer than it may."""
        part = self._part()
        # a queue that writes itself into a checkpoint answers nobody
        answer_s = self.limit(part) if part == SAVE else ANSWER_S
        for name, (_, since) in self._asked.items():
            waited = time.monotonic() - since
            if waited > answer_s and name.startswith((queue.CONTROLLER, queue.STORAGE)):
                return f"{described(name)} has not answered for {waited:.0f} s"
        try:
            finished, out = await asyncio.wait_for(queue.rollouts(), answer_s)
        except TimeoutError:
            return f"{described(queue.CONTROLLER)} has not answered for {answer_s:.0f} s"
        part, now = self._part(), time.monotonic()
        at, waited = (part, *self._place()), now - self._since
        new = part == ROLLOUTS and not finished <= self._finished
        self._finished = finished
        if at != self._at or new:
            if self._at:
                self._has_stepped |= at[1] > self._at[1] > 0
                before = self._at[0]
                self._longest[before] = max(waited, self._longest.get(before, 0))
            self._at, self._since = at, now
        elif waited > self.limit(part):
            silent = [described(name) for name, (_, since) in self._asked.items() if since < now]
            who = ", ".join(silent) or "all actors answer"
            what = f"no rollout has finished for {waited:.0f} s, {out} prompts are out"
            if part != ROLLOUTS:
                what = f"{part or 'a part of the step'} has not ended for {waited:.0f} s"
            return f"{what} ({who}{' does not answer' if silent else ''})"
        return None

    def _part(self) -> str:
        """What the trainer waits for."""
        frame = sys._current_frames().get(self._trainer)
        return part_of(each for each, _ in traceback.walk_stack(frame))

    def _told(self, lost: str, part: str) -> str:
        """The line: what is lost, when, what is saved, how it goes on."""
        return f"{lost}; in step {self._place()[0]}{part and ', at '}{part}. {saved(self._root)}"


def part_of(frames: Iterable[FrameType]) -> str:
    """What a step waits for in these frames, the innermost first; empty if `PARTS` has none."""
    names = (frame.f_code.co_name for frame in frames)
    return next((PARTS[name] for name in names if name in PARTS), "")


def described(name: str) -> str:
    """What an actor, or the engine of one, is in a run."""
    if name.startswith(ENGINE):
        return f"the {name}"
    kind = next((kind for part, kind in KINDS.items() if part in name), "a worker")
    return f"{kind} ({name})"


def saved(root: Path) -> str:
    """What of the run is saved, and how it goes on."""
    folders = [checkpoints.step_folder(root, step) for step in checkpoints.candidates(root)]
    whole = next((folder for folder in folders if (folder / seals.SEAL).exists()), None)
    if whole is None:
        return "Nothing is saved yet; the same command begins anew"
    return f"{whole} is saved; the same command goes on from there"
