"""Rows of trajectories for a pool: every bit kept, and every refused row with its reason."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from exchanged_rows import TOKENS, Letters, bits, question, random_trajectories, write_train_file
from transformers import AutoTokenizer

from exgrpo.experience.question_id import prompt_id, question_id
from exgrpo.experience.trajectory import Trajectory
from exgrpo_tools.inspect.exchange import read_rows, to_row, write_rows
from exgrpo_tools.inspect.import_rows import RowImporter
from exgrpo_tools.inspect.questions import Question, ids_by_text, read_questions

ROOT = Path(__file__).parents[2]


@pytest.fixture
def train_file(tmp_path):
    return write_train_file(tmp_path / "train.parquet")


@pytest.fixture
def importer(train_file):
    return RowImporter(read_questions([str(train_file)]), Letters(), 8, "recorded")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_round_trip_keeps_every_bit(tmp_path, importer, suffix):
    unique = {trajectory.key: trajectory for trajectory in random_trajectories(200)}.values()
    rows = [
        to_row("why", 1 + i % 7, trajectory, "Why?", None) for i, trajectory in enumerate(unique)
    ]
    assert write_rows(tmp_path / f"rows{suffix}", rows) == len(unique) > 100
    numbers, read = zip(*read_rows(tmp_path / f"rows{suffix}"), strict=True)
    imported = [importer.read(row) for row in read]
    assert numbers == tuple(range(1, len(unique) + 1))
    assert [bits(row.trajectory) for row in imported] == [bits(trajectory) for trajectory in unique]
    assert [row.successes for row in imported] == [row["successes"] for row in rows]
    assert {row.question for row in imported} == {"why"}
    assert any(not trajectory.has_log_probs for trajectory in unique)


def test_a_file_reads_back_in_pandas_and_the_old_one_stays_until_the_new_is_whole(tmp_path):
    path = tmp_path / "rows.parquet"
    write_rows(path, [to_row("q", 2, Trajectory([1, 2], [-1.0, -0.5], 7), "Why?", "ab")])
    row = pandas.read_parquet(path).iloc[0]
    assert (row.question_id, row.question, row.successes, row.step, row.response) == (
        "q",
        "Why?",
        2,
        7,
        "ab",
    )
    assert (
        row.tokens.tolist() == [1, 2]
        and row.log_probs.tolist() == [-1.0, -0.5]
        and np.isnan(row.entropy)
    )

    def broken():
        yield to_row("q", 2, Trajectory([1], [-1.0], 0), None, None)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_rows(path, broken())
    assert len(pandas.read_parquet(path)) == 1 and [file.name for file in tmp_path.iterdir()] == [
        "rows.parquet"
    ]


@pytest.mark.parametrize(
    "named",
    [
        {"question_id": "why"},
        {"question": "  Why?\n"},
        {"prompt": "Why?"},
        {"prompt": [{"role": "user", "content": "Why?"}]},
        question("Why?"),
        {"question_id": "why", "question": "something else"},
    ],
)
def test_a_question_is_found_by_id_text_or_messages(importer, named):
    assert importer.read({"tokens": [1], **named}).question == "why"


def test_the_id_of_a_chat_without_a_name_is_that_of_its_messages(importer):
    name = prompt_id(question("What is\n1 + 1?")["prompt"])
    assert importer.read({"question": "What is 1  + 1?", "tokens": [1]}).question == name


def test_a_text_under_two_ids_is_no_name():
    twice = {
        name: Question([{"role": "user", "content": text}], "")
        for name, text in (("a", "x"), ("b", "x"), ("c", "y"))
    }
    assert ids_by_text(twice) == {question_id("y"): "c"}


def test_a_response_is_tokenised_and_ended_once(importer):
    first = importer.read({"question": "Why?", "response": "abc", "correct": True})
    again = importer.read({"question": "How many?", "response": "abc<end>", "reward": 1.0})
    assert first.trajectory.tokens.tolist() == again.trajectory.tokens.tolist() == [1, 2, 3, 0]
    assert (
        not first.trajectory.has_log_probs
        and first.successes is None
        and first.trajectory.step == 0
    )


def test_tokens_count_where_there_are_both_and_gaps_of_pandas_are_no_answer(importer):
    row = importer.read(
        {**TOKENS, "response": "hhh", "successes": 3.0, "step": 2, "correct": None, "entropy": 1}
    )
    assert row.trajectory.tokens.tolist() == [1, 2, 0] and (row.successes, row.trajectory.step) == (
        3,
        0,
    )
    assert row.trajectory.entropy == 1.0


def test_json_writes_certainty_as_an_integer(importer):
    row = importer.read({"question": "Why?", "tokens": [1, 2], "log_probs": [0, 0]})
    assert row.trajectory.log_probs.tolist() == [0.0, 0.0] and row.trajectory.has_log_probs


@pytest.mark.parametrize(
    ("opening", "response", "expected"),
    [
        ("<think>\n", "<think>\nSo.</think>2", "So.</think>2<|im_end|>"),
        ("<think>", "<think>\nSo.</think>2", "\nSo.</think>2<|im_end|>"),
        ("<think>\n", "So.</think>2<|im_end|>", "So.</think>2<|im_end|>"),
        ("", "<think>\nSo.</think>2", "<think>\nSo.</think>2<|im_end|>"),
        (None, "<think>\nSo.</think>2", "<think>\nSo.</think>2<|im_end|>"),
    ],
)
def test_a_thought_that_the_prompt_opens_is_not_opened_again(
    train_file, opening, response, expected
):
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "exp_scripts" / "quickstart" / "base_model")
    tokenizer.chat_template = (
        None if opening is None else f"{{{{ messages[-1]['content'] + {opening!r} }}}}"
    )
    row = {"question": "Why?", "response": response}
    read = RowImporter(read_questions([str(train_file)]), tokenizer, 8, "none").read(row)
    assert tokenizer.decode(read.trajectory.tokens) == expected


@pytest.mark.parametrize("mode", ["none", "model"])
def test_log_probs_are_left_out_where_they_are_not_asked_for(train_file, mode):
    importer = RowImporter(read_questions([str(train_file)]), Letters(), 8, mode)
    assert not importer.read({**TOKENS, "log_probs": [1.0, "x"]}).trajectory.has_log_probs


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": "Who?"}, "question='Who?': not a question of the data"),
        ({"question_id": "who"}, "question_id='who': not a question of the data"),
        ({"question": None}, "no question_id, question, prompt or messages"),
        ({"question": 7}, "question is a int: must be a text or messages"),
        ({"question_id": ["why"]}, "question_id is a list: must be a text"),
        (
            {"prompt": [{"role": "user"}], "question": None},
            "prompt is a list: must be a text or messages",
        ),
        ({"prompt": [], "question": None}, "prompt is a list: must be a text or messages"),
        ({"log_probs": [-1.0]}, "log_probs has 1 entries for 3 tokens"),
        ({"log_probs": []}, "log_probs has shape (0,)"),
        ({"log_probs": [-1.0, float("nan"), -1.0]}, "log_probs[1]=nan: must be finite"),
        ({"log_probs": [-1.0, -1.0, float("-inf")]}, "log_probs[2]=-inf: must be finite"),
        ({"log_probs": [0.5, -1.0, -1.0]}, "log_probs[0]=0.5: must be finite and not above 0"),
        ({"log_probs": [-1e39, -1.0, -1.0]}, "must be finite"),
        ({"log_probs": ["-1", "-1", "-1"]}, "log_probs has type <U2"),
        ({"log_probs": [-1.0, None, -1.0]}, "log_probs has type object"),
        ({"log_probs": "none"}, "log_probs must be a list of numbers"),
        ({"tokens": [1, 2, 9]}, "tokens holds 9: must be below 9, the size of the vocabulary"),
        ({"tokens": [1, 2, -1]}, "tokens holds -1: must be between 0"),
        ({"tokens": [1, 2, 2**40]}, "tokens holds 1099511627776"),
        ({"tokens": [1, 2, 2**80]}, "tokens has type object"),
        ({"tokens": []}, "tokens=[]: must have one token or more"),
        (
            {"tokens": [], "log_probs": None, "note": "a text"},
            "tokens=[]: must have one token or more",
        ),
        (
            {"tokens": [], "log_probs": [], "note": "a text", "response": "h"},
            "tokens=[]: must have one token or more",
        ),
        ({"tokens": [[1], [2], [3]]}, "tokens has shape (3, 1)"),
        ({"tokens": [[1], [2, 3]]}, "inhomogeneous"),
        ({"tokens": [1.0, 2.0, 0.0]}, "tokens has type float64: must be an integer type"),
        ({"tokens": [True, 1, 2]}, "tokens must be a list of integers"),
        ({"tokens": "abc"}, "tokens must be a list of integers"),
        ({"tokens": None}, "log_probs without tokens"),
        ({"tokens": None, "log_probs": None}, "no tokens and no response"),
        (
            {"tokens": None, "log_probs": None, "response": " "},
            "response=' ': must be a text that is not empty",
        ),
        ({"tokens": None, "log_probs": None, "response": 5}, "response='5': must be a text"),
        ({"correct": False}, "correct=False: must be true or 1, a correct answer"),
        ({"is_correct": 0}, "is_correct=0: must be"),
        ({"reward": 1.5}, "reward='1.5': must be above 0 and at most 1"),
        ({"score": float("nan")}, "score=nan: must be"),
        ({"acc": "yes"}, "acc='yes': must be true or 1"),
        ({"successes": 9}, "successes=9: must be an integer between 0 and 8"),
        ({"successes": -1}, "successes=-1: must be an integer between 0 and 8"),
        ({"successes": 2.5}, "successes=2.5: must be an integer"),
        ({"successes": True}, "successes=True: must be an integer"),
        ({"entropy": -0.5}, "entropy=-0.5: must be a mean entropy"),
        ({"entropy": "low"}, "entropy='low': must be a number"),
    ],
)
def test_a_wrong_row_is_refused_with_its_reason(importer, change, reason):
    with pytest.raises(ValueError) as error:
        importer.read({**TOKENS, **change})
    assert (
        reason in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) <= 200
    )
    importer.read(TOKENS)  # what was refused is not remembered as a duplicate


def test_a_duplicate_is_one_of_the_same_question_alone(importer):
    importer.read(TOKENS)
    importer.read({**TOKENS, "question": "How many?"})
    with pytest.raises(ValueError, match="duplicate"):
        importer.read({**TOKENS, "log_probs": [-2.0, -2.0, -2.0]})


def test_lines_that_are_no_rows_are_reported_by_their_numbers(tmp_path):
    lines = [b'{"tokens": [1]}', b"", b"{", b"[1]", b'"\xff"', b"[" * 100_000, b'{"a": 1}']
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    found = dict(read_rows(tmp_path / "rows.jsonl"))
    assert (
        found[1] == {"tokens": [1]} and found[7] == {"a": 1} and sorted(found) == [1, 3, 4, 5, 6, 7]
    )
    assert (
        found[3].startswith("not JSON")
        and found[5].startswith("not JSON")
        and found[6].startswith("not JSON")
    )
    assert found[4] == "is a list: must be a JSON object"
