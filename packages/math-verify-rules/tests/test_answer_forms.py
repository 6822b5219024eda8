r"""Forms of answers that a person takes as equal, and what is close to them and wrong: by rules alone, then by both."""

# ruff: noqa: E501

import pytest
from adversary import marked

from math_verify_rules import accepted_by, compare
from math_verify_rules.numerals import whole_number

MATRIX = r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"
TORN = r"\begin{pmatrix}7\-8\end{pmatrix}"  # JSON took half of the line's end
CASES = r"f(x)=\begin{cases}x^2 & x\ge 0\\ -x & x<0\end{cases}"

RIGHT = [
    ("5 meters", r"500\text{ cm}"), ("2 hours 30 minutes", "150 minutes"), ("2 hours 30 minutes", r"2.5\text{ hours}"),
    (r"9.8 \mathrm{~m} / \mathrm{s}^2", r"9.8\,\frac{\text{m}}{\text{s}^2}"), ("12 hours", r"\text{twelve hours}"),
    ("31", r"\text{thirty-one}"), ("-7", r"\text{minus seven}"), ("six", "6"), (r"3.2\times 10^{-5}", "3.2e-5"),
    (r"n\equiv 1 \pmod 4", "n=4k+1"), (r"n\equiv 1 \pmod 4", r"n\equiv -3\pmod 4"), (r"3 \pmod 7", "3"), ("3", r"3 \bmod 7"),
    ("3:2", "6:4"), (r"1:\sqrt{3}:2", r"\sqrt{3}:3:2\sqrt{3}"), (r"204_5", r"204_{\text{five}}"), ("3:45 PM", "15:45"),
    ("March 5", r"\text{5th of March}"), ("B", r"\textbf{(B)}\ 12"), ("B", "B. 12"), ("ABD", r"\text{A, B, and D}"),
    (r"\begin{pmatrix}-1\\2\end{pmatrix}", r"\langle -1,2\rangle"), (TORN, r"\begin{bmatrix}7\\-8\end{bmatrix}"),
    (r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}", r"\frac15\begin{pmatrix} 1 \\ -18 \end{pmatrix}"), ("(3,-4)", "P(3,-4)"),
    (r"2\mathbf{i}-3\mathbf{j}", "(2,-3)"), (r"2e^{i\pi/3}", r"1+i\sqrt3"), (r"\frac{1}{6}", r"0.1\overline{6}"),
    ("(0,1)", "]0,1["), (r"k\ne 1", r"\text{all real numbers except }1"), (r"[-1,1]", r"\text{all } x \text{ with } -1\le x\le 1"),
    (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}+K"), ("a_n=2^n", "a_k=2^k"), (r"x=2, x=-3", "x_1=2, x_2=-3"), ("f(x)=0", r"f\equiv 0"),
    (r"f(x)=cx, c\in\mathbb{R}", r"f(x)=ax, a\in\mathbb{R}"), ("x=1\u6216x=2", r"x=1\text{ or }x=2"),
    ("no solution", r"\text{There are no solutions}"), (r"\emptyset", r"\text{no solution}"), ("Yes", r"\text{Yes, it is}"),
    ("The function is odd.", "odd"), ("(1,2),(3,4)", r"(x,y)\in\{(1,2),(3,4)\}"), (r"\$16386.20", r"\$16,386.20"),
]  # fmt: skip

