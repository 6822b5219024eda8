"""Question ids read from data files: the same whatever the format, unique, and refused clearly
where they cannot be.
"""

import json

import pandas as pd
import pytest

from exgrpo.data_files import is_local, read_question_ids
from exgrpo.experience.question_id import fingerprint, question_id, row_question_id


def row(text, **extra):
    return {
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": text}],
        "extra_info": extra,
    }


def write(path, rows):
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("\n".join(json.dumps(one) for one in rows))
    return str(path)


def test_an_id_is_of_the_question_not_of_its_white_space_or_place():
    assert question_id(" 1 +\n2") == question_id("1 + 2") != question_id("1 + 3")
    assert row_question_id({"question_id": "mine"}, row("x")["prompt"]) == "mine"
    assert row_question_id({"index": 4}, row("x")["prompt"]) == row_question_id(
        None, row("x")["prompt"]
    )


def test_formats_and_files_agree(tmp_path):
    rows = [row("a", index=0), row("b", index=1)]
    ids = read_question_ids([write(tmp_path / "t.parquet", rows)])
    assert ids == [question_id("a"), question_id("b")]
    assert read_question_ids([write(tmp_path / "t.jsonl", rows)]) == ids
    two = [write(tmp_path / "1.parquet", rows[:1]), write(tmp_path / "2.parquet", rows[1:])]
    assert read_question_ids(two) == ids


def test_a_fingerprint_is_of_the_set():
    assert fingerprint(["a", "b"]) == fingerprint(["b", "a"]) != fingerprint(["a", "c"])


def test_what_cannot_be_read_is_named(tmp_path):
    twice = write(
        tmp_path / "twice.parquet", [row("a", index=0), row("b", index=1), row(" a", index=2)]
    )
    with pytest.raises(
        ValueError, match=r"twice\.parquet.*1 questions occur twice \(the first: row 2\)"
    ):
        read_question_ids([twice])
    with pytest.raises(
        ValueError, match=r"no column 'question' \(data\.prompt_key\); it has prompt, extra_info"
    ):
        read_question_ids([twice], "question")


def test_remote_paths_are_left_alone():
    assert is_local("/a/b.parquet") and is_local("b.parquet") and not is_local("hdfs://a/b.parquet")
