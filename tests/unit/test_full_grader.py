"""The full grader as exgrpo asks it: the reward's key, given verdicts, and a missing package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from exgrpo import full_grader
from exgrpo.gold_answers import latex_forms
from exgrpo.math_verify_reward import FULL_GRADER, Verifier, compute_score

GRADING = Path(__file__).parents[3] / "shared" / "data" / "grading"
MISSING = (
    "the full grader needs the package math-verify-rules, which is not installed: "
    "pip install ./packages/math-verify-rules"
)
WITHOUT = "import sys\nsys.modules['math_verify_rules'] = None\n"


@pytest.fixture(scope="module")
def full():
    verifier = Verifier(*FULL_GRADER)
    yield lambda gold, response: verifier.judge(latex_forms(gold), response, 60, 2.0)
    verifier.close()


def test_the_key_of_the_reward_and_its_default():
    asked = {
        "data_source": "m",
        "solution_str": r"\boxed{3 < x \le 4}",
        "ground_truth": "(3,4]",
        "require_think": False,
    }
    strict, full = compute_score(**asked), compute_score(**asked, grader="full")
    assert strict == {"score": 0.0, "acc": 0.0, "timed_out": 0.0} and full == {
        "score": 1.0,
        "acc": 1.0,
        "timed_out": 0.0,
        "rule": "intervals",
    }
    assert compute_score(**asked, grader="strict") == strict


@pytest.mark.skipif(not GRADING.is_dir(), reason="the grading data is not beside the checkout")
@pytest.mark.parametrize(
    ("name", "share", "boxed"),
    [
        ("hardverify_dev", 0.88, True),
        ("math_verify_tests", 260 / 269, False),
        ("qwen_math_cot_100", 799 / 800, False),
    ],
)
def test_agreement_with_given_verdicts(full, name, share, boxed):
    rows = [json.loads(line) for line in (GRADING / f"{name}.jsonl").read_text().splitlines()]
    responses = [rf"\boxed{{{row['pred']}}}" if boxed else row["pred"] for row in rows]
    verdicts = [
        full(row["gold"], response)["rule"] is not None
        for row, response in zip(rows, responses, strict=True)
    ]
    agree = sum(verdict == row["expected"] for verdict, row in zip(verdicts, rows, strict=True))
    assert agree / len(rows) >= share, f"{agree} of {len(rows)}"
    through = sum(
        verdict and not row["expected"] for verdict, row in zip(verdicts, rows, strict=True)
    )
    assert (
        name != "hardverify_dev" or through <= 2
    )  # both Math-Verify's own, one of them mislabelled


def without_the_package(code):
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True)


def test_strict_works_without_the_package_and_full_is_one_line():
    done = without_the_package("""
from exgrpo import provenance
from exgrpo.math_verify_reward import compute_score
asked = {"data_source": "m", "solution_str": r"\\boxed{5}", "ground_truth": "5", "require_think": False}
print(compute_score(**asked)["score"], "math-verify" in provenance.version_of("strict"))
for judge in (lambda: compute_score(**asked, grader="full"), lambda: provenance.version_of("full")):
    try:
        judge()
    except ValueError as error:
        print(error)
""")  # noqa: E501
    assert done.stdout.splitlines() == ["1.0 True", MISSING, MISSING], done.stderr


def test_evaluation_without_the_package_ends_in_one_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"benchmark": "mine", "response": "5", "answer": "5"}\n')
    command = [
        "generate_vllm.py",
        "--grade_only",
        f"{tmp_path}/rows.jsonl",
        "--output_file",
        f"{tmp_path}/out.jsonl",
    ]
    done = without_the_package(
        f"from exgrpo_eval.generate.command import main\nmain({command[1:]})"
    )
    assert done.returncode == 2 and done.stderr == f"exgrpo-eval generate: error: {MISSING}\n"


def test_a_package_that_is_broken_is_not_called_missing(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'mpmath'", name="mpmath")

    monkeypatch.setattr(full_grader.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="mpmath"):
        full_grader.package()
