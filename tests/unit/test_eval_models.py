"""The model's folder of eval/generate_vllm.py, and that wrong inputs of every kind end before a
model is loaded.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from eval_inputs import parquet, row

from exgrpo_eval.generate import model_files

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "exp_scripts" / "quickstart" / "base_model"


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_lacks_a_file(model, name):
    assert model_files.find(str(model)) == model
    (model / name).unlink()
    with pytest.raises(
        ValueError,
        match=f"^--model_path={model}: has no {name.split('.')[0].replace('model', 'we')}",
    ):
        model_files.find(str(model))


def test_a_model_lacks_a_part_of_its_weights(model):
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "model-2.safetensors"}})
    )
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
        (
            {"--input_file": f"{tmp_path}/columns.parquet"},
            "columns.parquet: no column data_source, prompt, reward",
        ),
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
    flags = {
        "--model_path": str(model),
        "--input_file": str(good),
        "--output_file": f"{tmp_path}/out/o.jsonl",
    }
    lines = [[part for pair in (flags | change).items() for part in pair] for change, _ in cases]
    code = """
import json, sys
from exgrpo_eval.generate import command as generate_vllm
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
        [sys.executable, "-c", code],
        input=json.dumps(lines),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    errors = done.stderr.splitlines()
    assert done.returncode == 0 and len(errors) == len(cases), done.stderr
    for error, (_, message) in zip(errors, cases, strict=True):
        assert error.startswith("exgrpo-eval generate: error: ") and re.search(message, error), (
            error
        )
    assert not (tmp_path / "out" / "o.jsonl.partial").exists()
