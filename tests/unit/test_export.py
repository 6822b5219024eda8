"""exgrpo_eval.export: what is written, opened with each tool's own reader."""

import json

import pytest
import yaml

from exgrpo_eval.export import __main__ as export
from exgrpo_eval.export import graded_run as export_run
from exgrpo_eval.generate import command as generate_vllm
from exgrpo_eval.grade import response_files
from exgrpo_tools.texts import file_part

RIGHT, WRONG = r"\boxed{1}", r"\boxed{2}"


@pytest.fixture
def run(tmp_path):
    """A graded run: two benchmarks, one of them of the hub, two questions with two samples and one
    with one.
    """
    rows = [
        {
            "benchmark": "aime26",
            "question": q,
            "responses": r,
            "gold": "1",
            "finish_reason": f,
            "tokens": [5, 9],
        }
        for q, r, f in (
            ("One?", [RIGHT, WRONG], ["stop", "stop"]),
            ("1?", [RIGHT, RIGHT], ["stop", "length"]),
        )
    ]
    rows.append(
        {"benchmark": "my own", "question": "Mine?", "response": "<b>", "gold": "3", "tokens": 2}
    )
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "out.jsonl"
    flags = ["--model_path", "org/model", "--output_file", str(output)]
    generate_vllm.main(["--grade_only", str(tmp_path / "in.jsonl"), *flags])

    def write(name):
        export.main([str(output), "--format", name, "--output", str(tmp_path / "exported")])
        return tmp_path / "exported"

    return write


def test_inspects_log_is_read_by_inspect(run):
    log = pytest.importorskip("inspect_ai.log")
    folder = run("inspect")
    own = file_part("my own")
    assert {path.name for path in folder.iterdir()} == {"aime26.eval", f"{own}.eval"}
    read = log.read_eval_log(str(folder / "aime26.eval"))
    assert (
        read.status == "success" and read.eval.model == "org/model" and read.eval.config.epochs == 2
    )
    assert read.results.scores[0].metrics["accuracy"].value == 0.5
    assert read.results.scores[0].metrics["stderr"].value == 0
    samples = sorted(read.samples, key=lambda sample: (sample.id, sample.epoch))
    assert [(s.id, s.epoch, s.scores["exgrpo"].value) for s in samples] == [
        (1, 1, "C"),
        (1, 2, "I"),
        (2, 1, "C"),
        (2, 2, "I"),  # cut off
    ]
    assert samples[3].output.stop_reason == "max_tokens" and samples[0].input == "One?"
    assert (
        samples[1].output.usage.output_tokens == 9 and samples[0].scores["full_grader"].value == "C"
    )
    assert [
        summary.target
        for summary in log.read_eval_log_sample_summaries(str(folder / f"{own}.eval"))
    ] == ["3"]


def test_without_inspect_it_says_what_to_install(run, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "inspect_ai.log", None)
    with pytest.raises(SystemExit):
        run("inspect")
    assert "pip install '.[inspect-log]'" in capsys.readouterr().err


def test_lightevals_details_are_read_as_its_documentation_says_and_graded_again(run):
    datasets = pytest.importorskip("datasets")
    folder = run("lighteval")
    files = sorted(folder.glob("details/org/model/*/details_*.parquet"))
    own = file_part("my own")
    assert [file.name.split("|")[0] for file in files] == ["details_aime26", f"details_{own}"]
    details = datasets.load_dataset(
        "parquet", data_files=str(files[0]), split="train", cache_dir=str(folder / "cache")
    )
    assert details.column_names == ["doc", "model_response", "metric"]
    assert details[0]["doc"]["choices"] == ["1"] and details[0]["model_response"]["text"] == [
        RIGHT,
        WRONG,
    ]
    assert details["metric"][1] == {"avg@n:n=2": 0.5, "pass@2": 1.0}
    again = response_files.read(files[0]).rows
    assert [(row["benchmark"], row["question"], row["sample"], row["tokens"]) for row in again] == [
        ("aime26", 0, 0, 5),
        ("aime26", 0, 1, 9),
        ("aime26", 1, 0, 5),
        ("aime26", 1, 1, 9),
    ]


def test_results_for_the_hub_are_read_by_its_library(run, capsys):
    hub = pytest.importorskip("huggingface_hub")
    folder = run("hf")
    [file] = (folder / ".eval_results").iterdir()
    [entry] = hub.parse_eval_result_entries(yaml.safe_load(file.read_text()))
    assert (entry.dataset_id, entry.task_id, entry.value) == (
        "MathArena/aime_2026",
        "MathArena/aime_2026",
        50.0,
    )
    assert entry.notes.startswith("Mean@2") and "my own: left out" in capsys.readouterr().out


def test_every_eval_ever_validates_its_schema(run):
    [file] = run("every_eval_ever").iterdir()
    log = json.loads(file.read_text())
    first, second = log["evaluation_results"]
    assert (
        first["score_details"]["score"] == 0.5
        and first["source_data"]["hf_repo"] == "MathArena/aime_2026"
    )
    assert second["source_data"] == {"dataset_name": "my own", "source_type": "other"}
    assert log["model_info"]["id"] == "org/model" and "generation_config" not in first
    types = pytest.importorskip("every_eval_ever.eval_types")  # needs Python 3.12
    assert types.EvaluationLog(**log).evaluation_results[0].score_details.score == 0.5


def test_a_run_ends_after_the_seconds_that_it_took():
    record = {"started": "2026-01-01T23:59:00+00:00", "seconds": 90.5}
    assert export_run.Run([], record).finished == "2026-01-02T00:00:30.500000+00:00"


def test_no_run_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        export.main([str(tmp_path / "a.jsonl"), "--format", "hf", "--output", str(tmp_path)])
    assert stopped.value.code == 2 and capsys.readouterr().err.count("\n") == 1
