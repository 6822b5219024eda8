"""How well gradients agree: cosines of made ones, ages of groups, one measurement of a small run."""

import gradient_agreement as study
import gradient_agreement_report
import gradient_by_beta
import numpy as np
import pytest
import run_files
import torch
from minimal_loop import Rows

from exgrpo import Trajectory


def test_a_step_agrees_as_far_as_its_groups_do(monkeypatch):
    monkeypatch.setattr(study, "COMPOSITIONS", {"along": {"a": 2}, "across": {"b": 1}, "both": {"a": 1, "b": 1}})
    kinds = {"a": torch.tensor([3.0, 0.0]).repeat(64, 1), "b": torch.tensor([0.0, 3.0]).repeat(64, 1)}
    found = study.agreements(kinds, torch.tensor([2.0, 0.0]), np.random.default_rng(0))
    assert found == {"along": pytest.approx(1), "across": pytest.approx(0), "both": pytest.approx(0.5**0.5)}


def test_groups_of_an_age_have_an_advantage_and_are_of_those_steps():
    history = study.History()
    for step in range(1, 9):
        mine = [
            Trajectory(np.array([step], np.int32), np.zeros(1, np.float32), step, 0.1, reward=reward)
            for reward in (1.0, 0.0)
        ]
        history.steps.append([(f"q{step}", mine), ("solved", [mine[0], mine[0]])])
    assert [question for question, _ in history.of_age(1, 3)] == ["q6", "q7", "q8"]
    assert [question for question, _ in history.of_age(6, 8)] == ["q1", "q2", "q3"]
    assert history.of_age(6, 9) == []
    past = study.whole(history.of_age(1, 1)[0])
    assert isinstance(past, Rows) and past.stored[0].rollouts[0].step == 8 and not past.fresh


def test_a_small_run_measures_each_composition_to_both_references(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(study, "STEPS", (6, 7))
    monkeypatch.setattr(study, "LOOP", ("loop.questions=4", "loop.steps=7", "loop.test_every=7"))
    monkeypatch.setattr(study, "GROUPS", 8)
    monkeypatch.setattr(study, "REFERENCE", 1024 + 1024)
    rows = study.perform("backward", 0)
    first = rows[0]
    assert [row["reference"] for row in rows] == ["training", "held-out"] * 2
    assert {"on-policy", "ExGRPO", "phantom", "prompt", "groups of 1 to 5 steps ago"} <= set(first["cosine"])
    assert all(-1 <= value <= 1 for value in first["cosine"].values())
    file, picture = tmp_path / "rows.parquet", tmp_path / "rows.png"
    run_files.add(file, *rows)
    gradient_agreement_report.main(["--file", str(file), "--picture", str(picture)])
    assert "| ExGRPO | " in capsys.readouterr().out and picture.exists()


def test_what_of_a_gradient_is_along_another_and_how_lengths_spread():
    each = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    found = gradient_by_beta.measures(each, torch.tensor([2.0, 0.0]), unit=4.0)
    assert found["along"] == pytest.approx(0.5) and found["agreement"] == pytest.approx(2 / 13**0.5)
    assert found["spread"] == pytest.approx(8**0.5 / 3)


def test_where_the_policy_has_not_moved_shaping_lets_through_what_its_derivative_says(monkeypatch):
    monkeypatch.setattr(study, "REFERENCE", 1024)
    monkeypatch.setattr(gradient_by_beta, "LOOP", ("loop.questions=4", "loop.steps=5", "loop.lr=0"))
    monkeypatch.setattr(gradient_by_beta, "AGES", ((1, 5),))
    monkeypatch.setattr(gradient_by_beta, "GROUPS", 4)
    rows = {row["loss"]: row for row in gradient_by_beta.perform("backward", 0)}
    plain = rows["no shaping"]["along"]
    assert rows["fresh group"]["along"] == 1 and plain != 0
    for beta in (0.01, 0.1, 0.5, 1.0):
        mine = rows[f"beta {beta:g}"]  # of w / (w + beta), at w = 1
        assert mine["along"] / plain == pytest.approx(beta / (1 + beta) ** 2, rel=0.02)
        assert mine["agreement"] == pytest.approx(rows["no shaping"]["agreement"], rel=0.02)
    assert "| 1 to 5 | TOPR |" in gradient_by_beta.table([*rows.values()])
