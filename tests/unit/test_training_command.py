"""The training command before and around verl's driver: what it imports, what it says, when it
starts Ray again.
"""

import json
import os
import sys

import watched

COMMAND = """
import runpy, sys
sys.argv[1:] = {}
runpy.run_module("exgrpo.main_mix_ppo", run_name="__main__")
"""


def fresh(code):
    """A fresh process without the variables of verl."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    return watched.run([sys.executable, "-c", code], env=env)


def test_a_configuration_is_printed_without_an_import_of_verl_or_torch():
    done = fresh(
        COMMAND.format(["--cfg", "job"])
        + "print(sorted({'hydra', 'torch', 'verl', 'ray'} & {*sys.modules}))"
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "['hydra']", done.stderr
    assert "experience_ratio: 0.5" in done.stdout
    assert "ppo_max_token_len_per_gpu" in done.stdout  # verl's part


def test_a_cpu_without_its_package_is_one_line():
    """As if it were not installed: Hydra does not find its plug-in either."""
    hidden = "import importlib.util as u\nreal = u.find_spec\n"
    hidden += (
        "u.find_spec = lambda name, *more: None if name == 'verl_cpu' else real(name, *more)\n"
    )
    done = fresh(hidden + COMMAND.format(["stack=cpu_separate", "--cfg", "job"]))
    need = "exgrpo: stack=cpu needs the package verl-cpu: pip install --no-deps packages/verl-cpu"
    assert (done.returncode, done.stderr.splitlines(), done.stdout) == (1, [need], "")


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
"""  # noqa: E501
    slow, other = "The current node timed out during startup. This could happen", "no such thing"
    done = watched.run([sys.executable, "-c", code, json.dumps([[slow], [slow] * 3, [other]])])
    assert done.returncode == 0, done.stderr
    again, *said = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("exgrpo:", "trained", "raised"))
    ]
    assert "it is started again" in again
    assert said == ["trained", again, again, f"raised {slow}", f"raised {other}"]


def test_a_command_that_nothing_guards_leaves_no_temporary_file(tmp_path):
    code = """
import os, subprocess, sys, tempfile
from exgrpo import main_mix_ppo
with main_mix_ppo.own_temporary_folder():
    write = "import tempfile; print(tempfile.mkstemp()[1])"
    of_child = subprocess.check_output([sys.executable, "-c", write], text=True)
    ours = [tempfile.mkstemp()[1], of_child]
    print(all(os.path.dirname(each) == os.environ["TMPDIR"] for each in ours))
    print(os.environ["RAY_TMPDIR"] == os.path.dirname(os.environ["TMPDIR"]))
print(os.path.dirname(tempfile.mkstemp()[1]) == os.environ["RAY_TMPDIR"])
"""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"}
    environment |= {"TMPDIR": str(tmp_path)}
    done = watched.run([sys.executable, "-c", code], env=environment)
    assert done.stdout.split() == ["True"] * 3, done.stderr
    assert len(list(tmp_path.iterdir())) == 1  # the last one, which was made after it
