"""--grade_only: responses of other harnesses, graded and reported as a run of our own."""

import json

import eval_inputs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exgrpo_eval import compare
from exgrpo_eval.generate import command as generate_vllm
from exgrpo_eval.grade import response_files
from exgrpo_eval.reports import report_page

PROMPT = "What is half of one?"
RIGHT, WRONG = r"It is \boxed{\frac{1}{2}}.", r"It is \boxed{2}."


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lm_eval(doc_id, responses, target="0.5", filter_name="none", arguments=None):
    """As lm-eval 0.4.9 writes a sample of a generating task."""
    prompt = f"Question: {PROMPT} ({doc_id})\nAnswer:"
    return {
        "doc_id": doc_id,
        "doc": {"question": PROMPT, "answer": target},
        "target": target,
        "arguments": arguments or {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["</s>"]}}},
        "resps": [responses],
        "filtered_resps": responses[:1],
        "filter": filter_name,
        "exact_match": 0.0,
    }


def lighteval(number, responses, prefix="", choices=("0.5",), gold=0):
    """As lighteval 0.13 writes a row of its details."""
    document = {
        "query": f"{PROMPT} ({number})",
        "choices": list(choices),
        "gold_index": gold,
        "generation_size": 5,
    }
    tokens = [list(range(5 if response == "..." else 3)) for response in responses]
    return {
        f"{prefix}doc{prefix}": document | {"id": str(number), "task_name": "aime24|0"},
        f"{prefix}model_response{prefix}": {"text": responses, "output_tokens": tokens},
        f"{prefix}metric{prefix}": {"pass@k": 0.0},
    }


def graded(file, tmp_path, *flags):
    output = tmp_path / "out" / "graded.jsonl"
    generate_vllm.main(["--grade_only", str(file), "--output_file", str(output), *flags])
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_it_gives_the_files_of_a_run(tmp_path):
    file = jsonl(
        tmp_path / "halves.jsonl",
        {
            "question": PROMPT,
            "responses": [RIGHT, WRONG],
            "gold": "0.5",
            "completion_tokens": [7, 9],
        },
        {
            "question": "And of two?",
            "responses": [WRONG, r"\boxed{1}"],
            "gold": 1,
            "finish_reason": ["stop", "length"],
        },
    )
    rows = graded(file, tmp_path, "--model_path", "someone/model")
    assert [(row["question"], row["sample"], row["correct"]) for row in rows] == [
        (0, 0, True),
        (0, 1, False),
        (1, 0, False),
        (1, 1, False),  # right, but cut off
    ]
    assert [row["tokens"] for row in rows] == [7, 9, None, None] and {
        row["benchmark"] for row in rows
    } == {"halves"}
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {
        f"graded.{end}" for end in ("jsonl", "run.json", "report.json", "report.md", "report.html")
    }
    assert (tmp_path / "out" / "graded.report.md").read_text().startswith("# someone/model\n")
    report = json.loads((tmp_path / "out" / "graded.report.json").read_text())
    assert report["benchmarks"]["halves"]["estimates"]["mean"]["value"] == 0.25
    assert report["run"]["files"].keys() == {str(file)} and report["hardware"] is None
    facts = dict(report_page.facts(report))
    assert facts["responses"] == "of another harness, graded here; - tokens"
    assert {"machine of the grading", "versions of the grading"} <= set(facts)
    assert not {"generated", "server", "started"} & set(facts)


