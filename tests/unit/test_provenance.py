"""Who judged a trajectory: from the settings of a run to the pool; what verl's rows say of the
rule.
"""

import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from exgrpo import full_grader, math_verify_reward
from exgrpo.experience.config import ExperienceConfig
from exgrpo.on_verl.observe import FreshRow, rollout_groups
from exgrpo.provenance import OURS, Provenance, of_settings, version_of

SETTINGS = {
    "path": OURS,
    "name": "compute_score",
    "reward_kwargs": {"require_think": False, "grader": "full"},
}


def test_a_text_says_who_judged_and_is_read_again():
    author = Provenance("full", "rules 5e1c09aa, math-verify 0.9.0", "decimals+lists")
    assert (
        str(author) == "full; rules 5e1c09aa, math-verify 0.9.0; decimals+lists" and author.is_ours
    )
    assert Provenance.read(str(author)) == author and Provenance.read(
        str(author.by(""))
    ) == author.by("")
    assert str(Provenance("a;b.py:score", "", "x;y")) == "a,b.py:score; ; x,y"
    assert Provenance.read(None) == Provenance("unknown", "") and not Provenance.read(None).is_ours


def test_the_settings_of_a_run_name_grader_and_version(tmp_path):
    full = of_settings(SETTINGS)
    assert (full.grader, full.rule, full.requires_think) == ("full", "", False)
    assert (
        full.version == f"{version_of('full')}, require_think=False"
        and "math-verify 0." in full.version
    )
    plain = of_settings({"path": OURS, "name": "compute_score", "reward_kwargs": None})
    assert (plain.grader, plain.version, plain.requires_think) == (
        "strict",
        version_of("strict"),
        True,
    )
    mine = tmp_path / "mine.py"
    mine.write_text("def score(**_): return 1.0\n")
    first = of_settings({"path": str(mine), "name": "score"})
    mine.write_text("def score(**_): return 0.0\n")
    second = of_settings({"path": str(mine), "name": "score"})
    assert first.grader == f"{mine}:score" and first.version != second.version and not first.is_ours
    assert of_settings({"path": None, "name": "compute_score"}).grader == "verl's own"


@pytest.mark.parametrize(
    ("changed", "graders"),
    [
        ("exgrpo/gold_answers.py", {"strict", "full"}),
        ("exgrpo/math_verify_worker.py", {"strict", "full"}),
        ("exgrpo/full_grader.py", {"full"}),
        ("math_verify_rules/units.py", {"full"}),
    ],
)
def test_the_version_changes_with_the_code_that_decides(tmp_path, monkeypatch, changed, graders):
    package = shutil.copytree(Path(math_verify_reward.__file__).parent, tmp_path / "exgrpo")
    rules = shutil.copytree(full_grader.package().__path__[0], tmp_path / "math_verify_rules")

    def versions():
        return {
            grader: runpy.run_path(str(package / "provenance.py"))["version_of"](grader)
            for grader in before
        }

    before = {grader: version_of(grader) for grader in ("strict", "full")}
    monkeypatch.setattr(full_grader, "package", lambda: SimpleNamespace(__path__=[str(rules)]))
    assert versions() == before and before["strict"] != before["full"]
    file = tmp_path / changed
    file.write_text(file.read_text().replace("    return ", "    return not ", 1))
    assert {
        grader for grader, version in versions().items() if version != before[grader]
    } == graders


def test_the_full_reward_names_its_rule_and_the_strict_one_does_not():
    asked = {
        "data_source": "m",
        "solution_str": r"\boxed{3 < x \le 4}",
        "ground_truth": "(3,4]",
        "require_think": False,
    }
    assert math_verify_reward.compute_score(**asked, grader="full")["rule"] == "intervals"
    assert (
        math_verify_reward.compute_score(**asked | {"solution_str": ""}, grader="full")["rule"]
        == ""
    )
    assert "rule" not in math_verify_reward.compute_score(**asked)


@pytest.mark.parametrize("judge", [None, Provenance("full", "v1")])
def test_a_rollout_becomes_a_trajectory_that_says_who_judged_it(judge):
    row = FreshRow(
        "u", "q", 1.0, np.array([1, 2]), np.array([-0.5, -0.5]), np.zeros(2), np.ones(2), "lists"
    )
    (group,) = rollout_groups([row], [], 3, 10, ExperienceConfig(rollout_n=2), judge)
    assert group.successes[0].grader == (None if judge is None else "full; v1; lists")
