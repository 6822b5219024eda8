"""Benchmark files: rows as the hub has them, released files, answers that agree with themselves,
wrong input.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import watched

from exgrpo.gold_answers import clean
from exgrpo_data import benchmark_rows, prepare_eval
from exgrpo_data.prepare_eval import BENCHMARKS, main
from exgrpo_eval.grade.grading import grade

SHARED = Path(__file__).parents[3] / "shared" / "data" / "eval"
HERE = Path(prepare_eval.__file__)
GPQA = dict(
    zip(
        BENCHMARKS["gpqa"].columns,
        ("What?", " right ", "wrong 1", "wrong 2", "wrong 3"),
        strict=True,
    )
)
HUB_ROWS = {
    "aime": {"problem": " Find $x$. ", "answer": "025", "solution": "long"},
    "aime25": {"problem": "Find $y$.", "answer": r"336^\circ"},
    "amc": {"problem": "Find $z$.", "answer": 142.0},
    "math": {"problem": "Find $w$.", "answer": r"\frac{1}{2}", "subject": "Algebra"},
    "minerva": {"question": "How many ergs?", "answer": "4.5e33"},
    "olympiad_bench": {"question": "Which?", "final_answer": ["$3$", "$5$"]},
    "arc_c": {
        "question": "Which?",
        "choices": {"text": ["a", "b"], "label": ["1", "2"]},
        "answerKey": "2",
    },
    "gpqa": GPQA,
    "mmlu_pro": {
        "question": "Which?",
        "options": ["x", "y", "z"],
        "answer": "C",
        "category": "law",
    },
}
ANSWERS = {
    "aime": "025",
    "aime25": r"336^\circ",
    "amc": "142",
    "math": r"\frac{1}{2}",
    "minerva": r"4.5\times10^{33}",
    "olympiad_bench": "$3$, $5$",
    "arc_c": "2",
    "mmlu_pro": "C",
}


@pytest.fixture
def local(tmp_path):
    """A file for each benchmark, as the hub has it; the arguments that name them."""
    arguments = ["--output_dir", str(tmp_path / "out"), "--local"]
    for name, row in HUB_ROWS.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps(row) + "\n")
        arguments.append(f"{name}={path}")
    return arguments


def read(path):
    return pq.read_table(path).to_pylist()


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    return error


def test_all_nine_benchmarks_in_two_files(local, tmp_path):
    main(local)
    inside, outside = (read(tmp_path / "out" / f"valid.{kind}.parquet") for kind in ("id", "ood"))
    assert [row["data_source"] for row in inside + outside] == list(BENCHMARKS)
    rows = {row["data_source"]: row for row in inside + outside}
    assert {name: rows[name]["reward_model"]["ground_truth"] for name in ANSWERS} == ANSWERS
    assert all(
        [turn["role"] for turn in row["prompt"]] == ["system", "user"] for row in rows.values()
    )
    assert rows["aime"]["prompt"][1]["content"] == "Find $x$."
    assert rows["arc_c"]["prompt"][1]["content"] == "Which?\n\n1) a\n2) b"
    assert rows["mmlu_pro"]["prompt"][1]["content"] == "Which?\n\nA) x\nB) y\nC) z"
    assert set(rows["math"]) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert len(rows["math"]["extra_info"]["question_id"]) == 32


def test_the_validation_set_has_each_question_as_often_as_the_released_one(local, tmp_path):
    main([*local, "--validation"])
    counts = Counter(row["data_source"] for row in read(tmp_path / "out" / "valid.parquet"))
    assert counts == {
        "aime": 8,
        "aime25": 8,
        "amc": 4,
        "math": 1,
        "minerva": 1,
        "olympiad_bench": 1,
    }
    assert len(read(tmp_path / "out" / "valid.id.parquet")) == 6


def test_no_validation_set_without_its_benchmarks(local, tmp_path, capsys):
    arguments = [*local[:2], "--validation", "--benchmarks", "arc_c", "--local", local[9]]
    assert "--validation: --benchmarks must name some of aime, aime25" in refused(arguments, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(
    not (SHARED / "valid.parquet").is_file(),
    reason="the evaluation data is not beside the checkout",
)
def test_of_the_released_test_file_it_is_the_released_validation_set(tmp_path):
    given = [f"{name}={SHARED / 'test.id.parquet'}" for name in prepare_eval.VALIDATION]
    names = list(prepare_eval.VALIDATION)
    main(["--output_dir", str(tmp_path), "--validation", "--benchmarks", *names, "--local", *given])
    mine, released = (
        Counter((row["data_source"], row["prompt"][-1]["content"]) for row in read(path))
        for path in (tmp_path / "valid.parquet", SHARED / "valid.parquet")
    )
    assert mine == released and sum(mine.values()) == 2259


def test_gpqa_names_the_letter_of_the_right_choice():
    for number in range(20):
        prompt, letter = benchmark_rows.read(
            BENCHMARKS["gpqa"], GPQA | {"Question": f"What {number}?"}
        )
        assert f"\n{letter}) right" in prompt and "ANSWER: $LETTER" in prompt
        assert sorted(line[3:] for line in prompt.splitlines()[-4:]) == [
            "right",
            "wrong 1",
            "wrong 2",
            "wrong 3",
        ]
        assert benchmark_rows.read(BENCHMARKS["gpqa"], GPQA | {"Question": f"What {number}?"}) == (
            prompt,
            letter,
        )
    letters = [
        benchmark_rows.read(BENCHMARKS["gpqa"], GPQA | {"Question": f"What {n}?"})[1]
        for n in range(400)
    ]
    assert all(
        70 <= letters.count(letter) <= 130 for letter in "ABCD"
    )  # 100 expected, standard deviation 8.7


def test_some_benchmarks_without_a_system_message(local, tmp_path):
    main(
        [
            *local[:2],
            "--benchmarks",
            "math",
            "--system_prompt_file",
            "none",
            "--local",
            local[2 + 4],
        ]
    )
    [row] = read(tmp_path / "out" / "valid.id.parquet")
    assert [turn["role"] for turn in row["prompt"]] == ["user"]
    assert not (tmp_path / "out" / "valid.ood.parquet").exists()


def test_the_system_message_of_a_training_file(local, tmp_path, capsys):
    def training(*messages):
        system = [[{"role": "system", "content": text}] if text else [] for text in messages]
        prompts = [[*turns, {"role": "user", "content": "q"}] for turns in system]
        pq.write_table(pa.table({"prompt": prompts}), tmp_path / "train.parquet")
        return [
            "--benchmarks",
            "math",
            "--system_prompt_file",
            str(tmp_path / "train.parquet"),
            *math,
        ]

    math = [*local[:3], local[3 + 3]]
    main(training("think", "think"))
    [row] = read(tmp_path / "out" / "valid.id.parquet")
    assert row["prompt"][0] == {"role": "system", "content": "think"}
    assert "has 2 system messages; must be one in all rows" in refused(
        training("think", "other"), capsys
    )
    assert "has 2 system messages" in refused(training("think", None), capsys)
    assert "empty; 'none' leaves the system message out" in refused(training(None), capsys)
    pq.write_table(pa.table({"question": ["q"]}), tmp_path / "train.parquet")
    options = [
        "--benchmarks",
        "math",
        "--system_prompt_file",
        str(tmp_path / "train.parquet"),
        *math,
    ]
    assert "train.parquet: no column 'prompt'; it has question" in refused(options, capsys)


def test_rows_in_verls_schema_go_through_beside_built_ones(local, tmp_path):
    """The released MMLU-Pro numbers its questions under the name that is a text with us."""
    row = {
        "data_source": "mmlu_pro",
        "prompt": [{"content": "Q\n\nA) x", "role": "user"}],
        "ability": "math",
        "reward_model": {"ground_truth": "A", "style": "rule"},
        "extra_info": {"index": 3, "question_id": 70},
    }
    pq.write_table(
        pa.Table.from_pylist([row, row, {**row, "data_source": "other"}]), tmp_path / "verl.parquet"
    )
    arguments = [*local[:2], "--benchmarks", "arc_c", "mmlu_pro"]
    main([*arguments, "--local", local[9], f"mmlu_pro={tmp_path / 'verl.parquet'}"])
    found = read(tmp_path / "out" / "valid.ood.parquet")
    assert [row["data_source"] for row in found] == ["arc_c", "mmlu_pro", "mmlu_pro"]
    assert found[1] == found[2] and found[1]["prompt"] == row["prompt"]
    assert found[1]["extra_info"]["question_id"] == "70" and found[1]["extra_info"]["index"] == 3


@pytest.mark.parametrize(
    ("name", "row", "complaint"),
    [
        (
            "math",
            {"question": "q", "answer": "1"},
            "no column 'problem' (math); it has question, answer",
        ),
        ("math", {"problem": "q", "answer": ""}, "row 0 has no answer (math)"),
        ("math", {"problem": " ", "answer": "1"}, "row 0 has no question (math)"),
        ("arc_c", HUB_ROWS["arc_c"] | {"answerKey": "E"}, "row 0 has no answer (arc_c)"),
        ("arc_c", HUB_ROWS["arc_c"] | {"choices": "a, b"}, "row 0 is not in the format of arc_c"),
        ("mmlu_pro", HUB_ROWS["mmlu_pro"] | {"answer": "D"}, "row 0 has no answer (mmlu_pro)"),
        ("gpqa", GPQA | {"Question": None}, "row 0 is not in the format of gpqa"),
    ],
)
def test_wrong_rows_get_one_line_and_leave_no_file(name, row, complaint, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    output = tmp_path / "out"
    error = refused(
        ["--output_dir", str(output), "--benchmarks", name, "--local", f"{name}={path}"], capsys
    )
    assert complaint in error and error.count("\n") == 1 and not output.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--local", "mth=x.jsonl"], "--local mth=...: must be among --benchmarks aime aime25"),
        (["--local", "x.jsonl"], "must be NAME=FILE"),
        (
            ["--benchmarks", "math", "--local", "amc=x.jsonl"],
            "--local amc=...: must be among --benchmarks math",
        ),
        (["--benchmarks", "math", "--local", "math=missing.jsonl"], "missing.jsonl"),
        (["--benchmarks", "math", "--local", "math=x.txt"], "must end in .parquet"),
    ],
)
def test_wrong_arguments(arguments, complaint, tmp_path, capsys):
    assert complaint in refused(["--output_dir", str(tmp_path), *arguments], capsys)


def test_help_names_the_data_sets():
    done = watched.run([sys.executable, str(HERE), "--help"])
    assert done.returncode == 0 and all(
        benchmark.source["hub"] in done.stdout for benchmark in BENCHMARKS.values()
    )


@pytest.mark.skipif(not SHARED.is_dir(), reason="the evaluation data is not beside the checkout")
def test_the_released_file_goes_through_unchanged(tmp_path):
    path = SHARED / "test.id.parquet"
    names = [
        name for name, benchmark in BENCHMARKS.items() if benchmark.file_name == "valid.id.parquet"
    ]
    main(
        [
            "--output_dir",
            str(tmp_path),
            "--benchmarks",
            *names,
            "--local",
            *(f"{name}={path}" for name in names),
        ]
    )
    before, after = read(path), read(tmp_path / "valid.id.parquet")
    assert after == [row for name in names for row in before if row["data_source"] == name]
    assert len(after) == len(before)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the evaluation data is not beside the checkout")
def test_released_answers_agree_with_themselves_and_with_their_clean_form():
    """Every Minerva answer, a sixth of the others (all of them take half a minute)."""
    golds = {
        (row["data_source"], row["reward_model"]["ground_truth"]): None
        for row in read(SHARED / "test.id.parquet")
    }
    pairs = [pair for place, pair in enumerate(golds) if pair[0] == "minerva" or place % 6 == 0]
    rows = [
        {
            "benchmark": name,
            "response": rf"So \boxed{{{form}}}",
            "answer": gold,
            "finish_reason": "stop",
        }
        for name, gold in pairs
        for form in dict.fromkeys((gold.strip().strip("$."), clean(gold)))
    ]
    assert [
        row for row, graded in zip(rows, grade(rows), strict=True) if not graded["correct"]
    ] == []
