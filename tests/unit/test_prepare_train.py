"""data/prepare_train.py: what it reads, what it drops, what it writes, and how it says no."""

import json
import random
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from exgrpo.data_files import read_question_ids
from exgrpo.experience.question_id import question_id, row_question_id
from exgrpo_data import prepare_train
from exgrpo_tools.texts import answer_text

DATA = Path(__file__).parents[2] / "data"
SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "train"


def prepare(tmp_path, rows, *options, name="in.jsonl"):
    source, output = tmp_path / name, tmp_path / "out" / "train.parquet"
    source.write_text(
        rows if isinstance(rows, str) else "\n".join(json.dumps(row) for row in rows),
        encoding="utf-8",
    )
    prepare_train.main(["--input_file", str(source), "--output_file", str(output), *options])
    return pq.read_table(output).to_pylist()


def test_a_row_in_verls_schema(tmp_path):
    rows = prepare(
        tmp_path,
        [{"question": " 1+1? ", "answer": 2, "target": "long"}],
        "--system_prompt_file",
        "none",
    )
    assert rows == [
        {
            "data_source": "in",
            "prompt": [{"role": "user", "content": "1+1?"}],
            "ability": "math",
            "reward_model": {"ground_truth": "2", "style": "rule"},
            "extra_info": {"index": 0, "question_id": question_id("1+1?"), "split": "train"},
        }
    ]
    assert list((tmp_path / "out").iterdir()) == [
        tmp_path / "out" / "train.parquet"
    ]  # no temporary file is left


def test_the_system_message_asks_for_both_sections(tmp_path):
    system, user = prepare(tmp_path, [{"problem": "q", "solution": "1"}])[0]["prompt"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert all(
        word in system["content"]
        for word in ("<think>", "</think>", r"\boxed{}", "Thought", "Solution")
    )


CHAT = [{"role": "system", "content": " theirs "}, {"role": "user", "content": "q1"}]


@pytest.mark.parametrize(
    ("options", "systems"),
    [
        ((), ["theirs", "ours"]),
        (("--system_prompt_file", "file"), ["other"] * 2),
        (("--system_prompt_file", "none"), []),
    ],
)
def test_a_system_message_of_the_data_is_kept_unless_another_is_given(
    tmp_path, capsys, options, systems
):
    (tmp_path / "file").write_text("other")
    options = [str(tmp_path / "file") if option == "file" else option for option in options]
    rows = prepare(
        tmp_path,
        [{"prompt": CHAT, "answer": "1"}, {"prompt": CHAT[1:], "answer": "1"}],
        *options,
    )
    assert len(rows) == 1  # one question, written twice; the first stays
    rows = prepare(
        tmp_path, [{"prompt": CHAT, "answer": "1"}, {"prompt": "q2", "answer": "1"}], *options
    )
    ours = (DATA / "system_prompt.txt").read_text().strip()
    found = [
        message["content"]
        for row in rows
        for message in row["prompt"]
        if message["role"] == "system"
    ]
    assert found == [ours if system == "ours" else system for system in systems]
    said = "system message: the row's own in 1 rows, that of system_prompt.txt in 1"
    assert (said in capsys.readouterr().out) is (not options)


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("16 - 9 = 7\n#### 7", "7"),
        ("#### 1,234,567", "1234567"),
        ("#### (1,2)", "(1,2)"),
        (r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{broken", r"\boxed{broken"),
        ("025", "025"),
        (142.0, "142.0"),
        (["7"], "7"),
        ([1, 2], ""),
        (float("nan"), ""),
        (None, ""),
        ("  ", ""),
    ],
)
def test_the_final_answer_is_cut_out(answer, final):
    assert answer_text(answer) == final


def test_nested_columns_messages_and_other_formats(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "q1"}]
    row = {"prompt": chat, "reward_model": {"ground_truth": "5"}}
    (found,) = prepare(tmp_path, [row])
    assert found["prompt"] == chat and found["reward_model"]["ground_truth"] == "5"
    assert found["extra_info"]["question_id"] == row_question_id({}, chat)
    again = prepare(
        tmp_path, [{"a": {"b": "q1"}, "c": 1}], "--question_key", "a.b", "--answer_key", "c"
    )
    assert again[0]["extra_info"]["question_id"] == found["extra_info"]["question_id"]
    (comma,) = prepare(tmp_path, 'question,answer\n"a, b?",3\n', name="in.csv")
    assert comma["prompt"][1]["content"] == "a, b?"


def test_what_is_dropped_is_said(tmp_path, capsys):
    questions = [
        ("a x", "1"),
        ("a  x", "1"),
        ("b", "1"),
        ("b", "2"),
        ("b", "1"),
        ("c", ""),
        ("", "4"),
        ("d", None),
        ("e", "5"),
    ]
    rows = prepare(tmp_path, [{"question": q, "answer": a} for q, a in questions])
    assert [row["prompt"][1]["content"] for row in rows] == ["a x", "e"]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1]
    assert capsys.readouterr().out.splitlines()[1:6] == [
        "9 rows read, 2 questions kept",
        "dropped 2: no answer, such as row 5 'c'; row 7 'd'",
        "dropped 1: no question, such as row 6 '4'",
        "dropped 1: a repeated question, such as row 1 'a  x'",
        "dropped 3: a question with conflicting answers, such as row 2 'b'; row 3 'b'; row 4 'b'",
    ]


