"""`--curves` and `--beside`: any logger's files of a run, any source of test questions, two runs in
one picture.
"""

import json

import pytest

from exgrpo_tools import run_figures, run_files
from exgrpo_tools.inspect import __main__ as inspect
from exgrpo_tools.inspect import curves

TEST = "val-core/my own - 2:b/acc/mean@4"
PNG = b"\x89PNG"


def a_run(last, right, tokens):
    """Step -> metrics of a training with tests before it and at its even steps."""
    steps = {0: {TEST: 0.25, "val-core/b/reward/mean@4": 0.75}}
    for step in range(1, last + 1):
        told = {"fresh_score": 0.5, "pool_questions": 3.0, "replayed_groups": 2.0, "mixing": 1.0}
        told |= {"replay_age": 1.5, "generated_tokens": tokens}
        steps[step] = {f"experience/{name}": value for name, value in told.items()}
        steps[step] |= {"timing_s/step": 2.0, "actor/grad_norm": 1e-05, "actor/lr": float("nan")}
        if step % 2 == 0:
            steps[step] |= {TEST: right * step / last, "val-core/b/reward/mean@4": 0.75}
    return steps


def as_lines(steps, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
    path.write_text("\n".join(lines) + '\n{"step": 9, "da')
    return path


def as_log(steps, path):
    """As verl's console logger writes, through Ray, with numpy's numbers."""
    lines = ["loading", "a step:by step - guide"]
    for step, data in steps.items():
        told = " - ".join(f"{name}:{value!r}" for name, value in data.items())
        lines.append(
            f"\x1b[36m(MixTaskRunner pid=1)\x1b[0m step:{step} - {told} - x:np.int64({step})"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def as_events(steps, folder):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(folder))
    for step, data in steps.items():
        for name, value in data.items():
            writer.add_scalar(name, value, step)
    writer.close()


@pytest.mark.parametrize("logger", ["verl's file logger", "tensorboard", "the console's log"])
def test_any_loggers_files_have_the_runs_figures(tmp_path, capsys, logger):
    steps = a_run(4, 1.0, 100.0)
    if logger == "tensorboard":
        as_events(steps, tmp_path / "tensorboard_log" / "exgrpo" / "run")
    elif logger == "the console's log":
        as_log(steps, tmp_path / "slurm-7.out")
    else:
        as_lines(steps, tmp_path / "exgrpo" / "run.jsonl")
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "1.jsonl").write_text('{"input": "a", "output": "b", "step": 1}\n')
    inspect.main([str(tmp_path), "--curves"])
    said = capsys.readouterr().out
    assert f"({logger}): 5 steps, the last 4" in said
    assert (
        "accuracy before            0.500\n" in said and "accuracy after, b          0.750" in said
    )
    assert (
        "accuracy after, my own - 2:b 1.000\n" in said and "generated tokens           400" in said
    )
    assert (tmp_path / "curves.png").read_bytes()[:4] == PNG
    found = run_files.read(tmp_path).steps
    assert found[1]["actor/grad_norm"] == pytest.approx(1e-5) and found[4][TEST] == 1.0


def test_a_resumed_run_is_one_and_two_runs_are_refused(tmp_path):
    as_lines(a_run(2, 0.5, 10.0), tmp_path / "a" / "metrics-0000.jsonl")
    later = {step: data for step, data in a_run(4, 1.0, 20.0).items() if step > 1}
    as_lines(later, tmp_path / "a" / "metrics-0001.jsonl")
    found = run_files.read(tmp_path / "a")
    assert list(found.steps) == [0, 1, 2, 3, 4] and len(found.files) == 2
    assert run_figures.tokens_by_step(found.steps) == {0: 0, 1: 10, 2: 30, 3: 50, 4: 70}
    as_lines(later, tmp_path / "b" / "metrics-0000.jsonl")
    with pytest.raises(ValueError, match=r"has the metrics of several runs: name one of a, b$"):
        run_files.read(tmp_path)


def test_two_runs_at_equal_steps_and_equal_tokens(tmp_path, capsys):
    one = as_lines(a_run(4, 1.0, 100.0), tmp_path / "one" / "metrics-0000.jsonl")
    other = as_log(a_run(8, 0.8, 25.0), tmp_path / "other.log")
    inspect.main([str(one.parent), "--curves", "--beside", str(other)])
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "other.log"] in said and ["generated", "tokens", "400", "200"] in said
    assert ["test", "accuracy,", "step", "4", "0.875", "0.575"] in said  # of b .75, both
    assert ["test", "accuracy,", "200", "tokens", "0.625", "0.775"] in said
    assert (one.parent / "curves.png").read_bytes()[:4] == PNG


def test_a_run_of_verl_alone_has_its_curves(tmp_path, capsys):
    plain = {"critic/score/mean": 0.5, "timing_s/step": 1.0, "perf/total_num_tokens": 80.0}
    plain |= {"prompt_length/mean": 4.0, "response_length/mean": 6.0}
    as_lines({1: plain, 2: plain | {"val-core/gsm8k/acc/mean@1": 0.5}}, tmp_path / "m.jsonl")
    inspect.main([str(tmp_path / "m.jsonl"), "--curves"])
    said = capsys.readouterr().out
    assert (
        "kind                       on-policy" in said and "generated tokens           96" in said
    )
    assert curves.tests_of(run_files.read(tmp_path).steps) == {2: 0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}", "--curves"], "no metrics of a step there: must have a file of verl's file logger"),
        (["{0}/none", "--curves"], "/none: no such folder or file"),
        (["{0}", "--beside", "{0}"], "requires --curves"),
        (["{0}", "--curves", "--html", "x"], "only one of these"),
    ],
)
def test_wrong_ones_are_one_line(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        inspect.main([argument.format(tmp_path) for argument in arguments])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