def test_what_the_file_does_not_say_is_null_and_a_dash(tmp_path, capsys):
    """Neither lengths nor finish reasons nor sampling, of one response of four but the length and
    the reason.
    """
    file = jsonl(
        tmp_path / "halves.jsonl",
        {
            "question": PROMPT,
            "responses": [RIGHT, WRONG],
            "gold": "0.5",
            "tokens": [7, None],
            "stop_reason": [None, "eos"],
        },
        {"id": 3, "responses": [WRONG, RIGHT], "gold": 1},
    )
    rows = graded(file, tmp_path)
    assert [row["tokens"] for row in rows] == [7, None, None, None]
    assert [row["finish_reason"] for row in rows] == [None, "eos", None, None]
    assert [row["prompt"] for row in rows] == [PROMPT, PROMPT, None, None]
    record = json.loads((tmp_path / "out" / "graded.run.json").read_text())
    for name in (
        "template",
        "seed",
        "temperature",
        "top_p",
        "max_tokens",
        "n",
        "dtype",
        "gpu_memory_utilization",
    ):
        assert record["settings"][name] is None
    for name in (
        "model_path",
        "template",
        "seed",
        "model_sha256",
        "started",
        "seconds",
        "generated_tokens",
    ):
        assert record[name] is None
    sampling = "Sampling: model -, n 2, temperature -, top_p -, max_tokens -, seed -, template -."
    line = "| halves | 2 | 2 |"
    printed = capsys.readouterr().out
    text, page = ((tmp_path / "out" / f"graded.report.{end}").read_text() for end in ("md", "html"))
    assert sampling in printed and sampling in text and f"<p>{sampling}</p>" in page
    for written in (printed, text):
        [found] = [each for each in written.splitlines() if each.startswith(line)]
        assert found.endswith("| 7 (of 1 of 4) | .000 (of 1 of 4) |")
    assert (
        text.startswith("# responses of halves.jsonl\n")
        and '<td class="n">7 (of 1 of 4)</td>' in page
    )
    again = graded(tmp_path / "out" / "graded.jsonl", tmp_path / "again")  # and reads its own nulls
    assert [[row[key] for key in ("tokens", "finish_reason", "prompt")] for row in again] == [
        [row[key] for key in ("tokens", "finish_reason", "prompt")] for row in rows
    ]


def test_of_no_response_is_a_length_known(tmp_path, capsys):
    graded(
        jsonl(tmp_path / "a.jsonl", {"question": PROMPT, "response": RIGHT, "gold": "0.5"}),
        tmp_path,
    )
    report = json.loads((tmp_path / "out" / "graded.report.json").read_text())
    assert (
        report["benchmarks"]["a"]["cut_off"] is None
        and report["benchmarks"]["a"]["finish_known"] == 0
    )
    assert report["benchmarks"]["a"]["tokens"] == {
        "responses": 0,
        "median": None,
        "p95": None,
        "max": None,
        "mean": None,
        "mean_right": None,
        "mean_wrong": None,
    }
    assert "| - | - |" in capsys.readouterr().out
    assert (
        "| a | 1 | - | - | - | - | - | - | - | .000 | 0 |"
        in (tmp_path / "out" / "graded.report.md").read_text()
    )


def test_clusters_are_kept(tmp_path):
    rows = [
        {"question": f"{n}?", "response": RIGHT, "gold": "0.5", "cluster": c}
        for n, c in enumerate((3, "", "b"))
    ]
    assert [row.get("cluster") for row in graded(jsonl(tmp_path / "a.jsonl", *rows), tmp_path)] == [
        "3",
        None,
        "b",
    ]


def test_a_file_of_ours_comes_back_with_its_verdicts(tmp_path):
    rows = graded(
        jsonl(
            tmp_path / "a.jsonl",
            *({"problem": PROMPT, "output": r, "gt": "0.5"} for r in (RIGHT, WRONG)),
        ),
        tmp_path,
    )
    kept = jsonl(tmp_path / "ours.jsonl", *rows)
    again = graded(kept, tmp_path, "--restart")
    assert [{**row, "input_file": ""} for row in again] == [
        {**row, "input_file": ""} for row in rows
    ]


