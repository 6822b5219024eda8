r"""Each rule by name, what it must not take, what the guards reject, and an adversary's answers."""

# ruff: noqa: E501
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import adversary
import pytest
from adversary import marked

from math_verify_rules import accepted_after, accepted_by, compare, final_answer, judging

RIGHT = {
    "repaired_latex": [(r"x \, y", "x y"), (r"\\frac{1}{2}", r"\frac{1}{2}"), (r"\sqrt{3", r"\sqrt{3}")],
    "words": [("The Battle of Hastings.", r"\text{battle of Hastings}"), ("No solution", r"\text{no solution}")],
    "numeric_identity": [
        (r"\sin 2x", r"2\sin x\cos x"),
        (r"\frac{1}{x}-\frac{1}{x+1}", r"\frac{1}{x(x+1)}"),
        (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
        (r"\sqrt{xy}", r"\sqrt{x}\sqrt{y}"),
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
        ("x<sup>2</sup>+1", "1+x^2"),
        ("7.75", r"7\frac{3}{4}"),
    ],
    "renamed_variables": [("f(x)=x^2+1", "f(t)=1+t^2"), ("(2C+1)x", "(2c+1)x"), ("f(x)=cx", "f(x)=kx")],
    "dropped_left_side": [("2x+1", "y=1+2x"), ("f(x)=2x", "2x"), ("y=2x", "f(x)=2x"), ("S_n=n^2", "n^2")],
    "equations": [("x+y=1", "y=1-x")],
    "intervals": [
        (r"(3,4]", r"3 < \lambda \leq 4"),
        (r"\{x|-2<x<3\}", r"(-2,\ 3)"),
        (r"(-\infty,1)\cup(2,\infty)", r"x<1 \text{ or } x>2"),
        (r"\mathbb{R}\setminus\{2\}", r"x \neq 2"),
        (r"(-\infty,\infty)", "all real numbers"),
        ("-1<x<1", "|x|<1"),
    ],
    "piecewise": [
        (r"|x|", r"\begin{cases}x & x>0\\-x & x\le 0\end{cases}"),
        (
            r"\begin{cases}\{x \mid x<a \text{ or } x>1\}, & \text{when } a<1 \\ \{x \mid x \neq 1\}, & \text{when } a=1 "
            r"\\ \{x \mid x<1 \text{ or } x>a\}, & \text{when } a>1\end{cases}",
            r"(-\infty, \min(1,a)) \cup (\max(1,a), \infty)",
        ),
    ],
    "integer_families": [
        (r"x=k\pi", r"-n\pi"),
        (r"x=\frac{\pi}{2}+k\pi", r"x=-\frac{\pi}{2}+n\pi, n\in\mathbb{Z}"),
        (r"x=\frac{k\pi}{2}, k\in\mathbb{Z}", r"k\pi \text{ or } \frac{\pi}{2}+k\pi"),
    ],
    "degrees_radians": [("45", "45^\\circ")],
    "units_and_ordinals": [("15", "15th Day"), ("15", r"15^{\text{th}}"), ("15", "fifteen"), (r"5\text{ cm}", "5"), ("2 hours", "2 hr")],
    "decimals": [("21.93", r"21\frac{13}{14}"), (r"\frac{8}{3}", "2.6667"), ("2.653", "2.65"), ("3.14", r"\pi")],
    "lists": [("3, 5", "5 and 3"), (r"\pm 3", "3, -3"), (r"\{1,2\}", "1,2"), ("(1,2),(3,4)", "(3,4), (1,2), (3,4)"), ("②③", "3 and 2"),
              ("16,3,1,1", "w=16, d=3, a=1, b=1"), ("-2,-2", r"a = -2, \ b = -2"), (r"(1,1),(1,-1),(-1,1),(-1,-1)", r"(\pm 1, \pm 1)")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "gold", "answer"), [(rule, *pair) for rule, pairs in RIGHT.items() for pair in pairs]
)
def test_each_rule_takes_what_it_is_for(rule, gold, answer):
    assert rule in (compare(gold, answer) or "").split("+")


WRONG = [
    ("5", "5 or 6"), ("5", "not 5"), ("5", "5, 6"), ("5", "x"), ("5", "x=x"), ("x=5", "y=5"), ("A", "A, B, C, D"),
    (r"(2,\infty)", r"(-\infty,\infty)"), ("x>2", r"x\ge 2"), ("x>2", "y>2"), ("(1,2)", "[1,2]"), ("(1,2)", "(2,1)"),
    ("3", "3.1"), ("12.25", "12.3"), ("2.125", "2.13"), ("100", "99.99"), (r"\sqrt{2}", "1.41431"), ("1/3", "0.33"),
    ("n^2", "k^2"), ("2x", "2y"), ("y=ax+b", "y=bx+a"), ("f(x)=x", "f(x)=y"), (r"x=k\pi", r"2n\pi"), ("x=2k", "x=2k+1"),
    (r"5\text{ cm}", r"5\text{ m}"), ("5", "5 thousand"), ("5", "at least 5"), ("5", "5 squared"), ("5", "5 percent"),
    ("5", ""), ("5", "{}"), ("5", "NaN"), ("5", r"\infty-\infty"), ("0", "0/0"), ("5", r"\frac{5}{0}\cdot 0"), ("0=0", "1=1"),
    ("x", r"x+0\cdot y"), ("7=11a+c", "11a+c"), ("2x+z=1", "1"), ("(3,1)", r"\{1,3\}"), ("yes", "yes or no"), ("45", "4 5"),
    (r"\frac{3\pi}{4}", "135"), ("|x|", "x"), (r"\ln x", r"\ln |x|+0y"), ("x^2", "x^2+10^{-30}"), ("10^{50}", "10^{50}+1"),
    (r"\sqrt{2}", r"\sqrt{2}+10^{-50}"), ("f(x+1)", "f(x)+f(1)"), ("5", "1=2=5"), (r"50\%", "0.5 cm"), ("1.27\\%", "1.27"),
    (r"x=2k, k\in\mathbb{Z}", r"x=2k, k\in\mathbb{N}"), ("x=1, y=2", "x=2, y=1"), ("7.78", "7.78+10^{-12}"), ("-3", "3"),
    ("7.78", "7.783"), ("x>5", "x>5, 26"), ("D=(0,1)", "0<f(x)<1"), (r"-4<m\le 0", r"-4<m\le 0\cdot x"), ("n=1,2", "xn=1,2"),
    ("1 and 2 and 3", "-(1 and 2 and 3)"), ("1 and 2 and 3", r"1 and 2 and 3 \cup 3"), (r"(0,1)\cup(2,5)", r"(0,1)\cup(2,5), 3"),
    ("-2", "a=-2, b=-2"), ("16,3,1,1", "w=16, d=3, a=1"), ("(1,1),(-1,-1)", r"(\pm 1, \pm 1)"), ("f(y)=y", "fkky) = y"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_no_rule_takes_what_is_not_equal(gold, answer):
    assert compare(gold, answer) is None


@pytest.mark.parametrize(
    ("gold", "response", "rule"),
    [
        ("5", r"\boxed{5}", "math_verify"),
        ("1/2", r"\boxed{\frac12}", "math_verify"),
        ("5", r"\boxed{}", None),
        ("5", r"5 \boxed{}", None),
        ("5", r"\boxed{1=2=5}", None),
        ("5", r"\boxed{\neq 5}", None),
        ("5", r"\boxed{5 \text{ thousand}}", None),
        ("5", "1 2 3 4 5", None),
        ("-5", "x > -5", None),
        ("x+1", r"\boxed{2=x+1}", None),
        ("7.5", "2 7.5", None),
        (r"\frac{1}{2}", r"\boxed{0.5000004}", None),
        (r"\frac{1}{3}", r"\boxed{0.333333}", "math_verify"),
        ("3,5", r"\boxed{7} \boxed{3 \text{ and } 5}", None),
        ("4", ", ".join(map(str, range(500, 3, -1))), None),
        (
            "25",
            r"\boxed{(-\infty, 0) \cup (1, 2), $\frac{3}{56}$, $4$ and $2$, 1, 2, 3, 4, 5, 6, 7, 8, 25}",
            None,
        ),
        ("n=1, 2, 3", r"\boxed{xn=1, 2, 3}", None),
        ("n=1, 2, 3", r"\boxed{n=1, 2, 3}", "math_verify"),
        ("n=5", r"\boxed{N=5}", "math_verify"),
        ("$p=5,q=2;p=7,q=2$", r"\boxed{(5,2),(7,2)}", "math_verify"),
        (r"1-\frac{1}{\mathrm{e}}", r"\boxed{1-\frac{1}{\mathrm{e}y}}", None),
        (r"2\mathrm{e}", r"\boxed{2}", None),
        ("0", r"\boxed{0=0}", None),
        ("113.4\\%", r"\boxed{30 113.4\%}", None),
        ("$x = 1/3$", r"\boxed{-(x = 1/3)}", None),
        ("$x = 1/3$", r"\boxed{(x = 1/3)^2}", None),
        ("$x = 1/3$", "24, x = 1/3", None),
        ("$x = 1/3$", r"\ne x = 1/3", None),
        ("$x = 1/3$", "x > x = 1/3", None),
        ("$x = 1/3$", "21 = 40 = x = 1/3", None),
        ("$x = 1/3$", "12 x = 1/3", None),
        ("$x = 1/3$", r"x = 1/3 \cdot x", None),
        ("$x = 1/3$", r"\boxed{x = 3/9}", "math_verify"),
        (r"(-\infty,0)\cup(1,\infty)", r"\boxed{(-\infty,4 0)\cup(1,\infty)}", None),
        ("0", r"\boxed{\begin{cases} 0 & x>0 \\ 2 & x \le 0 \end{cases}}", None),
        (r"-4<m\le 0", r"\boxed{-4<m\le 0\cdot x}", None),
        ("$f(x)=1$", r"\boxed{f)x^)=1}", None),
        ("$f(x)=1$", "16, f(x)=1", None),
        ("$f(x)=1$", r"\boxed{\ne f(x)=1}", None),
        ("$f(x)=1$", r"f(x)=1 \cdot x", None),
        ("$f(x)=1$", r"\boxed{f(n)=1}", "renamed_variables"),
        ("x=y=z=2", r"\boxed{x = 5 = z = 2}", None),
        ("x=y=z=2", r"\boxed{x = y = z = 4/2}", "math_verify"),
        ("$x=11$", "$x = 5+5+1 = 11$", "math_verify"),
        (r"(\frac{4}{13},\frac{1}{13})", r"\boxed{x > (\frac{4}{13},\frac{1}{13})}", None),
        (r"(\frac{4}{13},\frac{1}{13})", r"\boxed{k\frac{4}{13},\frac{1}{13})}", None),
        (
            r"(\frac{4}{13},\frac{1}{13})",
            r"\boxed{\left(\tfrac{4}{13},\ \frac{1}{13}\right)}",
            "math_verify",
        ),
        ("6,600", "37, 6,600", None),
        (r"\text{Even}", r"\boxed{\text{Eve(n}}", None),
        (r"\text{Even}", r"\boxed{\text{even}}", "math_verify"),
        ("6,600", "x > 6,600", None),
        ("6,600", r"\boxed{6600}", "math_verify"),
        ("4", "What is it? 1) sun\n2) oxygen\n3) water\n4) dead organisms", None),
        (
            "3000",
            r"\boxed{"
            + "He stood on the ledge of the mountain and saw how the comb fell by many feet, in all "
            + "3000}",
            None,
        ),
        (
            r"\begin{pmatrix}1 & 2\end{pmatrix}",
            r"\boxed{\begin{pmatrix}1 & 2+0\end{pmatrix}}",
            "math_verify",
        ),
    ],
)
def test_what_names_the_gold_and_does_not_say_it_is_wrong(gold, response, rule):
    assert accepted_by(marked(gold), response) == rule


def test_the_answer_of_a_response():
    assert final_answer(r"so \boxed{1} and \boxed {\frac{1}{2}}") == r"\frac{1}{2}"
    assert final_answer("a\nb\nA: 26") == "26"
    assert final_answer(r"\boxed{5") == final_answer("") == final_answer("one\ntwo") == ""


def test_rules_that_take_too_long_accept_nothing_and_leave_no_timer(monkeypatch):
    def endless(*_):
        while True:
            pass

    monkeypatch.setattr(judging, "_decide", endless)
    monkeypatch.setattr(judging, "LIMIT_S", 0.2)
    before = signal.getsignal(signal.SIGVTALRM)
    assert accepted_after(("$5$",), r"\boxed{5}", True, endless) == "math_verify"
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert accepted_after(("$5$",), r"\boxed{6}", False, endless) is None
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_another_thread_gets_the_same_verdicts():
    with ThreadPoolExecutor(1) as pool:
        asked = [("$(3,4]$", r"\boxed{3 < x \le 4}"), ("$5$", r"\boxed{5}"), ("$5$", r"\boxed{6}")]
        assert list(pool.map(accepted_by, *zip(*asked, strict=True))) == [
            "intervals",
            "math_verify",
            None,
        ]


def test_a_sample_of_the_adversary():
    for gold in (
        "5",
        r"$\frac{3}{4}$",
        "(3,4]",
        "$f(x)=2x$",
        "1,2",
        r"x = k\pi",
        "21.93",
        r"135^\circ",
    ):
        answers = adversary.wrong_answers(
            gold, ["7", "x^2+1"], "How many?", 150, random.Random(gold)
        )
        through = [answer for answer in answers if accepted_by(marked(gold), answer)]
        assert not through, f"{gold}: {through}"
