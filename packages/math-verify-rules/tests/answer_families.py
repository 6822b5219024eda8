r"""Wrong answers and right ones by kind: {g} stands for the gold, {w} for another answer, {n} for a number.

python packages/math-verify-rules/tests/answer_families.py    # how many are accepted, by kind
"""

# ruff: noqa: E501
from __future__ import annotations

import random
from collections.abc import Iterator

GOLDS = [
    "7", "-3", "1000", "12.5", r"\frac{3}{8}", r"50\%", r"2\sqrt{3}", "x^2+1", "(2, 5)", r"\{1, 4\}", "x > 2",
    r"\begin{pmatrix}1\\2\end{pmatrix}", "10:45", r"3\text{ km}", "B",
]  # fmt: skip
NUMBERS = [17, 19, 23, 29]
IN_A_BOX = {
    "a box inside": [r"\boxed{{{g}}} {w}", r"\fbox{{{g}}} {n}", r"\boxed{{{g}}} \neq {w}", r"\boxed{{{g}}} + {n}", r"{n}\cdot\fbox{{{g}}}", r"\text{{not }}\boxed{{{g}}}", r"\{{\boxed{{{g}}}, {n}\}}"],
    "called false": [r"{g} \text{{ (false)}}", r"{g} \text{{ is incorrect}}", r"\text{{false: }} {g}", r"{g} \text{{ (no)}}", r"\text{{wrongly }} {g}", r"{g}（错误）"],
    "the g-th": [r"\text{{the }} {g}\text{{th prime}}", r"\text{{the }} {g}\text{{-th prime}}", r"{g}\text{{th Fibonacci number}}", r"\text{{the }} {g}^{{\text{{th}}}} \text{{ square}}", r"第{g}个质数"],
    "a range around": [r"x \approx {g} \pm 100", r"\approx {g} \pm {n}", r"{g} \text{{ plus or minus }} {n}", r"x \approx {g} - {n}"],
    "a chain": [r"x = {n} = {g}", r"A = {n} = {g}", r"f(x) = {n} = {g}", r"{n} = {g}"],
    "another scale": ["{g} pct", r"{g} \text{{ percent}}", r"{g}\text{{ per mille}}", r"{g}\text{{ basis points}}", "{g} dozen", r"{g} \text{{ million}}", "{g}万"],
    "side by side": [r"{n} \quad {g}", r"{n}\\ {g}", r"{g} \qquad {n}", r"{n}\hspace{{1em}}{g}"],
    "compared": [r"\text{{greater than }} {g}", r"\text{{up to }}{g}", r"\text{{exceeds }}{g}", r"{g}\text{{ or higher}}", r"\text{{after }}{g}", r"\text{{different from }}{g}", r"\gg {g}", "大于{g}"],
    "negated": [r"\neg {g}", r"\lnot ({g})", "¬{g}", r"\not= {g}", r"\not\approx {g}", r"\cancel{{{g}}}"],
    "not seen": [r"\phantom{{{g}}} {w}", r"\textcolor{{white}}{{{g}}} {w}", r"{w} % {g}"],
    "digits that repeat": [r"{g}\overline{{3}}", r"{g}\dot{{3}}"],
    "doubted": [r"\text{{perhaps }}{g}", r"\text{{unless }}{g}", r"{g}\text{{?}}", r"\text{{any number but }}{g}"],
}  # fmt: skip
AROUND_A_BOX = {
    "taken back": [r"\boxed{{{g}}} is wrong, the answer is {w}", r"\boxed{{{g}}} is incorrect; it should be {n}.", r"The answer is not \boxed{{{g}}}.", r"\boxed{{{g}}}, but that is a mistake.", r"\boxed{{{g}}}. Actually, the answer is {n}.", r"It cannot be \boxed{{{g}}}", r"A wrong answer would be \boxed{{{g}}}.", r"\boxed{{{g}}}? No, it is {w}."],
    "a tag": ["<answer>{w}</answer> ({g})", "<answer>{g}</answer><answer>{w}</answer>", "<answer>{g} is wrong, it is {w}</answer>", "<answer>not {g}</answer>", "<answer></answer>{g}"],
    "several boxes": [r"\boxed{{{w}}} or \boxed{{{g}}}", r"First \boxed{{{g}}}. No: \boxed{{{w}}}.", r"\boxed{{{w}}}, \boxed{{{g}}}", r"It is \boxed{{{n}}} or maybe \boxed{{{g}}}.", r"The answer is \boxed{{{w}}}, not \boxed{{{g}}}."],
}  # fmt: skip
RIGHT = {
    "7": [
        r"\underline{7}",
        r"{\color{blue}7}",
        r"\textcolor{red}{7}",
        r"\overbrace{7}",
        r"7\ \blacksquare",
        "\uff17",
        r"\Large 7",
        r"\boxed{7}",
    ],
    "1000": [
        r"1\;000",
        "1 000",
        r"1\ 000",
        "1~000",
        "1\u202f000",
        "1'000",
        "\uff11\uff10\uff10\uff10",
    ],
    r"\frac{3}{8}": [
        "⅜",
        "three eighths",
        r"\text{three-eighths}",
        r"{3 \over 8}",
        "\uff13/\uff18",
        "八分之三",
    ],
    r"\frac{7}{4}": ["1¾", "seven fourths"],
    "-3": ["\uff0d3", "\u22123", "负三", r"\text{minus three}"],
    "(2, 5)": ["(2|5)", r"(2 \mid 5)", "\uff082\uff0c5\uff09"],
    "x^2+1": ["x**2+1", "(x+i)(x-i)", "`x**2 + 1`"],
    "e^2": [r"{\rm e}^2", r"\mathrm e^2", r"\exp(2)", "7.389"],
    r"50\%": ["fifty percent", "50 pct", "百分之五十"],
    "50": [r"50\%"],
    "10:45": ["10{:}45", r"10\!:\!45", "10.45", "10h45"],
    "3:30": ["3{:}30", r"3\colon 30"],
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": [
        "[[1,2],[3,4]]",
        "((1,2),(3,4))",
        "[1, 2; 3, 4]",
        "A=[[1,2],[3,4]]",
    ],
    r"\begin{pmatrix}1\\2\end{pmatrix}": ["[[1],[2]]", "[1,2]"],
    "12": ["12元", r"\text{12个}", r"12\text{元}", "十二"],
    r"5\text{ cm}": ["5厘米", r"5 {\rm cm}"],
    r"3\text{ km}": ["3公里", "3000米"],
}
RIGHT_RESPONSES = {
    "7": [
        "<answer>7</answer>",
        "<answer>\nThe answer is $7$.\n</answer>",
        r"First \boxed{1}. No: \boxed{7}.",
        "答案：7",
        r"\boxed{7}. So the answer is 7 apples.",
    ],
    "3": [r"First \boxed{1}. Then, so the answer is \boxed{3}."],
}


