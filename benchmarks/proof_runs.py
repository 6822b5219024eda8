"""Used by the stages of benchmarks/gpu_proof.py: commands, trainings that can be killed, their
metrics.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import runs
from common import ROOT, OutOfTime, die_with_parent, environment_of

from exgrpo.overrides import override


def environment(stack: str) -> dict[str, str]:
    """The environment of all processes that are started here; vLLM says in it which of its parts it
    takes.
    """
    # on a GPU vLLM's sampler assumes FlashInfer and fails at the first request without it
    sampler = {} if importlib.util.find_spec("flashinfer") else {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    said = {"VLLM_LOGGING_LEVEL": "INFO"}
    return {**os.environ, **environment_of(stack), **sampler, **said, "PYTHON": sys.executable}


def own_tmp(stack: str) -> list[str]:
    """Before a command on a GPU: a /tmp of its own, where the sockets of verl 0.9.1 have one name
    for all runs.
    """
    if stack == "cpu" or os.geteuid() != 0:
        return []
    return ["unshare", "-m", "bash", "-c", 'mount -t tmpfs tmpfs /tmp && exec "$@"', "bash"]


def finished(stack: str, command: list[str], folder: Path, ends: float) -> None:
    """Run a command, appending its output to ``folder/output.log``.

    Raises:
        OutOfTime: the clock shows ``ends``.
        RuntimeError: it failed; with the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "output.log", "a") as log:
        process = subprocess.Popen(
            [*own_tmp(stack), *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(stack),
            preexec_fn=die_with_parent,
        )
        try:
            code = process.wait(timeout=max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its own children
            process.wait()
            raise OutOfTime(f"time was up; {folder}/output.log") from None
    if code:
        raise RuntimeError(
            "\n".join((folder / "output.log").read_text(errors="replace").splitlines()[-12:])
        )


def engine(log: Path) -> dict[str, str]:
    """Which of its parts vLLM took, from what it logged; without a log, nothing."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    if "vllm" not in text.lower():
        return {}
    attention = re.search(r"Using (\w+) attention backend", text)
    instead = re.search(r"(Model Runner V2 [^;\n]*); using the V1", text)
    runner = "V2" if "Using V2 Model Runner" in text else f"V1 ({instead[1]})" if instead else "V1"
    sampler = (
        "FlashInfer's" if "Using FlashInfer for top-p & top-k sampling" in text else "vLLM's own"
    )
    return {
        "vLLM's model runner": runner,
        "vLLM's attention": attention[1] if attention else "not in its log, as on a CPU",
        "vLLM's sampler": sampler,
    }


class Training:
    """A run of the quickstart, in its own process group; anything left of it is killed when the
    block ends.
    """

    def __init__(
        self, stack: str, folder: Path, name: str, overrides: Sequence[str], stock: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{name}.jsonl"
        self.dump = folder / f"dump-{name}"
        self.log = folder / f"{name}.log"
        if stock:  # verl's own command, with nothing of ours but what its overrides name
            config = ["--config-dir", str(ROOT / "exgrpo" / "config"), f"+stack={stack}"]
            command = ["verl.trainer.main_ppo", *config, *overrides]
        else:
            ours = [
                *runs.quickstart(folder, stack),
                override("trainer.rollout_data_dir", self.dump),
            ]
            command = ["exgrpo.main_mix_ppo", *ours, *overrides]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*own_tmp(stack), sys.executable, "-m", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(stack) | {"VERL_FILE_LOGGER_PATH": str(self.file)},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def until(self, step: int, ends: float) -> None:
        """Return when the step is logged; RuntimeError if the run ends before that, OutOfTime when
        time runs out.
        """
        while (last := max([0, *self.metrics()])) < step:
            if self.process.poll() is not None:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
                raise RuntimeError(f"{tail}\nended before step {step}; {self.log}")
            if time.monotonic() > ends:
                raise OutOfTime(f"time was up at step {last} of {step}; {self.log}")
            time.sleep(0.1)

    def while_there_is_no(self, path: Path, ends: float) -> None:
        """Return once the path exists; as `until`, if the run ends before that, or time
        runs out.
        """
        while not path.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"ended before there was {path}; {self.log}")
            if time.monotonic() > ends:
                raise OutOfTime(f"time was up before there was {path}; {self.log}")
            time.sleep(0.01)

    def end(self, ends: float) -> int | None:
        """The exit code; None when time runs out."""
        try:
            return self.process.wait(timeout=max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def metrics(self) -> dict[int, dict[str, float]]:
        """step -> metrics, of the steps written so far."""
        lines = self.file.read_text().split("\n")[:-1] if self.file.exists() else []
        return {entry["step"]: entry["data"] for entry in map(json.loads, lines)}

    def drawn(self, step: int) -> tuple[dict[str, str], dict[str, str]]:
        """uid -> prompt, and key -> response, of a step's rows."""
        rows = [json.loads(line) for line in (self.dump / f"{step}.jsonl").read_text().splitlines()]
        prompts = {row["uid"].split("_")[0]: row["input"] for row in rows}
        return prompts, {row["uid"]: row["output"] for row in rows}


def contents(folder: Path) -> dict[str, bytes]:
    """Path -> bytes of every file below the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def accuracies(steps: dict[int, dict[str, float]]) -> dict[int, float]:
    """step -> test accuracy, of the steps that were tested."""
    found = {}
    for step, values in sorted(steps.items()):
        of_test = [
            value
            for name, value in values.items()
            if name.startswith("val-core/") and "/acc/mean@" in name
        ]
        if of_test:
            found[step] = of_test[0]
    return found


def agreement(steps: dict[int, dict[str, float]]) -> dict[str, float]:
    """Agreement of vLLM's log-probs with the actor's, and the actor's memory; over all steps."""
    names = {
        "probability, vLLM - actor: mean of means": ("training/rollout_probs_diff_mean", "mean"),
        "probability, vLLM - actor: maximum": ("training/rollout_probs_diff_max", "max"),
        "log-perplexity, vLLM - actor: mean": ("rollout_corr/log_ppl_abs_diff", "mean"),
        "log-perplexity, vLLM - actor: maximum": ("rollout_corr/log_ppl_abs_diff", "max"),
        "actor's peak memory, GiB": ("actor/perf/max_memory_allocated_gb", "max"),
        "actor's peak reserved memory, GiB": ("actor/perf/max_memory_reserved_gb", "max"),
        "gradient norm, mean": ("actor/grad_norm", "mean"),
        "verl's mfu of the update, mean": ("perf/mfu/actor", "mean"),
        "seconds a step, mean": ("timing_s/step", "mean"),
    }
    figures: dict[str, float] = {}
    for words, (metric, how) in names.items():
        values = [entry[metric] for entry in steps.values() if metric in entry]
        if values:
            figures[words] = max(values) if how == "max" else sum(values) / len(values)
    return figures