def test_rows_of_one_question_are_its_samples_and_are_paired_across_harnesses(tmp_path):
    one = response_files.read(
        jsonl(
            tmp_path / "one.jsonl", *({"query": PROMPT, "output": r, "target": "1"} for r in "ab")
        )
    ).rows
    (two,) = response_files.read(
        jsonl(
            tmp_path / "two.jsonl",
            {
                "prompt": [{"role": "user", "content": PROMPT}],
                "response": "c",
                "reward_model": {"ground_truth": "1"},
            },
        )
    ).rows
    assert [(row["question"], row["sample"]) for row in one] == [(0, 0), (0, 1)]
    assert one[0]["question_id"] == one[1]["question_id"] == two["question_id"]


def test_without_a_text_the_harness_own_number_names_the_question(tmp_path):
    rows = response_files.read(
        jsonl(tmp_path / "a.jsonl", *({"id": n, "response": "a", "answer": "1"} for n in (4, 5)))
    ).rows
    assert [(row["question"], row["question_id"], row["prompt"]) for row in rows] == [
        (0, "4", None),
        (1, "5", None),
    ]


def test_letters_are_judged_as_letters(tmp_path):
    file = jsonl(
        tmp_path / "quiz.jsonl", {"id": 1, "response": "ANSWER: B", "gold": "B", "grader": "letter"}
    )
    (row,) = graded(file, tmp_path)
    assert row["correct"] and row["rule"] == "letter" and row["extracted"] == "B"


def test_samples_of_lm_eval(tmp_path):
    """Each filter has all responses again."""
    old = lm_eval(1, [WRONG, WRONG], arguments=[["the prompt", {"until": []}]])
    twice = [
        lm_eval(0, [RIGHT, WRONG], filter_name=name)
        for name in ("strict-match", "flexible-extract")
    ]
    file = jsonl(
        tmp_path / "samples_gsm8k_cot_2026-03-01T10-00-00.123.jsonl",
        *twice,
        {**old, "filter": "strict-match"},
    )
    rows = graded(file, tmp_path)
    assert [row["correct"] for row in rows] == [True, False, False, False]
    assert {row["benchmark"] for row in rows} == {"gsm8k_cot"}
    assert rows[0]["prompt"].startswith(f"Question: {PROMPT}") and rows[2]["prompt"] == "the prompt"


@pytest.mark.parametrize("prefix", ["", "__"])
def test_details_of_lighteval(prefix, tmp_path):
    rows = [
        lighteval(0, [RIGHT, WRONG], prefix, gold=[0]),
        lighteval(1, ["...", RIGHT], prefix, choices=["a", "1/2"], gold=[1]),
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "details.parquet")
    found = graded(tmp_path / "details.parquet", tmp_path)
    assert [row["correct"] for row in found] == [True, False, False, True]
    assert [row["finish_reason"] for row in found] == ["stop", "stop", "length", "stop"]
    assert [row["tokens"] for row in found] == [3, 3, 5, 3] and found[0]["benchmark"] == "aime24"


