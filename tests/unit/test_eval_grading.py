"""Verdicts of evaluation: golds of every benchmark, votes, and agreement with given verdicts
(Oat's: test_eval_oat).
"""

import json
from pathlib import Path

import pytest
from eval_verdicts import row, verdicts

from exgrpo.gold_answers import clean, latex_forms
from exgrpo_eval.grade import grading
from exgrpo_eval.grade.grading import grade

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_multiple_choice_benchmarks_are_judged_by_their_letter():
    rows = [row("ANSWER: C", "C", name) for name in grading.CHOICE_BENCHMARKS]
    rows += [
        row(r"\boxed{J}", "J", "mmlu_pro"),
        row("ANSWER: C", "D", "gpqa"),
        row("C", "C", "gsm8k"),
    ]
    graded = grade(rows)
    assert [r["correct"] for r in graded] == [True, True, True, True, False, False]
    assert (
        [r["extracted"] for r in graded[:5]]
        == [r["vote"] for r in graded[:5]]
        == ["C", "C", "C", "J", "C"]
    )


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{142}", "142.0"),  # AMC
        (r"\boxed{25}", "025"),  # AIME
        (r"\boxed{336^\circ}", r"336^\circ"),
        (r"\boxed{336}", r"336^\circ"),
        (r"\boxed{4.5\times 10^{33}}", "4.5e33"),  # Minerva
        (r"so $\boxed{4.5 \cdot 10^{33} \text{ erg/s}}$", "4.5e33"),
        (r"\boxed{4.5e33}", "4.5e33"),
        (r"\boxed{10^{-5}}", "1e-5"),
        (r"\boxed{0.00001}", "1e-5"),
        (r"\boxed{\arcsin(10/13)}", "np.arcsin(10/13)"),
        (r"\boxed{\arcsin\frac{10}{13}}", "np.arcsin(10/13)"),
        (r"\boxed{221, 8}", "$221,$8$"),  # Olympiad
        (r"\boxed{k=1}", "$k=1$"),
        (r"\boxed{-2,-1,1,2}", "-2,-1,1,2"),
        (r"\boxed{(-\infty,0)\cup\{1\}}", r"$(-\infty, 0) \cup\{1\}$."),
    ],
)
def test_golds_as_the_benchmarks_have_them(response, gold):
    assert verdicts([row(response, gold), row(r"\boxed{77}", gold)]) == [True, False]


@pytest.mark.parametrize(
    ("gold", "plain"),
    [
        ("142.0", "142"),
        ("142.5", "142.5"),
        ("025", "025"),
        ("4.5e33", r"4.5\times10^{33}"),
        ("1e-05", r"1\times10^{-5}"),
        ("2e+27", r"2\times10^{27}"),
        ("np.arcsin(10/13)", r"\arcsin(10/13)"),
        ("$0.5$", "0.5"),
        (r"\$5", r"\$5"),
        ("$A=90$, $B=9$", "$A=90$, $B=9$"),
        (r"x+$ $y", "x+ y"),
        ("e^{t}/3", "e^{t}/3"),
        (" $$ ", ""),
    ],
)
def test_clean_golds(gold, plain):
    assert clean(gold) == plain == clean(plain)


def test_forms_of_a_gold():
    assert latex_forms("$$") == latex_forms("") == ()
    assert latex_forms("0.5") == latex_forms("0.5 ") == ("$0.5$",)
    assert latex_forms("1e-5") == ("$1e-5$", r"$1\times10^{-5}$")
    assert latex_forms(r"1\times 10^{-5}")[-1] == "$1e-5$"


def test_the_rule_by_which_the_full_grader_takes_an_answer():
    rows = [
        row(r"\boxed{3 < x \le 4}", "(3,4]"),
        row(r"\boxed{5}"),
        row(r"\boxed{6}"),
        row("C", "C", "gpqa"),
    ]
    assert verdicts(rows, "rule") == ["intervals", "math_verify", None, "letter"]
    assert verdicts(rows) == [False, True, False, True]  # Math-Verify's verdicts stay


def test_what_is_cut_off_is_wrong_and_has_no_answer():
    graded = grade([row(r"\boxed{5}", finish_reason="length"), row(r"\boxed{5}")])
    assert [r["correct"] for r in graded] == [False, True]
    assert [r["extracted"] for r in graded] == [r["vote"] for r in graded] == [None, "5"]
    assert verdicts([row("ANSWER: C", "C", "gpqa", finish_reason="length")], "vote") == [None]


def test_what_counts_after_a_thought():
    rows = [
        row(r"\boxed{1} </think> \boxed{5}"),
        row(r"\boxed{5} </think> none"),
        row(r"\boxed{5}"),
    ]
    assert verdicts(rows, require_think=True) == [True, False, False]
    assert verdicts(rows) == [True, True, True]
    letters = [row("ANSWER: A </think> ANSWER: C", "C", "gpqa"), row("ANSWER: C", "C", "gpqa")]
    assert verdicts(letters, require_think=True) == [True, False]


def test_equal_answers_share_a_vote():
    rows = [
        row(rf"\boxed{{{answer}}}")
        for answer in (r"\frac12", "0.5", "1/2", "x+1", "1+x", r"\text{none}", "9" * 6_000)
    ]
    votes = verdicts(rows, "vote")
    assert votes[0] == votes[1] == votes[2] != votes[3] == votes[4] and None not in votes
    assert all(len(vote) <= 200 for vote in votes)
    assert verdicts(rows, "extracted")[3:5] == ["x+1", "1+x"]
    assert verdicts([row("The answer is 0.5"), row("I do not know")], "vote") == ["1/2", None]


@pytest.mark.skipif(
    not (SHARED / "grading").is_dir(), reason="the grading data is not beside the checkout"
)
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("qwen_math_cot_100", 799 / 800),
        ("math_verify_tests", 0.965),
        ("gsm8k_model_solutions", 0.995),
    ],
)
def test_agreement_with_given_verdicts(name, share):
    given = [
        json.loads(line) for line in (SHARED / "grading" / f"{name}.jsonl").read_text().splitlines()
    ]
    correct = verdicts([row(each["pred"], each["gold"]) for each in given], processes=2)
    agree = sum(verdict == each["expected"] for verdict, each in zip(correct, given, strict=True))
    assert agree / len(given) >= share, f"{agree} of {len(given)}"


def test_of_several_answers_each_counts():
    rows = [row(rf"\boxed{{{said}}}", "7", answers=["7", "1/2"]) for said in ("0.5", "7", "8")]
    assert verdicts(rows) == verdicts(rows, oat=True) == [True, True, False]
