"""Comparisons of graded files: paired differences, flips, and files that do not fit together."""

import subprocess
import sys
from pathlib import Path

import pytest
from graded_rows import row, save, two_benchmarks

from exgrpo_eval import compare
from exgrpo_eval.estimate import estimates, graded_file, paired_runs
from exgrpo_eval.estimate.estimates import Estimate
from exgrpo_eval.reports import command as report

EVAL = Path(compare.__file__).parent


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "must hold at least one sample"),
        ("{\n", "line 1: must be JSON"),
        ("[]\n", "line 1: must be an object"),
        ('{"benchmark": "x"}\n', "line 1: has no verdict"),
        ('{"benchmark": 3, "correct": true}\n', "line 1: benchmark=3: must be of type str"),
    ],
)
def test_what_is_no_graded_file_gets_one_line(content, complaint, tmp_path, capsys):
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(SystemExit) as stopped:
        report.main([str(path)])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and complaint in error and error.count("\n") == 1


def test_a_run_compared_with_itself_differs_in_nothing(tmp_path):
    path = save(tmp_path / "a.jsonl", two_benchmarks())
    first, other = compare.align([compare.load(path), compare.load(path)], shared_only=False)
    found = paired_runs.differences(first, other)
    assert {each.value for own in found.values() for each in own.values()} == {0.0}
    most = estimates.wilson(0.0, 4)[1]  # of aime's four questions
    assert found["aime"]["mean"] == Estimate(0.0, -most, most)
    assert paired_runs.flips(first, other, "aime") == paired_runs.Flips([], [])


def test_differences_are_paired(tmp_path):
    """Each question is one sample of eight better: unpaired intervals overlap widely, the paired
    one excludes 0.
    """
    a = [row("math", q, s, s < q % 8) for q in range(64) for s in range(8)]
    b = [row("math", q, s, s < q % 8 + 1) for q in range(64) for s in range(8)]
    runs = [
        compare.load(save(tmp_path / f"{name}.jsonl", rows)) for name, rows in (("a", a), ("b", b))
    ]
    found = paired_runs.differences(*compare.align(runs, shared_only=False))["math"]["mean"]
    others = estimates.wilson(0.0, 64)[
        1
    ]  # as many of the questions may differ otherwise, by -1 or by 1
    ends = (1 / 8 - others * (1 / 8 + 1), 1 / 8 + others * (1 - 1 / 8))
    assert (found.value, found.low, found.high) == pytest.approx(
        (1 / 8, *ends)
    ) and found.low > 0.05


def test_flips_and_their_list(tmp_path):
    a = [row("math", q, 0, q < 3) for q in range(6)]
    b = [
        row("math", q, 0, q in (1, 2, 5)) for q in reversed(range(6))
    ]  # another order of the same questions
    runs = [
        compare.load(save(tmp_path / f"{name}.jsonl", rows)) for name, rows in (("a", a), ("b", b))
    ]
    first, other = compare.align(runs, shared_only=False)
    assert paired_runs.flips(first, other, "math") == paired_runs.Flips([5], [0])
    text = compare.markdown([first, other])
    assert f"math, became right (1):\n\n- {5:032x} (Mean@n .000 to 1.000)" in text
    assert f"math, became wrong (1):\n\n- {0:032x} (Mean@n 1.000 to .000)" in text
    assert "| math | 6 | .500" in text


def test_other_questions_are_refused_unless_the_shared_are_asked_for(tmp_path, capsys):
    a = save(tmp_path / "a.jsonl", [row("math", q, 0, True) for q in range(6)])
    b = save(
        tmp_path / "b.jsonl",
        [row("math", q, 0, q > 3) for q in range(2, 9)] + [row("amc", 20, 0, True)],
    )
    with pytest.raises(SystemExit) as stopped:
        compare.main([str(a), str(b)])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.count("\n") == 1
    assert (
        "benchmark=math: must have the same questions in all files (a 6, b 7; in common 4)" in error
    )
    compare.main([str(a), str(b), "--shared_only"])
    assert "| math | 4 | 1.000 (.510 to 1.000) | 1 | .500" in capsys.readouterr().out
    c = save(tmp_path / "c.jsonl", [row("gpqa", 20, 0, True)])
    for flags in ([], ["--shared_only"]):
        with pytest.raises(SystemExit):
            compare.main([str(a), str(c), *flags])
        error = capsys.readouterr().err
        assert "the files have no question in common: a has 6 of math; c has 1 of gpqa" in error
        assert error.count("\n") == 1


