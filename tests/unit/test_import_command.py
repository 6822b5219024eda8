"""Imports and exports by the command: what a training loads, what stays equal, and which rows are refused."""

import json
import sys

import pytest
from exchanged_rows import TOKENS, Letters, bits, random_trajectories, write_train_file

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint
from exgrpo.saved.exchange import read_rows
from exgrpo.saved.pool_files import read_saved
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools.inspect import __main__ as inspect
from exgrpo_tools.inspect.questions import read_questions


@pytest.fixture
def train_file(tmp_path):
    return write_train_file(tmp_path / "train.parquet")


@pytest.fixture
def letters(monkeypatch):
    """Whatever tokenizer a command names is Letters."""
    for module in ("exgrpo_tools.inspect.look", "exgrpo_tools.inspect.importing"):
        __import__(module)
        monkeypatch.setattr(sys.modules[module], "load_tokenizer", lambda path: Letters())


def import_command(rows, output, train_file, *more):
    files = ["--import", str(rows), "--output", str(output), "--train_files", str(train_file)]
    inspect.main([*files, "--tokenizer", "letters", *more])


def test_an_imported_pool_is_one_a_training_loads(tmp_path, train_file, letters, capsys):
    rows = [TOKENS, {"question": "Who?", "tokens": [1]}, {"question": "Why?", "response": "h", "successes": 7}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    import_command(tmp_path / "rows.jsonl", tmp_path / "pool", train_file, "--successes", "2")
    identity = {"data_fingerprint": fingerprint(read_questions([str(train_file)]))}
    pool = PoolFolder().load(tmp_path / "pool", ExperienceConfig(rollout_n=8), 0, identity)
    assert [trajectory.tokens.tolist() for trajectory in pool.candidates("why")] == [[1, 2, 0], [8, 0]]
    assert read_saved(tmp_path / "pool").state.buckets == [7]  # the latest row's
    refused = [json.loads(line) for line in (tmp_path / "pool.rejected.jsonl").read_text().splitlines()]
    assert [row["row"] for row in refused] == [2, 4]
    output = capsys.readouterr()
    assert "row 2: question='Who?'" in output.err and "2 trajectories of 1 questions, 1 with log-probs" in output.out


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_pool_that_was_exported_and_imported_holds_the_same(tmp_path, train_file, letters, capsys, suffix):
    pool = ExperiencePool(ExperienceConfig(rollout_n=8, experience_max_per_question=1000))
    names = list(read_questions([str(train_file)]))
    for number, trajectory in enumerate(random_trajectories(60)):
        pool.file(names[number % 3], 1 + number % 3, trajectory)
    PoolFolder().save(pool, tmp_path / "pool", 90, {})
    export = tmp_path / f"rows{suffix}"
    inspect.main(
        [str(tmp_path / "pool"), "--export", str(export), "--train_files", str(train_file), "--tokenizer", "x"]
    )
    import_command(export, tmp_path / "again", train_file)
    assert not (tmp_path / "again.rejected.jsonl").read_text()
    first, second = read_saved(tmp_path / "pool"), read_saved(tmp_path / "again")
    same = [[(name, *bits(trajectory)) for name, trajectory in saved.trajectories()] for saved in (first, second)]
    assert same[0] == same[1] and first.state.buckets == second.state.buckets
    row = next(row for _, row in read_rows(export))
    assert row["question"] == "How many?" and row["response"] == Letters().decode(row["tokens"], False, False)


def test_many_refused_rows_are_counted_on_the_terminal_and_whole_in_the_file(tmp_path, train_file, letters, capsys):
    (tmp_path / "rows.jsonl").write_text('{"question": "Who?", "tokens": [1]}\n' * 30)
    with pytest.raises(SystemExit) as left:
        import_command(tmp_path / "rows.jsonl", tmp_path / "pool", train_file)
    assert left.value.code == 2 and not (tmp_path / "pool").exists()
    output = capsys.readouterr()
    assert output.err.count("row ") == 21 and "no row was accepted" in output.err  # 20 and the last line
    assert "30 rows refused, 10 of them not shown" in output.out
    assert len((tmp_path / "pool.rejected.jsonl").read_text().splitlines()) == 30