def test_shuffle_and_limit(tmp_path):
    given = [{"question": f"q{n}", "answer": n} for n in range(20)]
    first, again = (
        prepare(tmp_path, given, "--shuffle-seed", "3", "--limit", "5") for _ in range(2)
    )
    order = [f"q{n}" for n in range(20)]
    random.Random(3).shuffle(order)
    assert first == again and [row["prompt"][1]["content"] for row in first] == order[:5]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [{"question": "q", "text": "1"}],
            (),
            "no column of these names: answer, .* it has question, text",
        ),
        (
            [{"question": "q", "answer": "1"}],
            ("--answer_key", "gold"),
            r"no column 'gold' \(--answer_key\)",
        ),
        ([{"question": "q", "answer": ""}], (), "no question with an answer is left"),
        ("", (), "no rows"),
        ("{", (), "line 1 is not JSON"),
        ('{"question": ' + "[" * 100_000, (), "line 1 is not JSON .maximum recursion depth"),
        ([{"question": "q", "answer": "1"}], ("--system_prompt_file", "/nowhere"), "no such file"),
    ],
)
def test_an_error_is_one_line_and_writes_nothing(tmp_path, capsys, rows, options, message):
    with pytest.raises(SystemExit) as exit_info:
        prepare(tmp_path, rows, *options)
    error = capsys.readouterr().err.splitlines()[-1]
    assert exit_info.value.code == 2
    assert re.search(message, error) and error.startswith("exgrpo-data train: error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["out.jsonl", "folder.parquet"])
def test_the_output_is_a_parquet_file(tmp_path, capsys, name):
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(SystemExit):
        prepare_train.main(["--input_file", "none.jsonl", "--output_file", str(tmp_path / name)])
    assert f"{name}: must be a file that ends in .parquet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("x.jsonl", "must be UTF-8 text"), ("x.parquet", "is not Parquet")]
)
def test_a_damaged_file_is_named(tmp_path, capsys, name, said):
    (tmp_path / name).write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit):
        prepare_train.main(
            ["--input_file", str(tmp_path / name), "--output_file", str(tmp_path / "out.parquet")]
        )
    assert f"error: {tmp_path / name}: {said}" in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.is_dir(), reason="the training data is not beside the checkout")
def test_real_files_go_through(tmp_path):
    files = sorted(SHARED.glob("*.parquet"))
    output = tmp_path / "all.parquet"
    prepare_train.main(
        ["--input_file", *map(str, files), "--output_file", str(output), "--limit", "2000"]
    )
    ids = read_question_ids([str(output)])
    assert len(ids) == len(set(ids)) == 2000
    written = pq.read_table(output).to_pylist()
    assert ids == [row["extra_info"]["question_id"] for row in written]
    (own,) = {row["prompt"][0]["content"] for row in pq.read_table(files[0]).to_pylist()}
    assert {row["prompt"][0]["content"] for row in written} == {own.strip()}


TURNS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "What is 20+20?"},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]},
    {"role": "tool", "content": "40"},
    {"role": "assistant", "content": "40"},
    {"role": "user", "content": "And half of it?"},
]


