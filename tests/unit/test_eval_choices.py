"""Where an answer stands: the letter of a multiple-choice question, and boxes."""

import pytest
from eval_verdicts import row, verdicts

from exgrpo_eval.grade.extraction import DIGITS, boxed, choice


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"so \boxed{\text{B}}", "B"),
        (r"\boxed{\textbf{(C)}}", "C"),
        (r"\boxed{c}", "C"),
        (r"$\boxed{\mathrm{(j)}}$", "J"),
        (r"\boxed{B. a fish}", "B"),
        (r"\boxed{\text{(E) } 12}", "E"),
        (r"\boxed{A} no, \boxed{D}", "D"),
        (r"\boxed{D} which is \boxed{42}", "D"),  # the last box with a letter
        (r"\boxed{B} and not ANSWER: C", "B"),  # a box before words
        (r"\boxed{42} ANSWER: C", "C"),
        ("ANSWER: D", "D"),
        ("**Answer:** B", "B"),
        ("The answer is **B**.", "B"),
        (r"The answer is \textbf{G}", "G"),
        ("the correct answer is option C", "C"),
        ("answer is (a), not the others", "A"),
        ("The answer is A because it floats", "A"),
        ("ANSWER: B\n\nANSWER: I\n\nAs I said.", "I"),
        ("The answer is C, and the answer is A thing", "C"),
        ("Answer:\n\nC", "C"),
        ("(b).", "B"),
        ("The correct choice is B. It lasts.", "B"),
        ("C) continued experimentation.", "C"),
        ("A) one\nB) two", None),
        ("The answer is A planet", None),
        ("the answer is a planet", None),
        ("Answer: I think it is B", None),
        ("A stray A in prose. So I chose A", None),
        ("A. The first step", None),
        (r"\boxed{A cat}", None),
        (r"\boxed{A, C}", None),
        (r"\boxed{B", None),
        ("ANSWER: $LETTER", None),
        ("ANSWER: K", None),
        ("answer is AB", None),
        ("", None),
    ],
)
def test_the_letter_of_a_response(response, letter):
    assert choice(response) == letter


def test_numbered_choices():
    assert choice(r"\boxed{3}", DIGITS) == choice("the answer is 3", DIGITS) == "3"
    assert verdicts([row(r"\boxed{3}", "3", "arc_c"), row(r"\boxed{C}", "3", "arc_c")]) == [
        True,
        False,
    ]


def test_boxes_nest_and_unclosed_ones_are_none():
    assert list(boxed(r"\boxed{1} \boxed {\frac{1}{2}} \boxed{a\{b} \boxed{open")) == [
        r"a\{b",
        r"\frac{1}{2}",
        "1",
    ]
    assert list(boxed(r"\boxed{" * 5_000)) == []