def test_compare_reads_two_of_them(tmp_path, capsys):
    for name, response in (("a", RIGHT), ("b", WRONG)):
        file = jsonl(
            tmp_path / f"{name}-in.jsonl",
            {"dataset": "x", "question": PROMPT, "response": response, "gold": "0.5"},
        )
        generate_vllm.main(
            ["--grade_only", str(file), "--output_file", str(tmp_path / f"{name}.jsonl")]
        )
    compare.main([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    assert "-1.000" in capsys.readouterr().out


def released(number, gold, text, **more):
    """As the release writes a row of OUTPUT.decoded.jsonl and, with its verdict, of
    OUTPUT.jsonl.
    """
    return {
        "prompt": f"[user]{PROMPT} ({number})[assistant]<think>\n",
        "generated_text": text,
        "answer": gold,
        **more,
    }


def test_files_of_the_release_whose_benchmarks_the_questions_file_names(tmp_path):
    """Its scored file has what follows </think>, or the whole of a response that has none; the
    other has all.
    """
    whole = [r"\boxed{1} </think> \boxed{2}", r"Let me see \boxed{2}", r"a </think> \boxed{3}"]
    parts = [r" \boxed{2}", "<think>\n" + whole[1], r" \boxed{3}"]
    asked = [0, 0, 1]  # one question twice, as AIME's stand there
    rows = [eval_inputs.row(f"{PROMPT} ({n})", "2", "aime" if n == 0 else "math") for n in asked]
    questions = eval_inputs.parquet(tmp_path, rows)
    found = {}
    for name, texts, more in (("o.decoded", whole, {}), ("o", parts, {"correctness": True})):
        lines = [released(n, "2", text, **more) for n, text in zip(asked, texts, strict=True)]
        file = jsonl(tmp_path / f"{name}.jsonl", *lines)
        with pytest.raises(
            ValueError, match=r"\(--input_file QUESTIONS.parquet names the benchmark of each row\)"
        ):
            response_files.read(file)
        flags = ["--input_file", str(questions), "--add_oat_evaluate", "--restart"]
        found[name] = graded(file, tmp_path, *flags)
    for graded_rows in found.values():
        assert [(row["benchmark"], row["question"], row["sample"]) for row in graded_rows] == [
            ("aime", 0, 0),
            ("aime", 0, 1),
            ("math", 0, 0),
        ]
        assert [row["math_verify_correct"] for row in graded_rows] == [True, False, False]
        assert [row["oat_correct"] for row in graded_rows] == [True, True, False]
    first = (tmp_path / "out" / "graded.report.md").read_text().splitlines()[2]
    assert first == "Prompt: as in o.jsonl, whose harness chose template and system message."


def test_responses_to_other_questions_are_refused(tmp_path):
    questions = eval_inputs.parquet(
        tmp_path, [eval_inputs.row("Else?", "1"), eval_inputs.row("Other?", "2")]
    )
    file = jsonl(tmp_path / "o.jsonl", released(0, "1", "x"), released(1, "2", "x"))
    with pytest.raises(ValueError, match="row 0: does not answer row 0 of --input_file"):
        response_files.read(file, [questions])
    with pytest.raises(ValueError, match="has 2 questions, but --grade_only has 1 rows"):
        response_files.read(jsonl(tmp_path / "o.jsonl", released(0, "1", "x")), [questions])


GOOD = {"question": PROMPT, "response": "a", "gold": "1"}


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (
            [GOOD, {**GOOD, "response": None}, {"question": "q", "response": "a"}],
            "row 1: no response: must have a text",
        ),
        (
            [GOOD, {**GOOD, "response": None}, {"question": "q", "response": "a"}],
            "; row 2: no gold answer: must have one of",
        ),
        (
            [{"response": "a", "gold": "1"}],
            "row 0: no question: must have one of question, problem",
        ),
        ([{**GOOD, "response": ["a", 3]}], "row 0: no response"),
        (
            [{**GOOD, "response": ["a"], "tokens": [1, 2]}],
            "row 0: 1 responses, but 2 values beside them",
        ),
        ([{**GOOD, "grader": "judge"}], "row 0: grader='judge': must be math or letter"),
        (
            [GOOD, GOOD, {**GOOD, "question": "q"}],
            "row 2: its question has 1 responses, the first of in has 2",
        ),
        ([{"question": "q"}] * 9, "; and 4 more"),
        (
            [{**lm_eval(0, []), "resps": [[[-1.5, False]], [[-2.5, True]]]}],
            "row 0: resps: must hold one request's texts",
        ),
        ([lighteval(0, ["a"], choices=["1", "2"], gold=[0, 1])], "row 0: doc: has 2 gold answers"),
        ([lighteval(0, ["a"], gold=3)], "row 0: doc: gold_index must say"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_written(rows, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        graded(jsonl(tmp_path / "in.jsonl", *rows), tmp_path)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and complaint in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--skip_scoring"], "--skip_scoring=True: leaves nothing to do"),
        (["--limit", "3"], "--limit=3: not with --grade_only"),
        (["--n", "4"], "--n=4: not with --grade_only"),
    ],
)
def test_flags_that_do_not_go_with_it(flags, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit):
        graded(tmp_path / "in.jsonl", tmp_path, *flags)
    assert complaint in capsys.readouterr().err


def test_the_file_that_is_graded_is_not_overwritten(tmp_path, capsys):
    """By whatever path it is named."""
    file = jsonl(tmp_path / "in.jsonl", GOOD)
    before = file.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(file)
    for other in (tmp_path / ".." / tmp_path.name / "in.jsonl", tmp_path / "link.jsonl"):
        with pytest.raises(SystemExit):
            generate_vllm.main(
                ["--grade_only", str(file), "--output_file", str(other), "--restart"]
            )
        assert f"--output_file={other}: is the file of --grade_only" in capsys.readouterr().err
    assert file.read_bytes() == before and not (tmp_path / "link.run.json").exists()


def test_another_runs_output_is_not_overwritten(tmp_path, capsys):
    graded(jsonl(tmp_path / "in.jsonl", GOOD), tmp_path)
    graded(tmp_path / "in.jsonl", tmp_path)  # its own is
    with pytest.raises(SystemExit):
        graded(jsonl(tmp_path / "in.jsonl", {**GOOD, "gold": "2"}), tmp_path)
    assert "--restart overwrites it" in capsys.readouterr().err


TOOLKIT = [
    {"question": PROMPT, "gt": "0.5", "code": [RIGHT, WRONG], "pred": ["0.5", "2"]},
    {"question": "1+1?", "gt": "2", "code": [WRONG, "3"], "pred": ["2", "3"]},
]
CHAT = [{"role": "user", "content": PROMPT}]
OTHERS = {
    "the toolkit of Qwen2.5-Math": (
        [row | {"score": [True, False]} for row in TOOLKIT],
        "2 rows: question of question, response of code, gold of gt, verdict of score",
        [True, False, True, False],
        4,
    ),
    "verl's dump of a validation": (
        [
            {"input": "user\nhalf?\nassistant\n", "output": RIGHT, "gts": "0.5", "score": 1.0},
            {"input": "user\nhalf?\nassistant\n", "output": WRONG, "gts": "0.5", "score": 1.0},
        ],
        "2 rows: question of input, response of output, gold of gts, verdict of score",
        [True, False],
        1,
    ),
    "OpenCompass": (
        {
            str(place): {
                "origin_prompt": [{"role": "HUMAN", "prompt": f"{PROMPT} {place}"}],
                "prediction": said,
                "gold": "0.5",
            }
            for place, said in enumerate((RIGHT, WRONG))
        },
        "2 rows: question of origin_prompt, response of prediction, gold of gold",
        [True, False],
        None,
    ),
    "TRL": (
        [
            {
                "prompt": CHAT,
                "completion": [{"role": "assistant", "content": RIGHT}],
                "answer": 0.5,
            },
            {
                "prompt": CHAT,
                "completion": [{"role": "assistant", "content": WRONG}],
                "answer": 0.5,
            },
        ],
        "2 rows: question of prompt, response of completion, gold of answer",
        [True, False],
        None,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_harnesses_are_read_by_their_responses(name, tmp_path, capsys):
    content, columns, verdicts, same = OTHERS[name]
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(content, indent=4))
    rows = graded(file, tmp_path)
    assert [row["correct"] for row in rows] == verdicts
    said = capsys.readouterr().out
    assert columns in said
    assert ("the file's own verdicts" in said) is (same is not None)
    if same is not None:
        assert f"own verdicts: {same} of {len(rows)} are the same here; right there and " in said


def test_of_a_list_of_golds_each_counts(tmp_path):
    rows = [{"question": PROMPT, "response": RIGHT, "answer": ["7", "1/2"]}]
    (row,) = graded(jsonl(tmp_path / "o.jsonl", *rows), tmp_path)
    assert row["correct"] and row["answers"] == ["7", "1/2"]
