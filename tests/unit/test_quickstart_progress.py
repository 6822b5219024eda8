"""What the quickstart shows while it runs, in a terminal and without one, and that it leaves
nothing behind.
"""

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import watched
from rich.console import Console

import process_tree
from exgrpo.on_verl.checkpoints import MARKER

QUICKSTART = Path(__file__).parents[2] / "exp_scripts" / "quickstart"
LOG = """\
exgrpo: checking settings, model and data ...
exgrpo: checking settings, model and data took 12 s
exgrpo: loading verl ...
exgrpo: loading verl took 21 s
exgrpo: starting Ray ...
2026-11-22 01:43:35,690\tINFO worker.py:2038 -- Started a local Ray instance.
\x1b[36m(MixTaskRunner pid=18131)\x1b[0m INFO:2026-11-22 01:44:00,218:create worker group dict_keys(['actor_rollout'])
\x1b[36m(MixTaskRunner pid=18131)\x1b[0m INFO:2026-11-22 01:44:14,610:reward loop manager initialized
\x1b[36m(MixTaskRunner pid=18131)\x1b[0m INFO:2026-11-22 01:45:12,011:all initialize finished, ready to fit
"""  # noqa: E501
BASE = {"step": 0, "data": {"val-core/sum5/acc/mean@2": 0.359375}}
TRAINED = {
    "step": 3,
    "data": {
        "experience/fresh_score": 0.525,
        "experience/replayed_groups": 8.0,
        "experience/pool_questions": 32.0,
        "experience/retired_questions": 1.0,
        "critic/score/mean": 0.5546875,
        "timing_s/step": 5.928792655999132,
    },
}
TESTED = {
    "step": 20,
    "data": TRAINED["data"] | {"val-core/sum5/acc/mean@2": 0.884, "timing_s/step": 4.0},
}


@pytest.fixture(scope="module")
def progress():
    return importlib.import_module("progress")


@pytest.fixture
def panel(progress):
    """A panel, and what a terminal of 110 columns would show of it."""
    console = Console(file=io.StringIO(), force_terminal=True, width=110)

    def make(**options):
        made = progress.LivePanel(
            console, Path("outputs/quickstart"), **{"steps": 40, "done": 0} | options
        )

        def shown():
            with console.capture() as captured:
                console.print(made.panel())
            return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", captured.get())

        return made, shown

    return make


def test_panel_of_the_start_up(panel, progress):
    made, shown = panel()
    assert "loading Python packages, starting Ray" in shown()
    assert "0/40" in shown() and "Ctrl-C stops · log in outputs/quickstart/train.log" in shown()
    made.stage(progress.STAGES["create worker group"], 20.0)
    assert "loading the actor (FSDP2)" in shown() and "start-up" not in shown()
    made.stage(progress.STAGES["ready to fit"], 47.0)
    assert "testing the base model" in shown() and "start-up 47 s" in shown()


def test_panel_of_a_run_that_goes_on_tests_nothing_first(panel, progress):
    made, shown = panel(done=20)
    assert "20/40" in shown()
    made.stage(progress.STAGES["ready to fit"], 47.0)
    assert "training step 21" in shown()


def test_panel_of_the_steps(panel):
    made, shown = panel()
    made.step(BASE, 60.0)
    assert re.search(r"accuracy +test 0\.359 ", shown()) and "training step 1 " in shown()
    made.step(TRAINED, 80.0)
    assert "training step 4 " in shown() and "3/40" in shown()
    assert "3:39 left, 5.9 s a step" in shown()  # 37 steps
    assert "train 0.525   test 0.359" in shown()
    assert "replayed 8 groups   pool 32 questions   retired 1" in shown()
    made.step(TESTED, 160.0)
    assert "test 0.359 → 0.884" in shown()
    assert "1:39 left, 5.0 s a step" in shown()  # 20 steps, by the mean of the last ones
    made.step(TESTED | {"step": 40}, 240.0)
    assert "0:00 left" in shown() and "training step" not in shown()


