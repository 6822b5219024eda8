"""Oat's grader: its parts with answers worked out by hand, and its verdicts beside the released
ones.
"""

import json
from pathlib import Path

import pytest
from eval_verdicts import row, verdicts

from exgrpo.math_verify_reward import FULL_GRADER
from exgrpo_eval.grade import grading, oat_grader
from exgrpo_eval.grade.grading import grade
from exgrpo_eval.grade.oat_forms import last_box, math_form, prm800k_form, repeats_itself

SHARED = Path(__file__).parents[3] / "shared"
LONG = "\n".join(f"Case {number}." for number in range(5_000))  # more than is judged


@pytest.fixture(scope="module", autouse=True)
def kept():
    """One process of each grader for all tests: they import SymPy."""

    class Kept(grading.Verifier):
        def close(self):
            pass

    oat, full = Kept("Oat", (str(grading.OAT_GRADER),)), Kept(*FULL_GRADER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "_oat_grader", lambda: oat)
        patch.setattr(grading, "_full_grader", lambda: full)
        patch.setattr(grading, "_count", lambda jobs, processes, worth: min(len(jobs), 1))
        yield
    grading.Verifier.close(oat)
    grading.Verifier.close(full)


def by_oat(response, gold, **options):
    return verdicts([row(response, gold)], oat=True, **options)[0]


@pytest.mark.parametrize(
    ("response", "box"),
    [
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} then \boxed{2", None),  # not closed, and no earlier one counts
        (r"\boxed 5", None),
        (r"\fbox{5}", None),
        ("The answer is 5.", None),
    ],
)
def test_the_last_box(response, box):
    assert last_box(response) == box


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("0.5", r"\frac{1}{2}"),
        ("1/2", r"\frac{1}{2}"),
        ("01/2", "01/2"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\tfrac1{20}", r"\frac{1}{20}"),
        (r"\frac{1}2", r"\frac{1}2"),
        (r"\frac1", r"\frac1"),
        (r"\sqrt3+\sqrt{2}", r"\sqrt{3}+\sqrt{2}"),
        (r"\sqrt", r"\sqrt"),
        ("x = 7", "7"),
        ("2x = 7", "2x=7"),
        (".25", "0.25"),
        (r"\left( 3, \; 4 \right)", r"(3,\;4)"),
        (r"5\text{ cm}", "5"),
        (r"\text{ cm } 5 \text{ or } 6 m", r"\text{ cm } 5 \text{ or } 6 m"),  # two texts: as it is
        ("5 cm", "5"),
        ("30 square inches", "30"),
        ("m", "m"),
        (r"90^\circ", "90"),
        (r"50\%", "50"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"a \leq b", r"\leb"),  # the letter a counts as a unit
        (r"\begin{bmatrix}1\\2\end{bmatrix}", r"\begin{pmatrix}1\2\end{pmatrix}"),
        ("", ""),
    ],
)
def test_the_form_of_math(answer, form):
    assert math_form(answer) == form


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("12,345", "12345"),
        ("3.0", "3"),
        ("7 3/4", "7+3/4"),
        ("5 cm^2", "5"),
        ("2 million", "2*10^6"),
        (r"\frac{1}{2}", "1/2"),
        (r"3\frac12", "3+1/2"),
        (r"\sqrt{2}\pi", "√(2)pi".replace("√", "sqrt")),
        ("1 and 2", "1,2"),
        ("- 4", "-4"),
        (r"\text{NO}", "no"),
        ("{5}", "5"),
        ("$28$", "28"),
        ("nan", "nan"),
        ("1e999", "1e999"),
    ],
)
def test_the_form_of_prm800k(answer, form):
    assert prm800k_form(answer) == form


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("x+1", "1+x", True),
        ("2/4", "1/2", False),  # not reduced
        ("4", "2+2", False),  # a whole number is compared as text
        ("sqrt(2)/2", "1/sqrt(2)", True),
        ("(1,2)", "(1, 2)", True),
        ("(1,2)", "[1,2]", False),
        ("(1,2)", "(2,1)", False),
        ("(1,x+y)", "(1,y+x)", True),
        ("x+y+z", "z+y+x", False),  # three letters are not evaluated
        ("x^{10}", "x^{9}x", False),  # braces are gone by then, the two digits of the power are not
        ("5", "", False),
    ],
)
def test_the_comparison_of_prm800k(gold, answer, equal):
    assert oat_grader.equal_as_prm800k(gold, answer) is equal