def test_questions_are_paired_whatever_their_benchmarks_are_called(tmp_path, capsys):
    """One file has a benchmark where the other has two, named after a file, and another form of a
    gold answer.
    """
    a = save(
        tmp_path / "a.jsonl",
        [row("math", q, 0, q < 2) for q in range(6)] + [row("amc", 9, 0, True)],
    )
    other = [row("out", q, 0, True) for q in (9, 0, 1, 2)] + [
        row("rest", q, 0, q == 3, answer=f"{q}.0") for q in (5, 4, 3)
    ]
    b = save(tmp_path / "b.jsonl", other)
    compare.main([str(a), str(b)])
    text = capsys.readouterr().out
    paired = (
        "Paired by question id: math (6 questions), in b of out, rest; amc (1 question), in b "
        "of out."
    )
    assert f"{paired} Of b's, 3 have another gold answer." in text
    line, _ = [
        line for line in text.splitlines() if line.startswith("| math | +.333")
    ]  # of differences, of tests
    assert line.endswith("| 2 | 0 |")  # questions 2 and 3 became right
    _, second = compare.align([compare.load(path) for path in (a, b)], shared_only=False)
    assert second.scores["math"].column("mean").tolist() == [1, 1, 1, 1, 0, 0]
    compare.main([str(b), str(a)])
    assert (
        "out (4 questions), in a of math, amc; rest (3 questions), in a of math."
        in capsys.readouterr().out
    )


def test_benchmarks_with_unlike_samples_are_not_joined(tmp_path, capsys):
    a = save(tmp_path / "a.jsonl", [row("all", q, 0, True) for q in range(3)])
    b = save(
        tmp_path / "b.jsonl",
        [row("x", 0, s, True) for s in (0, 1)] + [row("y", q, 0, True) for q in (1, 2)],
    )
    with pytest.raises(SystemExit):
        compare.main([str(a), str(b)])
    error = capsys.readouterr().err
    assert "all of b: has 1 to 2 samples per question" in error and error.count("\n") == 1


def test_one_benchmark_has_no_second_mean(tmp_path, capsys):
    paths = [
        str(save(tmp_path / f"{name}.jsonl", [row("math", q, 0, q < 3) for q in range(6)]))
        for name in "abcd"
    ]
    for flags in (paths[:2], ["--runs_a", *paths[:2], "--runs_b", *paths[2:]]):
        compare.main(flags)
        text = capsys.readouterr().out
        assert (
            "| **mean over benchmarks**" not in text
            and "| math | " in text
            and "cannot be resolved |" in text
        )


def test_runs_with_other_numbers_of_samples_share_what_can_be_compared(tmp_path):
    a = save(tmp_path / "a.jsonl", [row("math", q, s, s == 0) for q in range(6) for s in range(4)])
    b = save(tmp_path / "b.jsonl", [row("math", q, s, s == 0) for q in range(6) for s in range(2)])
    found = paired_runs.differences(
        *compare.align([compare.load(a), compare.load(b)], shared_only=False)
    )
    assert set(found["math"]) == {"mean", "pass@1", "pass@2"} == set(found["overall"])
    assert found["math"]["mean"].value == 0.25 and found["math"]["pass@2"].value == 0.5


def test_scripts_say_what_they_do_without_anything_heavy():
    for script in ("report.py", "compare.py"):
        done = subprocess.run(
            [sys.executable, str(EVAL / script), "--help"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and "OUTPUT.jsonl" in done.stdout


def test_a_file_without_votes_can_be_read(tmp_path):
    bare = row("math", 0, 0, True)
    for key in ("vote", "timed_out", "extracted"):
        del bare[key]
    assert graded_file.read(save(tmp_path / "a.jsonl", [bare]))[0]["vote"] is None
