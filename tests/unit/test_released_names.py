"""The table of the release's names: its command becomes run_exgrpo.sh's configuration, its keys are
answered with ours, nothing of it is taken silently.

golden/released_overrides.txt has the key=value pairs of the released script (LUFFY at 01f4ae0),
sorted.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from composed import configuration, job
from hydra.errors import HydraException
from omegaconf import OmegaConf

import exgrpo.config  # noqa: F401  # the resolvers
from exgrpo import commands
from exgrpo.preflight import checks, released, values
from exgrpo.preflight.unknown_keys import explain

ROOT = Path(__file__).parents[2]
PAIRS = (ROOT / "tests" / "golden" / "released_overrides.txt").read_text().splitlines()
FOLDERS = {"MODEL_PATH": "MODEL_PATH", "DATA_DIR": "DATA_DIR", "SAVE_PATH": "SAVE_PATH"}
# what the two mean to differ in; the KL and its reference are off in both
DIFFERENT = {
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.ref.fsdp_config.param_offload",
    "actor_rollout_ref.rollout.trace.experiment_name",
    "algorithm.kl_ctrl.kl_coef",
    "trainer.experience_rbound",  # 7, which null means with 8 rollouts
    "trainer.experiment_name",
    "trainer.logger",
}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "released.sh"
    head = "ROOT= # yours\nexport MODEL_PATH= # yours\nexport EXP_NAME=ExGRPO \n"
    head += 'WANDB_PROJECT="exgrpo"\n'
    path.write_text(
        head + " \\\n    ".join(["X=1 python3 -m verl.mix_src.main_mix_ppo", *PAIRS, '"${@:1}"'])
    )
    return path


def leaves(config):
    found = values.entries(OmegaConf.to_container(config, resolve=True))
    return {key: value for key, value in found if not isinstance(value, dict)}


def test_the_released_command_becomes_the_configuration_of_our_script(script):
    overrides, left_out = released.translated(script, FOLDERS)
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", ROOT / "exp_scripts/run_exgrpo.sh", "--cfg", "job"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    theirs, ours = leaves(job(*overrides)), leaves(OmegaConf.create(printed.stdout))
    assert {
        key for key in {*theirs, *ours} if theirs.get(key, "") != ours.get(key, "")
    } == DIFFERENT
    assert len(left_out) == 14 and all(": leave out" in line for line in left_out)


def test_every_key_of_the_release_that_is_unknown_gets_the_answer_of_the_table():
    with pytest.raises(HydraException) as raised:
        job(*PAIRS)
    said = dict.fromkeys(explain(raised.value, PAIRS, lambda overrides: job(*overrides)))
    of_the_release = [line for line in said if "it is the release's: " in line]
    (other,) = {*said} - {*of_the_release}
    assert other == "+trainer.val_before_train=False: verl has the key; write it without the +"
    assert len(of_the_release) == 20
    assert any(
        "n_val=1: no such key" in line and "now actor_rollout_ref.rollout.val_kwargs.n=1" in line
        for line in said
    )


def test_a_key_that_was_added_by_a_plus_is_not_taken(files):
    config = configuration(files, "+actor_rollout_ref.actor.skip_grad_bound=500")
    with pytest.raises(ValueError, match=r"nobody reads it; .*now .*optim\.skip_grad_bound=500"):
        checks.verify(config)


def test_each_answer_is_a_key_and_each_metric_is_on_the_page():
    known = {*leaves(job()), "actor_rollout_ref.actor.policy_loss.loss_mode"}
    for key, row in released.table()["keys"].items():
        for answer in row.values() if isinstance(row, dict) else [row]:
            if not answer.startswith(("leave out", "none here")):
                assert {each.partition("=")[0] for each in answer.split()} <= known, key
    page = (ROOT / "docs" / "metrics.md").read_text()
    for metric in released.table()["metrics"].values():
        assert metric in page, metric


def test_the_command_prints_what_a_shell_reads(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["exgrpo-train", "--from-release", str(script)])
    commands.train()
    said = capsys.readouterr().out
    assert "# actor_rollout_ref.rollout.n_prefix=1: leave out" in said
    assert "# batch/on_solved: now experience/fresh_score" in said
    shown = subprocess.run(
        ["bash", "-c", f"exgrpo-train() {{ printf '%s\\n' \"$@\"; }}; {said}"],
        capture_output=True,
        text=True,
    )
    assert shown.stdout.splitlines() == released.translated(script, os.environ)[0]


def test_another_script_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "other.sh").write_text("echo\n")
    for name, said in (
        ("other.sh", "must be a script that starts main_mix_ppo"),
        ("no.sh", "no such file"),
    ):
        monkeypatch.setattr(sys, "argv", ["exgrpo-train", "--from-release", str(tmp_path / name)])
        with pytest.raises(SystemExit):
            commands.train()
        assert said in capsys.readouterr().err