def test_a_chat_keeps_all_its_messages_and_is_told_from_others_by_all_of_them(tmp_path, capsys):
    other = [{**turn, "content": turn["content"].replace("40", "100")} for turn in TURNS]
    prefilled = [TURNS[1], {"role": "assistant", "content": "It is"}]
    rows = [(TURNS, "20"), (other, "50"), (prefilled, "40"), (TURNS[1:2], "40")]
    found = prepare(tmp_path, [{"prompt": chat, "answer": answer} for chat, answer in rows])
    kept = [
        [{key: value for key, value in turn.items() if value is not None} for turn in row["prompt"]]
        for row in found
    ]
    assert kept[0] == TURNS and kept[1] == other  # the developer's message is the instructions
    assert kept[2][1:] == prefilled and kept[3][1:] == TURNS[1:2]
    said = capsys.readouterr().out
    assert "3 rows are chats, with all messages; 1 end in the assistant's turn" in said
    ids = read_question_ids([str(tmp_path / "out" / "train.parquet")])
    assert len(set(ids)) == 4 and ids[3] == question_id(TURNS[1]["content"])
    # the file without our ids names them alike where no instructions were added
    assert row_question_id(None, found[0]["prompt"]) == ids[0]


def test_the_answer_at_the_end_of_messages_is_no_part_of_the_question(tmp_path, capsys):
    answered = [TURNS[1], {"role": "assistant", "content": r"It is \boxed{40}."}]
    (row,) = prepare(tmp_path, [{"messages": answered}], "--system_prompt_file", "none")
    assert row["prompt"] == TURNS[1:2] and row["reward_model"]["ground_truth"] == "40"
    assert "questions of messages, answers of messages" in capsys.readouterr().out
    rows = [{"messages": answered, "answer": 41}]
    (row,) = prepare(tmp_path, rows, "--system_prompt_file", "none")
    assert row["prompt"] == TURNS[1:2] and row["reward_model"]["ground_truth"] == "41"


def test_several_answers_of_a_row_all_count(tmp_path):
    rows = [{"question": "a", "answer": ["1/2", "0.5", None]}, {"question": "b", "answer": 3}]
    golds = [row["reward_model"]["ground_truth"] for row in prepare(tmp_path, rows)]
    assert golds == [["1/2", "0.5"], ["3"]]


FORMS = {
    "bom.jsonl": '\ufeff{"question":"2+3","answer":5}\r\n{"question":"7","answer":"\u2028 7"}\r\n',
    "list.json": '[{"question": "2+3", "answer": 5},\n {"question": "7", "answer": 7}]',
    "excel.csv": "\ufeffquestion;answer\r\n2+3;5\r\n7;7\r\n",
    "tabs.csv": "question\tanswer\n2+3\t5\n7\t7\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_files_as_laptops_write_them(tmp_path, name):
    rows = prepare(tmp_path, FORMS[name], name=name)
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["5", "7"]


def test_an_integer_keeps_its_digits_and_a_file_is_no_name_of_a_dataset(tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "o.parquet"
    source.write_text('{"question": "big?", "answer": 12345678901234567890123}\n')
    prepare_train.main(["--dataset_name", str(source), "--output_file", str(output)])
    (row,) = pq.read_table(output).to_pylist()
    assert row["reward_model"]["ground_truth"] == "12345678901234567890123"
    assert row["data_source"] == "in"


def test_answers_that_the_grader_does_not_take_are_counted(tmp_path, capsys):
    rows = [{"question": "a", "answer": "2"}, {"question": "b", "answer": "x^{"}]
    prepare(tmp_path, rows)
    assert "not take 1 of 2 as their own response: no rollout can be right there (row 1 'x^" in (
        capsys.readouterr().out
    )


BASE = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"


def test_lengths_in_tokens_and_how_many_the_limit_drops(tmp_path, capsys):
    rows = [{"question": "1" * count, "answer": "2"} for count in (2, 3, 90)]
    options = ["--tokenizer", str(BASE), "--max_prompt_length", "40"]
    prepare(tmp_path, rows, "--system_prompt_file", "none", *options)
    assert "1 are longer than data.max_prompt_length=40, and a training" in capsys.readouterr().out


def test_answers_are_judged_by_the_reward_that_is_named(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info, least):\n"
        "    return float(len(ground_truth) >= least and ground_truth in solution_str)\n"
    )
    rows = [{"question": "a", "answer": "2"}, {"question": "b", "answer": "a whale"}]
    prepare(tmp_path, rows, "--reward", f"{tmp_path}/mine.py:score", "--reward_kwargs", "least=5")
    said = capsys.readouterr().out
    assert (
        "mine.py:score does not take 1 of 2 as their own response" in said and "row 0 '2'" in said
    )
