"""What eval/generate_vllm.py takes and refuses: flags, input files, model folders."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval import arguments, model_files, question_files
from exgrpo.experience.question_id import question_id

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data" / "eval"
MODEL = ROOT / "exp_scripts" / "quickstart" / "base_model"


def row(text, answer="1", benchmark="math", system="Think.", **extra):
    turns = [{"role": "system", "content": system}] if system else []
    reward = {"ground_truth": answer, "style": "rule"}
    prompt = [*turns, {"role": "user", "content": text}]
    return {"data_source": benchmark, "prompt": prompt, "reward_model": reward, "extra_info": {"index": 0, **extra}}


def parquet(folder, rows, name="in.parquet"):
    pq.write_table(pa.Table.from_pylist(rows), folder / name)
    return folder / name


def read(*files, remove_system=True, limit=None):
    return question_files.read(files, remove_system=remove_system, limit=limit)


def settings(*flags):
    return arguments.read(["--model_path", "m", "--input_file", "f", "--output_file", "o.jsonl", *flags], "")


# the command line


def test_defaults_are_the_released_ones():
    found = settings()
    released = {
        "template": "own",
        "remove_system": True,
        "temperature": 0.6,
        "top_p": 1.0,
        "max_tokens": 8192,
        "add_oat_evaluate": False,
        "any_true": False,
        "force_generate": True,
        "add_think_before_answer": False,
        "no_split_think": False,
        "skip_scoring": False,
        "debug": False,
    }
    assert {name: getattr(found, name) for name in released} == released


def test_flags_are_written_as_in_the_released_commands_or_bare():
    assert settings("--remove_system", "True", "--add_oat_evaluate", "True") == settings("--add_oat_evaluate")
    assert settings("--remove_system", "False").remove_system is False


@pytest.mark.parametrize(
    ("flags", "benchmark", "repeats", "samples"),
    [
        ((), "aime", 1, 32),
        ((), "aime25", 1, 32),
        ((), "amc", 1, 32),
        ((), "math", 1, 1),
        ((), "aime", 32, 32),  # not 1,024
        ((), "amc", 4, 4),  # a file for validation
        (("--n", "8"), "aime", 32, 8),
        (("--n", "aime=2,math=4"), "aime", 32, 2),
        (("--n", "aime=2,math=4"), "math", 1, 4),
        (("--n", "aime=2,math=4"), "amc", 32, 32),
        (("--temperature", "0"), "aime", 32, 1),  # greedy: all would be alike
    ],
)
def test_samples_a_question(flags, benchmark, repeats, samples):
    assert settings(*flags).samples(benchmark, repeats) == samples


def test_debug_takes_ten_questions_unless_a_limit_is_given():
    assert [settings(*flags).question_limit for flags in ((), ("--debug",), ("--debug", "--limit", "3"))] == [
        None,
        10,
        3,
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--n", "0"), "--n=0: must be 1 or more samples"),
        (("--n", "aime=0"), "--n=aime=0: must be 1 or more"),
        (("--n", "four"), "'four': must be a number, auto, or"),
        (("--n", "4", "--temperature", "0"), "--n=4: must be 1 at --temperature 0"),
        (("--temperature", "-1"), "--temperature=-1.0: must be 0"),
        (("--temperature", "nan"), "--temperature=nan: must be 0"),
        (("--top_p", "0"), "--top_p=0.0: must be above 0"),
        (("--max_tokens", "0"), "--max_tokens=0: must be 1 or more"),
        (("--limit", "0"), "--limit=0: must be 1 or more"),
        (("--template", "qwen3"), "--template=qwen3: must be one of own, simplerl"),
        (("--any_true",), "--any_true=True: needs --add_oat_evaluate"),
        (("--remove_system", "maybe"), "'maybe': must be True or False"),
        (("--output_file", "o.json"), "--output_file=o.json: must end in .jsonl"),
        (("--temp", "1"), "unrecognized arguments: --temp 1"),
    ],
)
def test_a_wrong_flag_is_one_line(flags, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        settings(*flags)
    lines = capsys.readouterr().err.splitlines()
    assert exit_info.value.code == 2 and len(lines) == 1 and message in lines[0]


# the input files


def test_repeated_rows_are_one_question(tmp_path):
    rows = [row("a", "1", "aime")] * 32 + [row("b", "2", "aime")] * 32 + [row("c")]
    random.Random(0).shuffle(rows)
    found = {question.messages[-1]["content"]: question for question in read(parquet(tmp_path, rows))}
    assert {text: question.repeats for text, question in found.items()} == {"a": 32, "b": 32, "c": 1}
    assert {found["a"].index, found["b"].index} == {0, 1} and found["c"].index == 0
    assert found["a"].question_id == question_id("a")


def test_what_makes_a_question_another(tmp_path):
    rows = [row("a", "1"), row("a", "2"), row("a", "1", "aime"), row("a", "1", system="Else.")]
    file = parquet(tmp_path, rows)
    assert len(read(file)) == 3  # its answer, its benchmark; not a system message that is dropped
    assert len(read(file, remove_system=False)) == 4


def test_a_row_that_slipped_in_twice_asks_for_no_sample(tmp_path):
    (first, second) = read(parquet(tmp_path, [row("a"), row("b"), row("a")]))
    assert first.repeats == second.repeats == 1


def test_a_question_of_two_files_is_asked_once(tmp_path):
    one = parquet(tmp_path, [row("a")] * 4 + [row("b")] * 4, "1.parquet")
    two = parquet(tmp_path, [row("b"), row("c")], "2.parquet")
    found = read(one, two)
    assert [(q.messages[-1]["content"], q.index, Path(q.input_file).name) for q in found] == [
        ("a", 0, "1.parquet"),
        ("b", 1, "1.parquet"),
        ("c", 2, "2.parquet"),
    ]


def test_files_without_a_system_message_work(tmp_path):
    file = parquet(tmp_path, [row("a", system=None), row("b")])
    assert [question.messages for question in read(file)] == [
        ({"role": "user", "content": "a"},),
        ({"role": "user", "content": "b"},),
    ]
    assert [len(question.messages) for question in read(file, remove_system=False)] == [1, 2]


def test_only_an_id_of_our_own_is_taken_over(tmp_path):
    ours = question_id("another wording")
    (found,) = read(parquet(tmp_path, [row("a", question_id=ours)]))
    assert found.question_id == ours
    (found,) = read(parquet(tmp_path, [row("a", question_id=70)]))  # MMLU-Pro numbers its questions under this name
    assert found.question_id == question_id("a")


def test_limit_counts_in_each_benchmark(tmp_path):
    rows = [row(f"{name}{number}", benchmark=name) for number in range(5) for name in ("x", "y")]
    assert [q.messages[-1]["content"] for q in read(parquet(tmp_path, rows), limit=2)] == ["x0", "x1", "y0", "y1"]


def test_globs_and_paths(tmp_path, monkeypatch):
    for name in ("b.parquet", "a.parquet", "[c].parquet"):
        parquet(tmp_path, [row("q")], name)
    monkeypatch.chdir(tmp_path)
    assert [str(path) for path in question_files.expand(["b.parquet", "?.parquet", "[c].parquet"])] == [
        "b.parquet",
        "a.parquet",
        "[c].parquet",
    ]
    with pytest.raises(FileNotFoundError, match=r"^--input_file=d\*: no such file$"):
        question_files.expand(["d*"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"data_source": "m", "prompt": "q"}], "no column reward_model; it has data_source, prompt"),
        ([{**row("a"), "prompt": "a"}], "row 0: prompt: must be a list of messages"),
        ([row("a"), {**row("a"), "prompt": []}], "row 1: prompt: must end with a message of the user"),
        ([{**row("a"), "prompt": [{"role": "assistant", "content": "a"}]}], "row 0: prompt: must end with"),
        ([row("a"), row("a", None)], "row 1: reward_model: must have a ground_truth"),
        ([row("a", benchmark=None)], "row 0: data_source=None: must be the name"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, rows, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read(parquet(tmp_path, rows))
    assert str(error.value).startswith(f"--input_file={tmp_path}/in.parquet: ")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark files are not beside the checkout")
def test_real_files_go_through():
    auto, found = settings(), {}
    for question in read(*sorted(SHARED.glob("*.parquet"))):
        found.setdefault(question.benchmark, []).append(question)
        assert len(question.messages) == 1 and re.fullmatch("[0-9a-f]{32}", question.question_id)
    assert {name: (len(questions), auto.samples(name, questions[0].repeats)) for name, questions in found.items()} == {
        "gsm8k": (1319, 1),
        "mmlu_pro": (11873, 1),
        "math": (500, 1),
        "olympiad_bench": (675, 1),
        "minerva": (272, 1),
        "aime": (30, 32),
        "amc": (83, 32),
        "aime25": (30, 32),
        "arc_c": (1172, 1),
    }
    assert all(len({q.question_id for q in questions}) == len(questions) for questions in found.values())
    assert all([q.index for q in questions] == list(range(len(questions))) for questions in found.values())


# the model's folder


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_lacks_a_file(model, name):
    assert model_files.find(str(model)) == model
    (model / name).unlink()
    with pytest.raises(ValueError, match=f"^--model_path={model}: has no {name.split('.')[0].replace('model', 'we')}"):
        model_files.find(str(model))


def test_a_model_lacks_a_part_of_its_weights(model):
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model-2.safetensors"}}))
    with pytest.raises(ValueError, match=r"has no model-2\.safetensors"):
        model_files.find(str(model))


def test_models_that_differ_in_numbers_alone_have_different_hashes(model):
    first = model_files.sha256(model)
    assert model_files.sha256(MODEL) == first  # wherever it lies
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(model_files.weight_bytes(model) // 2 + 5)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    assert model_files.sha256(model) != first


# all of it, as far as it goes without a model


def test_wrong_inputs_are_one_line_before_anything_is_loaded(tmp_path, model):
    good = parquet(tmp_path, [row("a")])
    parquet(tmp_path, [{"question": "a"}], "columns.parquet")
    pq.write_table(pa.Table.from_pylist([row("a")]).slice(0, 0), tmp_path / "empty.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    (tmp_path / "file").write_text("")
    bare = tmp_path / "bare"
    shutil.copytree(MODEL, bare)
    (bare / "tokenizer.json").unlink()
    cases = [
        ({"--input_file": f"{tmp_path}/none.parquet"}, "none.parquet: no such file"),
        ({"--input_file": f"{tmp_path}/columns.parquet"}, "columns.parquet: no column data_source, prompt, reward"),
        ({"--input_file": f"{tmp_path}/empty.parquet"}, "empty.parquet: no rows"),
        ({"--input_file": f"{tmp_path}/text.parquet"}, "text.parquet: "),
        ({"--model_path": f"{tmp_path}/none"}, "--model_path=.*none: no such folder"),
        ({"--model_path": f"{bare}"}, "bare: has no tokenizer"),
        ({"--template": "chatml"}, "--template=chatml: must be one of"),
        ({"--n": "0"}, "--n=0: must be"),
        ({"--n": "aime=4"}, "--n=aime=4: no such benchmark"),
        ({"--temperature": "-1"}, "--temperature=-1.0: must be"),
        ({"--output_file": f"{tmp_path}/file/o.jsonl"}, "--output_file=.*file/o.jsonl: "),
        ({"--output_file": "/proc/none/o.jsonl"}, "--output_file=/proc/none/o.jsonl: "),
    ]
    flags = {"--model_path": str(model), "--input_file": str(good), "--output_file": f"{tmp_path}/out/o.jsonl"}
    lines = [[part for pair in (flags | change).items() for part in pair] for change, _ in cases]
    code = """
import json, sys
from eval import generate_vllm
for line in json.load(sys.stdin):
    try:
        generate_vllm.main(line)
    except SystemExit as left:
        assert left.code == 2, left.code
    else:
        raise AssertionError(line)
loaded = {"torch", "transformers", "vllm"} & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(lines), cwd=ROOT, capture_output=True, text=True
    )
    errors = done.stderr.splitlines()
    assert done.returncode == 0 and len(errors) == len(cases), done.stderr
    for error, (_, message) in zip(errors, cases, strict=True):
        assert error.startswith(("generate_vllm.py: error: ", "-c: error: ")) and re.search(message, error), error
    assert not (tmp_path / "out" / "o.jsonl.partial").exists()
