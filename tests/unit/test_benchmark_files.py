"""One YAML file a benchmark: its fields, its rows, and what the evaluation makes of them."""

import json

import pyarrow.parquet as pq
import pytest
import yaml
from eval_inputs import settings

from exgrpo_data import benchmark_rows, prepare_eval
from exgrpo_eval import benchmark_files
from exgrpo_eval.estimate import estimates
from exgrpo_eval.generate import generation, question_files
from exgrpo_eval.grade import grading

MINE = {"name": "mine", "source": {"file": "rows.jsonl"}, "question": "q", "answer": "a"}


@pytest.fixture
def written(tmp_path):
    """A benchmark's YAML file, and its rows beside it."""

    def write(rows=({"q": "What?", "a": "1"},), **fields):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**MINE, **fields}))
        return tmp_path / "mine.yaml"

    return write


def prepared(path, *flags):
    folder = path.parent / "out"
    prepare_eval.main(
        [
            "--output_dir",
            str(folder),
            "--benchmark",
            str(path),
            "--system_prompt_file",
            "none",
            *flags,
        ]
    )
    return {file.name: pq.read_table(file).to_pylist() for file in folder.iterdir()}


def test_those_that_are_known():
    known = benchmark_files.known()
    perturbed = {"math_perturb_simple", "math_perturb_hard"}
    live = {f"livemathbench_{part}" for part in ("amc", "ccee", "cnmo", "wlpmc", "hard")}
    assert {
        "aime26",
        "hmmt25",
        "hmmt26",
        "beyond_aime",
        *perturbed,
        *live,
        *prepare_eval.NINE,
    } == set(known)
    assert all(name == benchmark.name for name, benchmark in known.items())
    assert grading.CHOICE_BENCHMARKS == ("arc_c", "gpqa", "mmlu_pro")
    assert [settings().samples(name, 1) for name in ("hmmt26", "math")] == [32, 1]
    files = {benchmark.file_name for name, benchmark in known.items() if name in prepare_eval.NINE}
    assert files == {"valid.id.parquet", "valid.ood.parquet"}


@pytest.mark.parametrize(
    ("name", "answer"), [("aime26", 70), ("hmmt26", r"\frac{1}{2}"), ("beyond_aime", 3)]
)
def test_a_known_one_from_a_local_file(name, answer, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"problem_idx": 1, "problem": "Find it.", "answer": answer}) + "\n"
    )
    local = ["--local", f"{name}={tmp_path / 'rows.jsonl'}"]
    prepare_eval.main(["--output_dir", str(tmp_path), "--benchmarks", name, *local])
    [row] = pq.read_table(tmp_path / f"valid.{name}.parquet").to_pylist()
    assert row["data_source"] == name and row["reward_model"]["ground_truth"] == str(answer)
    assert "samples" not in row["extra_info"]


def test_those_of_other_columns_from_a_local_file(tmp_path):
    """MATH-Perturb's file has whole numbers among its answers; LiveMathBench's calls the problem a
    question.
    """
    rows = {
        "math_perturb_hard": {
            "problem_id": 1,
            "problem": "Find it.",
            "answer": 36,
            "level": "Level 5",
            "type": "Algebra",
        },
        "livemathbench_cnmo": {
            "question": "Find it.",
            "answer": "36",
            "question_type": "problem-solving",
        },
    }
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        local = ["--local", f"{name}={tmp_path / name}.jsonl"]
        prepare_eval.main(["--output_dir", str(tmp_path), "--benchmarks", name, *local])
        [written] = pq.read_table(tmp_path / f"valid.{name}.parquet").to_pylist()
        assert written["data_source"] == name and written["reward_model"]["ground_truth"] == str(
            row["answer"]
        )
        assert "Find it." in written["prompt"][-1]["content"]


