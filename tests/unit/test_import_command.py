"""Imports and exports by the command: what a training loads, what stays equal, and which rows are
refused.
"""

import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import tasks
from exchanged_rows import TOKENS, Letters, bits, random_trajectories, write_train_file

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint
from exgrpo.saved.pool_files import read_saved
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools.inspect import __main__ as inspect
from exgrpo_tools.inspect.exchange import read_rows
from exgrpo_tools.inspect.questions import read_questions

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"


@pytest.fixture
def train_file(tmp_path):
    return write_train_file(tmp_path / "train.parquet")


@pytest.fixture
def letters(monkeypatch):
    """Whatever tokenizer a command names is Letters."""
    for module in ("exgrpo_tools.inspect.show", "exgrpo_tools.inspect.importing"):
        __import__(module)
        monkeypatch.setattr(sys.modules[module], "load_tokenizer", lambda path: Letters())


def import_command(rows, output, train_file, *more):
    files = ["--import", str(rows), "--output", str(output), "--train_files", str(train_file)]
    inspect.main([*files, "--tokenizer", "letters", "--trust", *more])


def test_an_imported_pool_is_one_a_training_loads(tmp_path, train_file, letters, capsys):
    rows = [
        TOKENS,
        {"question": "Who?", "tokens": [1]},
        {"question": "Why?", "response": "h", "successes": 7},
    ]
    rows.append({"question": "Why?", "tokens": [3]})  # silent: the 7 stays
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    import_command(tmp_path / "rows.jsonl", tmp_path / "pool", train_file, "--successes", "2")
    identity = {"data_fingerprint": fingerprint(read_questions([str(train_file)]))}
    pool = PoolFolder().load(tmp_path / "pool", ExperienceConfig(rollout_n=8), 0, identity)
    assert [trajectory.tokens.tolist() for trajectory in pool.candidates("why")] == [
        [1, 2, 0],
        [8, 0],
        [3],
    ]
    assert read_saved(tmp_path / "pool").state.buckets == [7]  # that of the latest row that says
    refused = [
        json.loads(line) for line in (tmp_path / "pool.rejected.jsonl").read_text().splitlines()
    ]
    assert [row["row"] for row in refused] == [2, 5]
    output = capsys.readouterr()
    assert (
        "row 2: question='Who?'" in output.err
        and "3 trajectories of 1 questions, 1 with log-probs" in output.out
    )


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_pool_that_was_exported_and_imported_holds_the_same(
    tmp_path, train_file, letters, capsys, suffix
):
    config = ExperienceConfig(rollout_n=8, experience_max_per_question=1000)
    pool = ExperiencePool(config)
    names = list(read_questions([str(train_file)]))
    for number, trajectory in enumerate(random_trajectories(60)):
        pool.file(names[number % 3], number % 3, trajectory)
    PoolFolder().save(pool, tmp_path / "pool", 90, {})
    export = tmp_path / f"rows{suffix}"
    inspect.main(
        [
            str(tmp_path / "pool"),
            "--export",
            str(export),
            "--train_files",
            str(train_file),
            "--tokenizer",
            "x",
        ]
    )
    import_command(export, tmp_path / "again", train_file)
    assert not (tmp_path / "again.rejected.jsonl").read_text()
    first, second = read_saved(tmp_path / "pool"), read_saved(tmp_path / "again")
    same = [
        [(name, *bits(trajectory)) for name, trajectory in saved.trajectories()]
        for saved in (first, second)
    ]
    assert same[0] == same[1] and first.state.buckets == second.state.buckets
    assert (
        PoolFolder()
        .adopt(tmp_path / "again", ExperienceConfig(rollout_n=8), {})[0]
        .bucket(names[0])
        == 1
    )  # not 0
    row = next(row for _, row in read_rows(export))
    assert row["question"] == "How many?" and row["response"] == Letters().decode(
        row["tokens"], False, False
    )