def test_a_run_of_group_replay_has_its_groups_ages_and_tokens(progress, tmp_path):
    told = {"stored_groups": 2.0, "stored_group_age": 3.0, "generated_tokens": 120.0, "mixing": 1.0}
    told = {f"experience/{name}": value for name, value in told.items()}
    steps = [BASE, TRAINED | {"data": TRAINED["data"] | told | {"experience/replayed_groups": 1.0}}]
    (tmp_path / "metrics-0000.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    figures = progress.learning_curves.summary(tmp_path)
    assert (figures["kind"], figures["steps that replay"], figures["generated tokens"]) == (
        "group replay",
        1,
        120,
    )
    assert figures[
        "replay age (mean, steps)"
    ] == 3.0 and "replayed 3  " in progress.learning_curves.progress(steps[1], 40)


def test_own_questions_are_shown_by_their_own_names(progress, panel, capsys):
    tested = {"val-core/own/acc/mean@4": 0.402, "val-core/b/reward/mean@1": 0.5}
    made, shown = panel()
    made.step({"step": 0, "data": {"val-core/own/acc/mean@4": 0.402}}, 40.0)
    assert "test 0.402" in shown()
    made.step({"step": 5, "data": TRAINED["data"] | tested}, 60.0)
    assert "test own 0.402 → 0.402, b 0.500" in shown()
    with progress.Lines(40) as lines:
        lines.step({"step": 5, "data": TRAINED["data"] | tested}, 60.0)
    assert "test accuracy own 0.402, b 0.500" in capsys.readouterr().out


def test_a_run_without_tests_has_its_table_and_picture(progress, tmp_path, capsys):
    steps = [
        {"step": n, "data": TRAINED["data"] | {"experience/generated_tokens": 99.0}} for n in (1, 2)
    ]
    (tmp_path / "metrics-0000.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    progress.learning_curves.show([tmp_path, tmp_path])
    assert capsys.readouterr().out.count("accuracy after             not tested\n") == 2
    assert json.loads((tmp_path / "summary.json").read_text())["accuracy before"] is None
    assert (tmp_path / "quickstart.png").stat().st_size > 5000


def test_panel_of_an_on_policy_run(panel):
    made, shown = panel()
    made.step({"step": 1, "data": {"critic/score/mean": 0.25, "timing_s/step": 4.0}}, 60.0)
    assert "train 0.250" in shown() and "replayed 0 groups" in shown()


def test_live_panel_leaves_the_cursor_visible(progress):
    console = Console(file=io.StringIO(), force_terminal=True, width=110)
    with progress.LivePanel(console, Path("outputs/quickstart"), 40, 0) as made:
        assert console.file.getvalue().rindex("\x1b[?25h") > console.file.getvalue().rindex(
            "\x1b[?25l"
        )
        made.step(TRAINED, 80.0)
    assert "3/40" in console.file.getvalue()


def test_lines_of_a_run(progress, tmp_path, capsys):
    log, metrics = tmp_path / "train.log", tmp_path / "metrics-0000.jsonl"
    warning = "(Task pid=1) WARNING:2026-11-27 10:31:59,053:exgrpo: step 3: nothing is learned"
    log.write_text(f"{LOG}\n{warning}\n")
    metrics.write_text(
        "".join(json.dumps(entry) + "\n" for entry in (BASE, TRAINED)) + '{"step": 4, "da'
    )
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    ended.wait()
    with progress.Lines(40) as lines:
        assert progress.follow(ended, log, metrics, lines) == 3
    printed = capsys.readouterr().out.splitlines()
    assert all(re.match(r"\[[ \d]{5} s\] ", line) for line in printed)
    assert [line[10:] for line in printed] == [
        "checking settings, model and data",
        "loading verl",
        "starting Ray",
        "Ray is up; loading verl",
        "loading the actor (FSDP2)",
        "actor and rewards are up; starting the vLLM server",
        "everything is up",
        "exgrpo: step 3: nothing is learned",
        "step   0/40  test accuracy 0.359",
        "step   3/40  train accuracy 0.525  replayed 8  pool 32 questions  retired 1  5.9 "
        "s a step, 3.7 min left",
    ]


@pytest.mark.parametrize(
    ("terminal", "kind", "view"),
    [(True, "xterm", "LivePanel"), (True, "dumb", "Lines"), (False, "xterm", "Lines")],
)
def test_panel_only_in_a_terminal(terminal, kind, view):
    code = (
        "import progress, pathlib; print(type(progress.view(pathlib.Path('run'), 40, 0)).__name__)"
    )
    # FORCE_COLOR: some CI services set it, and their logs are no terminals
    environment = os.environ | {"TERM": kind, "PYTHONPATH": str(QUICKSTART), "FORCE_COLOR": "1"}
    master, slave = os.openpty() if terminal else os.pipe()
    subprocess.run([sys.executable, "-c", code], stdout=slave, env=environment, check=True)
    os.close(slave)
    assert os.read(master, 100).decode().strip() == view
    os.close(master)


SLEEPER = """
import os, subprocess, sys, time
group = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("pids", os.getpid(), group.pid, flush=True)
time.sleep(600)
"""
QUICKSTART_OF_A_SLEEPER = f"""
import argparse, pathlib, sys, run
run.quickstart = lambda arguments: run.train(arguments.output, [sys.executable, "-c", {SLEEPER!r}], 40, 0)
run.main()
"""  # noqa: E501


def start_quickstart(folder, restart=False):
    """The quickstart with a training that sleeps; the process, and the process ids of the
    training.
    """
    arguments = ["--output", str(folder), *(["--restart"] if restart else [])]
    process = subprocess.Popen(
        [sys.executable, "-c", QUICKSTART_OF_A_SLEEPER, *arguments],
        env=os.environ | {"PYTHONPATH": f"{QUICKSTART}:{QUICKSTART.parents[1]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = folder / "train.log"
    watched.until(lambda: log.exists() and log.read_text().endswith("\n"))
    return process, [int(word) for word in log.read_text().split()[1:]]


@pytest.mark.parametrize(
    ("number", "restart"),
    [
        (signal.SIGINT, False),
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        (signal.SIGKILL, False),
    ],
)
def test_the_training_ends_with_the_quickstart(tmp_path, number, restart):
    if number == signal.SIGINT:  # the others have no checkpoint yet
        (tmp_path / "checkpoints" / "global_step_3").mkdir(parents=True)
        (tmp_path / "checkpoints" / MARKER).write_text("3")
    process, pids = start_quickstart(tmp_path, restart)
    process.send_signal(number)
    said = process.communicate()[0]
    watched.until(lambda: not (tmp_path / "running.json").exists())
    assert not any(process_tree.lives(pid) for pid in pids)
    if number != signal.SIGKILL:
        without = " without --restart" if restart else ""
        assert process.returncode == 128 + number
        goes_on = f"the same command{without} resumes from the last checkpoint"
        if number == signal.SIGTERM:
            goes_on = "it had no checkpoint yet, so the same command begins anew"
        assert said == f"quickstart: stopped; {goes_on}\n"


def test_a_killed_guard_leaves_nothing_either(tmp_path):
    process, pids = start_quickstart(tmp_path)
    os.kill(json.loads((tmp_path / "running.json").read_text())["guard"], signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "running.json").exists() and not any(
        process_tree.lives(pid) for pid in pids
    )
    assert process.returncode == 128 + signal.SIGKILL
