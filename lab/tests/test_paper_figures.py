"""The paper's figures in small: a run's curve, the table, the picture."""

import paper_figures
from many_questions import TASK
from paper_figures import POINT, VARIANTS
from study_runs import Results, Run


def made_up(right, stored):
    rows = [{"step": step, "generated": step, "test": right} for step in (0, 8, 16, 24)]
    noted = {"entropy": 0.2, "fresh_score": 0.5, "pool_trajectories": stored, "retired_questions": 3}
    return {
        "seconds": 1.0,
        "curve": [row | (noted if row["step"] else {}) for row in rows],
        "last": {"held_out_pass_1": right},
    }


def test_each_variant_is_compared_with_exgrpo_and_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(paper_figures, "SEEDS", 2)
    results = Results(tmp_path / "runs.parquet")
    for name in VARIANTS:
        for seed in range(2):
            found = made_up(0.6 if name == "on-policy" else 0.5, 0 if name == "on-policy" else 7)
            results.add(Run(TASK.name, name, POINT, seed), found)
    paper_figures.main(["--file", str(tmp_path / "runs.parquet"), "--jobs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| ExGRPO | .500 (.500 to .500) |  | ") and lines[2].endswith("| 7 | 3 | 24 |")
    assert lines[3].startswith("| on-policy | .600 (.600 to .600) | **.100 (.100 to .100)** |")
    assert len(lines) == 2 + len(VARIANTS) and (tmp_path / "runs.png").stat().st_size > 10_000


def test_one_seed_decides_a_run_that_is_noted_each_fourth_step(monkeypatch):
    monkeypatch.setattr(paper_figures, "STEPS", 4)
    run = Run(TASK.name, "no shaping", POINT, 0)
    first, second = paper_figures.perform(run), paper_figures.perform(run)
    assert first["curve"] == second["curve"] and [row["step"] for row in first["curve"]] == [0, 4]
    assert first["curve"][1]["pool_trajectories"] > 0 and "test" in first["curve"][1]