def test_many_refused_rows_are_counted_on_the_terminal_and_whole_in_the_file(
    tmp_path, train_file, letters, capsys
):
    (tmp_path / "rows.jsonl").write_text('{"question": "Who?", "tokens": [1]}\n' * 30)
    with pytest.raises(SystemExit) as left:
        import_command(tmp_path / "rows.jsonl", tmp_path / "pool", train_file)
    assert left.value.code == 2 and not (tmp_path / "pool").exists()
    output = capsys.readouterr()
    assert (
        output.err.count("row ") == 21 and "no row was accepted" in output.err
    )  # 20 and the last line
    assert "30 rows refused, 10 of them not shown" in output.out
    assert len((tmp_path / "pool.rejected.jsonl").read_text().splitlines()) == 30


def judged(folder, rows, *more):
    """The real command on rows for three of the quickstart's questions; (its process, the pool's
    trajectories).
    """
    questions = [tasks.row(text, number, "train") for number, text in enumerate(QUESTIONS)]
    pandas.DataFrame(questions).to_parquet(folder / "train.parquet")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["--import", "rows.jsonl", "--output", "pool", "--train_files", "train.parquet"]
    command = [
        sys.executable,
        "-m",
        "exgrpo_tools.inspect",
        *files,
        "--tokenizer",
        str(BASE_MODEL),
        *more,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done, list(read_saved(folder / "pool").trajectories()) if (
        folder / "pool"
    ).exists() else None


QUESTIONS = ["2+3+1+0+4", "5+5+0+1+2", "4+1+3+3+0"]  # 10, 13, 11


def test_answers_one_too_high_make_no_pool(tmp_path):
    rows = [
        {"question": text, "response": f"{n};\\boxed{{{tasks.answer(text) + 1}}}"}
        for n in range(134)
        for text in QUESTIONS
    ]
    done, pool = judged(tmp_path, rows[:400])
    assert (done.returncode, pool) == (
        2,
        None,
    ) and "no row was accepted" in done.stderr.splitlines()[-1]
    assert "judged: 0 right, 400 wrong, 0 unreadable; by strict; " in done.stdout


def test_a_row_of_each_kind_is_judged_and_a_hostile_one_is_refused_alone(tmp_path):
    chat = [
        {"role": "user", "content": QUESTIONS[0]},
        {"role": "assistant", "content": r"\boxed{10}"},
    ]
    rows = [
        {"messages": chat},
        {"question": QUESTIONS[1], "response": r"\boxed{12}", "correct": True},
        {"question": QUESTIONS[1], "response": "Who knows?"},
        {"question": QUESTIONS[1], "response": "\ud800"},
        {"question": QUESTIONS[1], "response": r"\boxed{13}", "entropy": 10**400},
        {"messages": chat[:1]},
        {"question": QUESTIONS[2], "response": r"\boxed{11}", "grader": "me"},
    ]
    done, pool = judged(tmp_path, rows)
    assert (
        done.returncode == 0
        and "judged: 2 right, 1 wrong, 1 unreadable; by strict; rules" in done.stdout
    )
    assert [trajectory.grader.split(";")[0] for _, trajectory in pool] == ["strict", "strict"]
    refused = [
        json.loads(line)["row"]
        for line in (tmp_path / "pool.rejected.jsonl").read_text().splitlines()
    ]
    assert refused == [2, 3, 4, 5, 6] and done.stderr.count("\n") == 5


def test_without_judging_the_pool_says_so(tmp_path):
    rows = [{"question": QUESTIONS[0], "response": r"\boxed{11}"}]
    done, pool = judged(tmp_path, rows, "--trust")
    assert done.returncode == 0 and [trajectory.grader for _, trajectory in pool] == [
        "stated; not judged"
    ]


def test_a_reward_function_of_ones_own_judges(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(data_source == 'sum5' and solution_str == ground_truth)\n"
    )
    rows = [
        {"question": QUESTIONS[0], "response": "10"},
        {"question": QUESTIONS[1], "response": "10"},
    ]
    done, pool = judged(tmp_path, rows, "--reward", "mine.py:score")
    assert (
        "judged: 1 right, 1 wrong, 0 unreadable; by mine.py:score; sha256" in done.stdout
        and len(pool) == 1
    )