def test_a_known_one_that_is_on_no_hub_says_which_file_is_missing(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        prepare_eval.main(["--output_dir", str(tmp_path), "--benchmarks", "math_perturb_hard"])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and "math_perturb_hard.jsonl" in error and error.count("\n") == 1


def test_a_users_own_is_asked_and_judged_as_it_says(written):
    """Samples, wording and grader reach the graded rows, through the parquet file alone."""
    rows = [
        {"q": "Which?", "a": 1, "options": ["x", "y"]},
        {"q": "And which?", "a": "A", "options": ["x", "y"]},
    ]
    path = written(
        rows,
        choices="options",
        grader="letter",
        samples=3,
        template="Choose.\n\n{question}\n\nEnd.",
    )
    files = prepared(path)
    assert list(files) == ["valid.mine.parquet"]
    assert [row["reward_model"]["ground_truth"] for row in files["valid.mine.parquet"]] == [
        "B",
        "A",
    ]
    file = path.parent / "out" / "valid.mine.parquet"
    first, second = question_files.read([file], remove_system=True, limit=None)
    assert first.messages[-1]["content"] == "Choose.\n\nWhich?\n\nA) x\nB) y\n\nEnd."
    assert settings().samples("mine", first.repeats) == 3
    requests = generation.plan(
        [first, second], settings().samples, 0, lambda q: generation.Prompt("p", ())
    )
    answered = [generation.row(r, generation.Response(0, "ANSWER: B", 3, "stop")) for r in requests]
    assert [row["correct"] for row in grading.grade(answered)] == [True] * 3 + [False] * 3


def test_a_column_of_clusters_reaches_the_graded_rows(written):
    """Questions with an equal value are drawn together; a row without one stays alone."""
    rows = [
        {"q": f"{n}?", "a": "1", "original": original} for n, original in enumerate((7, 7, None, 8))
    ]
    path = written(rows, cluster="original")
    prepared(path)
    file = path.parent / "out" / "valid.mine.parquet"
    questions = question_files.read([file], remove_system=True, limit=None)
    requests = generation.plan(
        questions, settings().samples, 0, lambda q: generation.Prompt("p", ())
    )
    answered = [
        generation.row(r, generation.Response(0, r"\boxed{1}", 3, "stop")) for r in requests
    ]
    assert [row.get("cluster") for row in answered] == ["mine: 7", "mine: 7", None, "mine: 8"]
    scores = estimates.score(grading.grade(answered))["mine"]
    assert scores.clusters == ("mine: 7", "mine: 7", questions[2].question_id, "mine: 8")


def test_choices_in_columns_are_shuffled_by_the_question_alone(written):
    path = written(choices=["right", "wrong"], grader="letter")
    path.write_text(path.read_text().replace("answer: a\n", ""))
    benchmark = benchmark_files.read(path)
    pairs = [
        benchmark_rows.read(benchmark, {"q": f"{n}?", "right": "r", "wrong": "w"})
        for n in range(40)
    ]
    assert all(f"\n{letter}) r" in question for question, letter in pairs)
    assert {letter for _, letter in pairs} == {"A", "B"}


def test_known_ones_beside_a_users_own(written, tmp_path):
    (tmp_path / "math.jsonl").write_text(json.dumps({"problem": "p", "answer": "1"}) + "\n")
    files = prepared(
        written(part="id"), "--benchmarks", "math", "--local", f"math={tmp_path / 'math.jsonl'}"
    )
    assert [row["data_source"] for row in files["valid.id.parquet"]] == ["math", "mine"]
    extra = [row["extra_info"] for row in files["valid.id.parquet"]]
    assert [(e["samples"], e["grader"]) for e in extra] == [(None, None), (1, "math")]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"quesion": "q"}, "quesion: no such field; there are name, source, question"),
        ({"source": {"hub": "a/b"}}, "source: must be {hub: DATA_SET, split: SPLIT}"),
        ({"source": {"file": 3}}, "source: must be {hub"),
        ({"samples": 0}, "samples=0: must be 1 or more"),
        ({"samples": True}, "samples=True: must be 1 or more"),
        ({"grader": "judge"}, "grader='judge': must be math or letter"),
        ({"choices": "c"}, "grader: must be letter where there are choices"),
        (
            {"choices": ["c", "d"], "grader": "letter"},
            "answer: must be a column, and left out where choices is a list",
        ),
        ({"choices": []}, "choices: must be a column"),
        ({"template": "Answer."}, "template: must be a text that holds {question}"),
        ({"name": 3}, "name=3: must be a text"),
        ({"cluster": 3}, "cluster=3: must be a text"),
    ],
)
def test_wrong_fields_get_one_line(fields, complaint, written, capsys):
    with pytest.raises(SystemExit) as stopped:
        prepared(written(**fields))
    error = capsys.readouterr().err
    assert (
        stopped.value.code == 2
        and complaint in error
        and "mine.yaml" in error
        and error.count("\n") == 1
    )


def test_a_missing_field_no_yaml_and_a_name_twice(written, tmp_path, capsys):
    for text, complaint in (
        ("name: x", "source: must be given"),
        ("a: [", "must be YAML"),
        ("3", "must hold fields"),
    ):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(ValueError, match=complaint):
            benchmark_files.read(tmp_path / "mine.yaml")
    with pytest.raises(SystemExit):
        prepared(written(name="math"), "--benchmarks", "math")
    assert "--benchmark: math is there twice" in capsys.readouterr().err
