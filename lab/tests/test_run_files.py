"""lab/studies/run_files.py: rows come back as they were added, before and after they are one Parquet file."""

import run_files
from run_files import add, pack, read
from study_runs import Point, Results, Run

ROWS = [
    {"seed": 0, "area": 0.5, "curve": [{"step": 0, "test": 0.0}, {"step": 6, "test": 0.25, "entropy": 0.1}]},
    {"seed": 1, "steps": [[1, 0, 2, 2], [3, 0, 0, 0]], "of": {"groups of 1 to 5": 0.3}},
]


def test_rows_are_the_same_from_lines_from_parquet_and_from_both(tmp_path):
    file = tmp_path / "runs.parquet"
    assert read(file) == []
    add(file, *ROWS)
    assert read(file) == ROWS and not file.exists()
    pack(file)
    assert read(file) == ROWS and [path.name for path in tmp_path.iterdir()] == ["runs.parquet"]
    add(file, {"seed": 2, "area": 1.0})
    pack(file)
    assert read(file) == [*ROWS, {"seed": 2, "area": 1.0}]


def test_a_row_that_a_kill_left_in_both_files_is_one(tmp_path):
    file = tmp_path / "runs.parquet"
    add(file, *ROWS)
    pack(file)
    add(file, *ROWS)
    assert read(file) == ROWS


def test_what_is_packed_twice_is_not_written_again(tmp_path):
    file = tmp_path / "runs.parquet"
    add(file, *ROWS)
    pack(file)
    written = file.stat().st_mtime_ns
    pack(file)
    assert file.stat().st_mtime_ns == written


def test_a_run_comes_back_with_its_point(tmp_path):
    run = Run("caesar", "on-policy", Point("1e-4", "2", "4", "yes"), 500)
    Results(tmp_path / "runs.parquet").add(run, {"area": 0.25})
    run_files.pack(tmp_path / "runs.parquet")
    assert Results(tmp_path / "runs.parquet").found == {run: {"area": 0.25}}