def wrong_answers(golds: list[str]) -> Iterator[tuple[str, str, str]]:
    """(kind, gold, response), the same each time."""
    for at, gold in enumerate(golds):
        draw = random.Random(at)
        for kind, templates in (IN_A_BOX | AROUND_A_BOX).items():
            for template in templates:
                other = draw.choice([each for each in GOLDS if each != gold])
                text = template.format(g=gold, w=other, n=draw.choice(NUMBERS))
                yield kind, gold, f"So it is \\boxed{{{text}}}" if kind in IN_A_BOX else text


def right_answers() -> Iterator[tuple[str, str]]:
    """(gold, response)."""
    yield from ((gold, rf"\boxed{{{each}}}") for gold, answers in RIGHT.items() for each in answers)
    yield from ((gold, each) for gold, responses in RIGHT_RESPONSES.items() for each in responses)


if __name__ == "__main__":
    from collections import Counter

    from adversary import marked

    from math_verify_rules import accepted_by

    tried: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for kind, gold, response in wrong_answers(GOLDS):
        tried[kind] += 1
        accepted[kind] += accepted_by(marked(gold), response) is not None
    for kind, count in tried.items():
        print(f"{kind}: {accepted[kind]} of {count} wrong answers accepted")
    refused = [accepted_by(marked(gold), response) is None for gold, response in right_answers()]
    print(f"{sum(refused)} of {len(refused)} right answers refused")
