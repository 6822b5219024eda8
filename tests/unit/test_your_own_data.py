"""docs/your-own-data.md: its questions become the row that it shows, and its reward judges them."""

import json
import re
from pathlib import Path

import pandas as pd

from exgrpo_data import prepare_train

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-data.md").read_text()


def block(language):
    """The page's first block of code in this language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, language
    return found[1]


def test_the_questions_of_the_page_become_the_row_that_it_shows(tmp_path, monkeypatch):
    (tmp_path / "questions.jsonl").write_text(block("jsonl"))
    monkeypatch.chdir(tmp_path)
    command = re.search(r"^exgrpo-data train (.*?)\n(?! )", PAGE, re.DOTALL | re.MULTILINE)
    assert prepare_train.main(command[1].replace("\\\n", "").split()) in (0, None)
    rows = json.loads(pd.read_parquet("mine/train.parquet").to_json(orient="records"))
    assert rows[0] == json.loads(block("json"))
    batch = int(re.search(r"data.train_batch_size=(\d+)", PAGE)[1])
    assert len(rows) == len(block("jsonl").splitlines()) >= batch


def test_the_reward_of_the_page_judges_them():
    names = {}
    exec(block("python"), names)
    assert (
        names["compute_score"]("", r"5;6;6;10;\boxed{10}", "10", None, require_think=False) == 1.0
    )
    assert names["compute_score"]("", r"\boxed{10} or \boxed{11}", "10", None) == 0.0
    assert names["compute_score"]("", "10", "10", None) == 0.0
