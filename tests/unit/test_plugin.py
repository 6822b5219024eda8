"""The entry point of verl's plug-ins: loaded where verl is, silent where nobody asks, and loud where it fails."""

import json
import os
import sys

import pandas as pd
import watched
from source_code import ROOT

PLATFORM = "exgrpo.on_verl.cpu.platform_cpu"  # imported by the plug-in alone
BASE_MODEL = ROOT / "exp_scripts" / "quickstart" / "base_model"
MISSING = "VERL_PLATFORM=cpu: verl has not loaded exgrpo.plugin"


def fresh(code, *, blocked=None, **environment):
    """A fresh process that imports verl first of all, without one module if `blocked` names it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")} | environment
    block = "" if blocked is None else f"import sys\nsys.modules[{blocked!r}] = None\n"
    return watched.run([sys.executable, "-c", block + code], env=env)


def last_line(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def ours(done):
    """The lines of stderr that are of exgrpo."""
    return [line for line in done.stderr.splitlines() if line.startswith("exgrpo")]


REPORT = """
import importlib.metadata as m, sys
real = m.version
import verl
from verl.plugin.platform.platform_manager import PlatformRegistry
names = PlatformRegistry.registered_names()
print("cpu" in names, m.version is real, "exgrpo.plugin" in sys.modules, "exgrpo.mix_trainer_experience" in sys.modules)
"""
VERIFY = "from exgrpo.main_mix_ppo import verify_plugin\nverify_plugin()\n"
REASONS = """
import exgrpo.main_mix_ppo as command
for command.entry_points in (command.entry_points, lambda group: ()):  # as they are; none, as if not installed
    try:
        command.verify_plugin()
    except ValueError as error:
        print(error)
"""
COMMAND = """
import runpy, sys
sys.argv[1:] = {}
runpy.run_module("exgrpo.main_mix_ppo", run_name="__main__")
"""


def test_a_configuration_is_printed_without_an_import_of_verl_or_torch():
    done = fresh(COMMAND.format(["--cfg", "job"]) + "print(sorted({'hydra', 'torch', 'verl', 'ray'} & {*sys.modules}))")
    assert last_line(done) == "['hydra']" and "experience_ratio: 0.5" in done.stdout
    assert "ppo_max_token_len_per_gpu" in done.stdout  # verl's part


def test_the_entry_point_loads_and_leaves_plain_verl_as_it_was():
    # loaded (verl swallows import errors at DEBUG), and nothing registered, patched or imported by it
    assert last_line(fresh(REPORT)) == "False True True False"


def test_the_entry_point_brings_the_cpu_platform_where_it_is_asked_for():
    done = fresh(VERIFY + REPORT, VERL_PLATFORM="cpu")  # verify_plugin first: it is what imports verl
    assert last_line(done).startswith("True ") and last_line(done).endswith(" True False") and ours(done) == []


def test_where_nobody_asks_for_the_platform_the_command_does_not_import_verl():
    assert last_line(fresh(VERIFY + "import sys\nprint('verl' in sys.modules)")) == "False"


def test_a_failure_that_verl_swallows_is_loud_and_stops_the_command(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"q{i}"}], "data_source": "t"} for i in range(8)]
    pd.DataFrame(rows).to_parquet(tmp_path / "data.parquet")
    overrides = [
        "stack=cpu",
        f"data.train_files={tmp_path}/data.parquet",
        f"data.val_files={tmp_path}/data.parquet",
        "data.train_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=64",
        "reward.custom_reward_function.reward_kwargs.require_think=False",
        f"actor_rollout_ref.model.path={BASE_MODEL}",
        "actor_rollout_ref.rollout.n=2",
        f"trainer.default_local_dir={tmp_path}",
    ]
    done = fresh(COMMAND.format(overrides), blocked=PLATFORM, VERL_PLATFORM="cpu")
    swallowed, stopped = ours(done)
    assert swallowed.startswith("exgrpo: VERL_PLATFORM=cpu: verl's CPU platform is not loaded: ModuleNotFoundError: ")
    assert PLATFORM in swallowed and swallowed.endswith("setup_cpu.sh installs the versions it is made for")
    assert stopped == f"exgrpo: {MISSING}: its import failed, a line above says why"
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == stopped


def test_the_command_says_why_verl_is_without_the_plugin():
    done = fresh(REASONS, VERL_PLATFORM="cpu", VERL_USE_EXTERNAL_PLUGINS="none")
    assert done.stdout.splitlines()[-2:] == [
        f"{MISSING}: VERL_USE_EXTERNAL_PLUGINS=none: must be auto or name exgrpo",
        f"{MISSING}: exgrpo is on the path but not installed: pip install --no-deps -e .",
    ], done.stderr


def test_ray_is_started_again_where_a_busy_machine_was_too_slow_for_it():
    """verl's driver is replaced: the machine cannot be made slow at will."""
    code = """
import json, sys
from exgrpo import main_mix_ppo
import verl.trainer.main_ppo, verl.trainer.ppo.utils, verl.utils.config
errors = []
def run_ppo(config, task_runner_class):
    if errors:
        raise errors.pop(0)
verl.trainer.main_ppo.run_ppo = run_ppo
verl.utils.config.validate_config = lambda *values, **options: None
verl.trainer.ppo.utils.need_critic = verl.trainer.ppo.utils.need_reference_policy = lambda config: False
for texts in json.loads(sys.argv[1]):
    errors[:] = map(Exception, texts)
    try:
        main_mix_ppo.train(None)
        print("trained")
    except Exception as error:
        print("raised", error)
"""
    slow, other = "The current node timed out during startup. This could happen", "no such thing"
    done = watched.run([sys.executable, "-c", code, json.dumps([[slow], [slow] * 3, [other]])])
    assert done.returncode == 0, done.stderr
    again, *said = [line for line in done.stdout.splitlines() if line.startswith(("exgrpo:", "trained", "raised"))]
    assert "it is started again" in again
    assert said == ["trained", again, again, f"raised {slow}", f"raised {other}"]
