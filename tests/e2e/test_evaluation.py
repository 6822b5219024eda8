"""eval/generate_vllm.py with a real vLLM on the CPU: killed and continued, with two copies, from
verl's checkpoint.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import watched
from watched import Watch

import process_tree

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "exp_scripts" / "quickstart" / "base_model"
QUESTIONS, SAMPLES = 24, 8
LIMIT = 16  # questions of each file that the checkpoint is asked


@pytest.fixture(scope="module")
def environment():
    """Nothing of what a CPU needs is set by the user."""
    ours = ("VLLM_", "VERL_", "OMP_", "TORCHDYNAMO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@pytest.fixture(scope="module")
def test_file(questions):
    """The quickstart's test questions, each twice, as the released file repeats its own."""
    import pandas as pd

    frame = pd.read_parquet(questions / "test.parquet").head(QUESTIONS)
    path = questions / "twice.parquet"
    pd.concat([frame, frame]).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def start(test_file, environment):
    def start(output, *flags):
        command = [
            sys.executable,
            str(ROOT / "eval" / "generate_vllm.py"),
            "--model_path",
            str(MODEL),
        ]
        command += [
            "--input_file",
            str(test_file),
            "--output_file",
            str(output),
            "--max_tokens",
            "40",
        ]
        command += ["--n", str(SAMPLES), "--temperature", "1", "--skip_scoring", *flags]
        with output.with_suffix(".log").open("a") as log:
            says = {"VLLM_LOGGING_LEVEL": "INFO"}  # which class vLLM adds to its worker
            return subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment | says
            )

    return start


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """The bytes of a run that nobody interrupts, one response at a time."""
    output = tmp_path_factory.mktemp("whole") / "out.jsonl"
    finish(start(output, "--max_num_seqs", "1"), output)
    return output.read_bytes()


def finish(process, output):
    try:
        watch = watched_run(process, output)
        code = watch.end()
    finally:
        process.kill()
    assert code == 0, watch.said()


def watched_run(process, output):
    return Watch(process, output.with_name(f"{output.name}.partial"), output.with_suffix(".log"))


def end(process, number):
    """Send a signal; the exit code, once none of the processes below is left."""
    copies = process_tree.descendants(process.pid)
    assert len(copies) >= 2
    process.send_signal(number)
    code = process.wait()
    watched.until(lambda: not any(process_tree.lives(pid) for pid in copies))
    return code