def test_text_that_could_run_is_not_evaluated(tmp_path):
    """``sqrt`` of a string would make SymPy evaluate what the string's octal escapes spell."""
    target = tmp_path / "ran"
    code = "".join(f"\\{ord(character):03o}" for character in f"open('{target}','w')")
    for quote in "'\"":
        assert not oat_grader._difference_is_zero(f"(1)-(sqrt({quote}{code}{quote}))")
        written = code.replace("\\", r"\textbackslash ")
        assert by_oat(rf"\boxed{{sqrt({quote}{written}{quote})}}", "1") is False
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("", False),
        ("a", False),
        ("ab", False),
        ("aa", True),
        ("abab", True),
        ("abcdefgh", False),
        ("9" * 6_000, True),
    ],
)
def test_repeats_by_counting_all_substrings(text, repeats):
    assert repeats_itself(text) is repeats
    if len(text) < 100:
        all_of_it = [text[a:b] for a in range(len(text)) for b in range(a + 1, len(text) + 1)]
        assert repeats is (bool(all_of_it) and 1 - len(set(all_of_it)) / len(all_of_it) > 0.2)


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        (r"\boxed{142}", "142.0", True),  # AMC
        (r"\boxed{25}", "025", True),  # AIME
        (r"\boxed{C}", "C", True),
        (r"\boxed{\text{(C)}}", "C", True),
        (r"\boxed{\text{C. fish}}", "C", False),
        ("ANSWER: C", "C", False),  # no box
        (r"\boxed{5 \text{ cm}}", "5", True),
        (r"\boxed{7 3/4}", "7.75", True),  # PRM800K's, not Math-Verify's
        (r"\boxed{\{2, 1\}}", r"\{1, 2\}", True),  # Math-Verify's, not PRM800K's
        (r"\boxed{(-\infty, 0) \cup (1, \infty)}", r"$(-\infty,0)\cup(1,\infty)$", True),
        (r"\boxed{4}", r"\boxed{2^2}", True),  # a gold in a box
        (r"\boxed{f(x) = 2x}", "$f(x)=2 x$", True),
        (r"\boxed{6}", "5", False),
        (r"\boxed{5} \boxed{6}", "5", False),
        (r"\boxed{1} </think> \boxed{5}", "5", True),
        (LONG + r" \boxed{5}", "5", True),
        (r"\boxed{5} " + LONG, "5", True),  # as released, however far before the end
    ],
)
def test_verdicts(response, gold, right):
    assert by_oat(response, gold) is right


def test_what_is_judged_of_a_thought_and_of_a_truncated_response():
    rows = [
        row(r"\boxed{1} </think> \boxed{5}"),
        row(r"\boxed{5} </think> none"),
        row(r"\boxed{5}"),
    ]
    rows.append(row(r"\boxed{1} </think> \boxed{5} " + LONG))
    assert verdicts(rows, oat=True, require_think=True) == [
        True,
        False,
        True,
        True,
    ]  # the third as a whole
    assert verdicts(rows, "math_verify_correct", oat=True, require_think=True) == [
        True,
        False,
        False,
        False,
    ]
    assert by_oat(r"a </think> \boxed{5} </think> \boxed{6}", "5", require_think=True)
    cut_off = [row(r"\boxed{5} and then", finish_reason="length")]
    assert verdicts(cut_off, oat=True) == [True] and verdicts(cut_off) == [False]


def test_it_decides_and_the_answer_is_its_box():
    rows = [
        row(r"\boxed{7 3/4}", "7.75"),
        row("The answer is 5"),
        row(r"\boxed{0.25}", "1/4"),
        row("C", "C", "gpqa"),
    ]
    graded = grade(rows, oat=True)
    assert (
        [r["correct"] for r in graded]
        == [r["oat_correct"] for r in graded]
        == [True, False, True, False]
    )
    assert [r["math_verify_correct"] for r in graded] == [False, True, True, True]
    assert [r["extracted"] for r in graded] == ["7 3/4", "5", "0.25", "C"]
    assert graded[2]["vote"] == verdicts([row(r"\boxed{\frac14}")], "vote", oat=True)[0] == "1/4"
    assert verdicts(rows, oat=True, any_true=True) == [True] * 4
    assert "oat_correct" not in grade(graded)[0] and verdicts(graded) == [False, True, True, True]


@pytest.mark.skipif(
    not (SHARED / "golden").is_dir(), reason="the released verdicts are not beside the checkout"
)
@pytest.mark.parametrize("name", ["hardverify_dev", "math_verify_tests", "qwen_math_cot_100"])
def test_agreement_with_the_released_verdicts(name):
    lines = (SHARED / "data" / "grading" / f"{name}.jsonl").read_text().splitlines()
    released = json.loads((SHARED / "golden" / "oat_verdicts.json").read_text())[name]
    rows = [row(_in_a_box(each["pred"]), each["gold"]) for each in map(json.loads, lines)]
    agree = sum(
        ours == bool(theirs)
        for ours, theirs in zip(verdicts(rows, oat=True), released, strict=True)
    )
    assert agree / len(rows) >= 0.98, f"{agree} of {len(rows)}"


def _in_a_box(answer):
    return answer if r"\boxed" in answer else rf"\boxed{{{answer}}}"
