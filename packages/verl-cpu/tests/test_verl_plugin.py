"""The entry points: loaded where verl is, silent where nobody asks, one line where they fail."""

import os
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_module

PLATFORM = "verl_cpu.platform_cpu"  # imported by the plug-in alone
REPORT = """
import importlib.metadata as m, sys
real = m.version
import verl
from verl.utils import torch_functional
from verl.plugin.platform.platform_manager import PlatformRegistry
replaced = hasattr(torch_functional.logprobs_from_logits_v2, "__wrapped__")
registered, loaded = "cpu" in PlatformRegistry.registered_names(), "verl_cpu.plugin" in sys.modules
print(registered, m.version is real, replaced, loaded)
"""


def fresh(code, *, blocked=None, **environment):
    """A fresh process, without one module if `blocked` names it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    block = "" if blocked is None else f"import sys\nsys.modules[{blocked!r}] = None\n"
    command = [sys.executable, "-c", block + code]
    return subprocess.run(
        command, env=env | environment, capture_output=True, text=True, timeout=120
    )


def last_line(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_it_is_loaded_and_leaves_verl_as_it_was():
    # loaded (verl swallows import errors at DEBUG), and nothing registered, patched or imported by
    # it
    assert last_line(fresh(REPORT)) == "False True False True"


def test_it_brings_the_cpu_platform_where_it_is_asked_for():
    assert last_line(fresh("import verl\n" + REPORT, VERL_PLATFORM="cpu")).startswith("True ")


def test_a_failure_that_verl_would_swallow_ends_the_process_in_one_line():
    done = fresh("import verl", blocked=PLATFORM, VERL_PLATFORM="cpu")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("verl_cpu")]
    assert line.startswith("verl_cpu: VERL_PLATFORM=cpu: verl's CPU platform cannot be loaded: Mod")
    assert PLATFORM in line and done.returncode == 1 and done.stderr.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "stack=cpu needs VERL_PLATFORM=cpu in the environment"),
        (
            {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_PLUGINS": "mine"},
            "VERL_USE_EXTERNAL_PLUGINS=mine: must be auto or name verl_cpu",
        ),
    ],
)
def test_a_stack_without_its_platform_is_one_line(environment, reason):
    code = "from verl_cpu.prepared_workers import PreparedWorkers as P\nP().on_run_start(None)"
    done = fresh(code, **environment)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, [f"verl_cpu: {reason}"])


def test_verls_program_takes_the_stack_by_its_name():
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", ["+stack=cpu"], return_hydra_config=True)
    assert config.trainer.device == "cpu" and config.actor_rollout_ref.actor.strategy == "fsdp2"
    assert (
        config.hydra.callbacks.verl_cpu["_target_"] == "verl_cpu.prepared_workers.PreparedWorkers"
    )