def lines_in(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_run_is_what_was_asked_for(whole):
    rows = [json.loads(line) for line in whole.decode().split("\n")[:-1]]
    assert [(row["question"], row["sample"]) for row in rows] == [
        (q, s) for q in range(QUESTIONS) for s in range(SAMPLES)
    ]
    assert (
        len({row["seed"] for row in rows})
        == len({(row["question_id"], row["sample"]) for row in rows})
        == len(rows)
    )
    by_question = [
        {row["response"] for row in rows if row["question"] == number}
        for number in range(QUESTIONS)
    ]
    assert all(len(responses) > 1 for responses in by_question)  # samples, not copies
    cut = [row for row in rows if row["finish_reason"] == "length"]
    assert all(row["tokens"] <= 40 for row in rows) and all(row["tokens"] == 40 for row in cut)
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"} and len(cut) < len(rows)


def test_killed_twice_with_no_process_left_and_continued_it_is_the_file_of_an_uninterrupted_run(
    start, whole, tmp_path
):
    output, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    for reached, number, code in ((30, signal.SIGTERM, 1), (90, signal.SIGKILL, -signal.SIGKILL)):
        process = start(output, "--max_num_seqs", "1", "--data_parallel_size", "2")
        watched_run(process, output).until(lambda least=reached: lines_in(partial) >= least)
        assert end(process, number) == code
        assert not output.exists() and lines_in(partial) < QUESTIONS * SAMPLES
    said = output.with_suffix(".log").read_text()
    assert said.count("stopped; the same command continues from here") == 1
    assert (
        said.count("Injected <class 'exgrpo_eval.generate.vllm_worker.EndsWithParent'>") == 4
    )  # each copy, two runs
    with partial.open("ab") as file:
        file.write(b'{"row": {"benchmark": "su')  # a line that the kill cut
    kept = partial.read_bytes()[: -len(b'{"row": {"benchmark": "su')]
    held = os.open(partial, os.O_RDONLY)  # outlives the file's removal
    finish(start(output, "--max_num_seqs", "1", "--data_parallel_size", "2"), output)
    assert "loading the model: 2 x CPU" in output.with_suffix(".log").read_text()
    assert output.read_bytes() == whole
    journal = os.pread(held, 1 << 24, 0)
    os.close(held)
    assert journal.startswith(kept)
    entries = [json.loads(line) for line in journal.decode().split("\n")[1:-1]]
    assert (
        len(entries)
        == QUESTIONS * SAMPLES
        == len({(e["row"]["question"], e["row"]["sample"]) for e in entries})
    )
    assert {entry["session"] for entry in entries} == {0, 1, 2}
    assert (
        not partial.exists()
        and json.loads((tmp_path / "out.run.json").read_text())["generated_tokens"] > 0
    )


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """Questions of 360 tokens: those of one evaluation together are more than the engine takes in a
    step.
    """
    import pandas as pd

    long = "+".join("12345" for _ in range(60))
    rows = [
        {
            "data_source": "long",
            "prompt": [{"role": "user", "content": long + str(n)}],
            "reward_model": {"ground_truth": "1"},
        }
        for n in range(LIMIT + 1)
    ]
    path = tmp_path_factory.mktemp("long") / "long.parquet"
    pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The model as verl's FSDP workers save it, one of them."""
    import torch
    from safetensors.torch import load_file

    actor = tmp_path_factory.mktemp("trained") / "global_step_7" / "actor"
    kept = shutil.ignore_patterns("*.safetensors", "README.md")
    shutil.copytree(MODEL, actor / "huggingface", ignore=kept)
    torch.save(load_file(MODEL / "model.safetensors"), actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    return actor.parent


@pytest.fixture(scope="module")
def evaluate(checkpoint, test_file, long_file, environment, tmp_path_factory):
    """Evaluates the checkpoint with further flags; what the command said, and its folder, always
    the same.
    """
    folder = tmp_path_factory.mktemp("evaluated")

    def evaluate(*flags):
        command = [
            "bash",
            str(ROOT / "eval" / "eval.sh"),
            str(checkpoint),
            str(folder),
            "--input_file",
        ]
        command += [
            str(test_file),
            f"{long_file.parent}/*.parquet",
            "--limit",
            str(LIMIT),
            "--max_tokens",
            "8",
        ]
        done = watched.run([*command, "--skip_scoring", *flags], env=environment)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout, folder

    return evaluate


@pytest.fixture(scope="module")
def evaluated(evaluate):
    return evaluate()


def test_prompts_of_more_tokens_than_a_step_takes(evaluated):
    lines = (evaluated[1] / "responses.jsonl").read_text().splitlines()
    assert [json.loads(line)["benchmark"] for line in lines].count("long") == LIMIT == 16


def test_a_checkpoint_of_verl_is_merged_once(evaluate, evaluated):
    from safetensors.torch import load_file

    said, folder = evaluated
    assert "merging" in said
    merged, original = (
        load_file(path / "model.safetensors") for path in (folder / "merged", MODEL)
    )
    assert {name: tensor.shape for name, tensor in merged.items()} == {
        n: t.shape for n, t in original.items()
    }
    assert all((merged[name] == original[name].bfloat16()).all() for name in original)
    responses = (folder / "responses.jsonl").read_bytes()
    assert (
        responses.count(b"\n") == 2 * LIMIT + LIMIT
    )  # the test questions twice, as their file has them
    again, _ = evaluate("--force_generate", "False")
    assert "merging" not in again and "loading the model" not in again
    assert (folder / "responses.jsonl").read_bytes() == responses
