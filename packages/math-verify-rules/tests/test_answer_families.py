"""Kinds of wrong answers that mention the gold, kinds of right ones, and answers that would fit any
gold.
"""

import pytest
from adversary import marked
from answer_families import AROUND_A_BOX, IN_A_BOX, right_answers, wrong_answers
from hostile_answers import ANYTHING, NOTHING

from math_verify_rules import accepted_by

GOLDS = ["7", "50\\%", r"2\sqrt{3}", "x > 2", r"3\text{ km}", r"\begin{pmatrix}1\\2\end{pmatrix}"]
WRONG = list(wrong_answers(GOLDS))


@pytest.mark.parametrize("kind", [*IN_A_BOX, *AROUND_A_BOX])
def test_an_answer_that_mentions_the_gold_does_not_state_it(kind):
    cases = [(gold, response) for each, gold, response in WRONG if each == kind]
    assert len(cases) >= len(GOLDS)
    assert not [case for case in cases if accepted_by(marked(case[0]), case[1])]


@pytest.mark.parametrize(("gold", "response"), right_answers())
def test_another_spelling_of_the_gold_is_right(gold, response):
    assert accepted_by(marked(gold), response)


def test_no_answer_fits_two_golds():
    different = ["7", "-3", r"\frac{3}{8}", "x^2+1", "(2, 5)", "B"]
    for answer in (*ANYTHING, *NOTHING):
        fitting = [gold for gold in different if accepted_by(marked(gold), rf"\boxed{{{answer}}}")]
        assert len(fitting) < 2, (answer, fitting)
