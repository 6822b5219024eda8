"""data/make_tasks.py: distinct, held-out, reproducible questions, also without the packages it can
do without.
"""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from exgrpo_data import make_tasks

pytest.importorskip("reasoning_gym")
ROOT = Path(__file__).parents[2]

ONE_DIGIT = [
    "--param",
    "min_terms=2",
    "--param",
    "max_terms=2",
    "--param",
    "min_digits=1",
    "--param",
    "max_digits=1",
]


def make(folder, *options):
    make_tasks.main(["--output_dir", str(folder), *options])
    return [pq.read_table(folder / f"{split}.parquet").to_pylist() for split in ("train", "test")]


def ids(rows):
    return {row["extra_info"]["question_id"] for row in rows}


@pytest.mark.parametrize(("task", "operators"), [("chain_sum", "+-"), ("products", "*")])
def test_one_digit_tasks_with_test_questions_held_out(tmp_path, task, operators):
    train, test = make(tmp_path, "--task", task, *ONE_DIGIT, "--count", "60", "--test_count", "20")
    assert (len(train), len(test)) == (60, 20) == (len(ids(train)), len(ids(test)))
    assert not ids(train) & ids(test)
    for row in train + test:
        text = row["prompt"][0]["content"]
        middle = next(
            i
            for i in range(2, len(text) - 2)
            if text[i] in operators and text[i - 1] == text[i + 1] == " "
        )
        assert str(eval(text[middle - 2 : middle + 3])) == row["reward_model"]["ground_truth"]


def test_a_seed_is_reproducible_and_neighbours_differ(tmp_path):
    options = ["--task", "chain_sum", "--count", "50", "--test_count", "10"]
    first, again, other = (make(tmp_path, *options, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert len(ids(first[0] + first[1]) & ids(other[0] + other[1])) < 5
    assert [row["extra_info"]["index"] for row in first[0]] == list(range(50))


def test_the_test_set_does_not_depend_on_the_training_count(tmp_path):
    few, many = (
        make(tmp_path, "--task", "gcd", "--count", count, "--test_count", "5")
        for count in ("3", "30")
    )
    assert few[1] == many[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--task", "chain_sum", *ONE_DIGIT, "--count", "500"],
            "200 distinct questions in 25250 draws, not 505",
        ),
        (["--task", "chain_sums", "--count", "5"], "'chain_sums' not registered"),
        (
            ["--task", "chain_sum", "--param", "nope=1", "--count", "5"],
            "unexpected keyword argument 'nope'",
        ),
        (
            ["--task", "chain_sum", "--param", "min_terms=0", "--count", "5"],
            "min_terms must be positive",
        ),
        (
            ["--task", "chain_sum", "--param", "min_terms", "--count", "5"],
            "'min_terms': must be key=value",
        ),
        (["--task", "chain_sum", "--count", "0"], "must be 1 or more"),
    ],
)
def test_an_error_is_one_line(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as exit_info:
        make(tmp_path, *options, "--test_count", "5")
    assert exit_info.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_it_runs_without_the_packages_it_does_not_need():
    code = """
import importlib.machinery, sys
from exgrpo_data import make_tasks
find = importlib.machinery.PathFinder.find_spec
hidden = lambda name, *rest: None if name.partition(".")[0] in make_tasks.NOT_NEEDED else find(name, *rest)
importlib.machinery.PathFinder.find_spec = hidden
try:
    import pycosat
    raise SystemExit("it is not hidden")
except ImportError:
    pass
assert len(make_tasks.draw("chain_sum", 0, 5, {})) == 5
assert not make_tasks.NOT_NEEDED & set(sys.modules)
"""  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
