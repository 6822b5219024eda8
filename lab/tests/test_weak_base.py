"""The study of a weak model: its curve, its table, its picture."""

import weak_base
from study_runs import Results, Run


def made_up(tests):
    rows = enumerate(tests)
    return {
        "area": 0.0,
        "curve": [{"step": s, "test": t} | ({"entropy": 0.1, "length": 5.0} if s else {}) for s, t in rows],
    }


def test_a_run_whose_end_is_below_half_its_best_has_collapsed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(weak_base, "SEEDS", 2)
    results = Results(tmp_path / "runs.parquet")
    for task in weak_base.TASKS:
        for name in weak_base.EVERY:
            for seed in range(2):
                fallen = name == "on-policy" and seed == 1
                tests = [0, 0.2, 0.4, 0.4, 0.1, 0.1] if fallen else [0, 0.2, 0.4, 0.4, 0.3, 0.3]
                results.add(Run(task, name, weak_base.POINT, seed), made_up(tests))
    weak_base.main(["--file", str(tmp_path / "runs.parquet"), "--jobs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| rare-sum | on-policy |") and lines[2].endswith("| 1 of 2 |")
    assert lines[3].endswith("| .100 (-1.171 to 1.371) | 0 of 2 |") and len(lines) == 2 + 3 * len(weak_base.EVERY)
    assert (tmp_path / "runs.png").stat().st_size > 10_000


def test_the_curve_has_the_length_of_what_was_sampled(monkeypatch):
    monkeypatch.setattr(weak_base, "COMMON", weak_base.COMMON | {"loop.steps": "6"})
    run = Run("caesar", "ExGRPO", weak_base.POINT, 0)
    first, second = weak_base.perform(run), weak_base.perform(run)
    assert first == second and [row["step"] for row in first["curve"]] == [0, 6]
    assert 5 < first["curve"][1]["length"] <= 12 and first["curve"][1]["entropy"] > 0