WRONG = [
    ("5 meters", r"50\text{ cm}"), ("2 hours 30 minutes", "2 hours"), ("2 hours", "2 hours 2 hours"), ("7 hours", "2 hours 5 hours"), ("12 hours", "x = 12 hoursy"),
    (r"n\equiv 1 \pmod 4", "n=2k+1"), (r"n\equiv 1 \pmod 4", r"m\equiv 1\pmod 4"), ("5", r"5 \pmod 1"), ("12:00", "1:00"),
    ("10:20", "1:2"), ("3:2", "2:3"), ("1101_2", "1101_3"), ("3:45 PM", "3:45 AM"), ("March 5", "5"), ("5", "March 5"),
    ("B", "(B)^2"), ("B", "B. C"), ("B", "(B) or (C)"), ("ABD", "A, B"), (MATRIX, MATRIX.replace("pmatrix", "vmatrix")),
    (r"\begin{pmatrix}-1&2\end{pmatrix}", r"\begin{pmatrix}-1\\2\end{pmatrix}"), ("(1,2)", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    (r"\emptyset", r"\mathbb{R}"), ("x^2+C", "x^2"), ("Ax+B", "Kx+B"), ("Yes", "Yes, no"), ("Yes", "Yes, 22"), ("odd", "it is not odd"),
    ("odd", r"\text{is it odd?}"), ("temperature 5", "temperature -5"), ("5", r"5k, k \in \mathbb{Z}"), ("5", r"\text{twice } 5"),
    ("1,250", "(1,250)"), ("1+i", "1-i"), ("x=2", r"x\in\mathbb{R}"), ("y=2x", r"2t \text{ for some integer } t"),
]  # fmt: skip

HOSTILE = [
    (TORN, r"\begin{pmatrix}7\\8\end{pmatrix}"), (TORN, r"\begin{pmatrix}7-8\end{pmatrix}"), (MATRIX, "2" + MATRIX), (MATRIX, MATRIX + ", 5"),
    (MATRIX, MATRIX + "^2"), (MATRIX, "x > " + MATRIX), (MATRIX, MATRIX.replace("4", "5")), (r"\begin{pmatrix}1&?\end{pmatrix}", r"\begin{pmatrix}1&7\end{pmatrix}"),
    (CASES, r"\begin{cases}x^2 & x> 0\\ x & x<0\end{cases}"), (r"25\text{ cm}^2", r"25\text{ m}^2"), (r"25\text{ cm}^2", r"25\text{ cm}^3"),
    ("12 hours", r"12\text{ minutes}"), (r"\$18.50", r"18.50\text{ cents}"), ("1101_2", "1101_3"), ("5", "5_{37}"), ("5", r"n \equiv 5 \pmod{1}"),
    ("5", r"5 \text{ March}"), ("5", r"5 \text{ and a half}"), ("5", r"5 \text{ hours } 4 \text{ minutes}"), ("5", r"5 \text{ apples and } 9 \text{ pears}"),
    (r"\frac{3}{4}", r"\cancel{\frac{3}{4}}36"), (r"\frac{3}{4}", r"\color{red}\frac{3}{4} \color{blue}37"), (r"\frac{3}{4}", "\\frac{3}{4}\u200b22"),
    (r"\frac{3}{4}", "\\frac{3}{4}\u0338"), ("(1,2)", r"(1,2) \text{ apples and } 13 \text{ pears}"), ("1,2", r"1,2 \text{ apples and } 19 \text{ pears}"),
    ("f(x)=1", "f(x)=1\uff0c27"), ("f(x)=1", r"f(x)=1 \text{ apples and } 32 \text{ pears}"), (r"1 \pm \sqrt{19}", r"1 \pm \sqrt{19} \text{ apples and } 23 \text{ pears}"),
    ("4", "What is the food of some fungi?\n\n1) sunlight\n2) oxygen\n3) carbon dioxide\n4) dead organisms\n"), (r"30^\circ", r"30\text{ radians}"),
    (r"30\text{ degrees}", r"30\text{ rad}"), (r"\forall x>0, 3^x \ge x^2", r"\forall x > 0, 3^x \geq x"),
]  # fmt: skip
UNBOXED = [
    "31 to 5",
    "between 8 and 5",
    "anything but 5",
    "5 + k, k \\in \\mathbb{Z}",
    r"\{x : x \ge 5\}",
    "x = 5y",
    "1\n2\n3\n4\n6\n7\n8\n5",
    "a multiple of 5",
    "5\uff0c33",
]  # for 5
UNBOXED_EQUATIONS = ["x = f(x)=1y", "f(x)=1e14", "f(x)=1\uff0c27", "The answer is either f(x)=1 or 16."]  # for f(x)=1  # fmt: skip
PROSE = [
    (MATRIX, f"The matrix asked for is ${MATRIX}$."),
    ("16386.20", r"So it is worth $\boxed{\$16,\!386.20}$."),
    ("1/3", r"$x=1/3\approx 0.33$"),
    (r"30^\circ", r"\boxed{30\text{ degrees}}"),
    (r"30^\circ", r"\boxed{\frac{\pi}{6}\text{ radians}}"),
    ("f(x)=1", "y = f(x) = 1"),
    (r"\forall x>0, 3^x \ge x^2", r"\boxed{\forall x > 0, 3^x \geq x^2}"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_other_forms_of_the_same_answer(gold, answer):
    assert compare(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_what_is_close_and_wrong(gold, answer):
    assert compare(gold, answer) is None


@pytest.mark.parametrize(
    ("gold", "response"),
    [(gold, rf"\boxed{{{answer}}}") for gold, answer in HOSTILE]
    + [("5", each) for each in UNBOXED]
    + [("f(x)=1", each) for each in UNBOXED_EQUATIONS],
)
def test_what_math_verify_reads_past(gold, response):
    assert accepted_by(marked(gold), response) is None


@pytest.mark.parametrize(("gold", "response"), PROSE)
def test_a_sentence_with_the_answer_is_right(gold, response):
    assert accepted_by(marked(gold), response)


def test_whole_numbers_in_words():
    told = {
        "two hundred and five": 205,
        "twelve thousand": 12_000,
        "twenty one": 21,
        "one two": None,
        "hundred": None,
        "and": None,
    }
    assert {words: whole_number(words) for words in told} == told
