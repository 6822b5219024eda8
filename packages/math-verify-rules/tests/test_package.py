"""The package as a stranger finds it: its cases, its command, the lines of its README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from math_verify_rules import __main__ as command
from math_verify_rules import accepted_by
from math_verify_rules.comparison import ORDER

README = Path(__file__).parents[1] / "README.md"
CASES = list(command.cases())


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.kind}: {case.gold} | {case.answer}"[:70]
)
def test_each_case_is_judged_as_it_says(case):
    assert (accepted_by(case.gold, case.answer) is not None) == case.verdict


def test_the_cases_are_balanced_and_each_rule_has_one_to_accept_and_one_to_reject():
    right = sum(case.verdict for case in CASES)
    assert len(CASES) >= 150 and abs(2 * right - len(CASES)) <= 0.1 * len(CASES)
    assert len({case[:2] for case in CASES}) == len(CASES)
    kinds = {
        verdict: {case.kind for case in CASES if case.verdict == verdict}
        for verdict in (True, False)
    }
    assert kinds[True] >= set(ORDER) and kinds[False] >= set(ORDER)


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=README.parent
    )


def test_the_command_says_how_many_cases_are_as_they_say():
    done = python("-m", "math_verify_rules", "--check")
    assert done.returncode == 0 and done.stderr == ""
    assert re.match(
        rf"{len(CASES)} cases, \d+ to accept and \d+ to reject: {len(CASES)} as they say",
        done.stdout,
    )


def test_the_command_names_a_case_that_is_judged_otherwise(monkeypatch, capsys):
    monkeypatch.setattr(
        command, "cases", lambda: iter([command.Case("$5$", r"\boxed{6}", True, "mine")])
    )
    monkeypatch.setattr(sys, "argv", ["math_verify_rules", "--check"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    said = capsys.readouterr().out
    assert (
        ended.value.code == 1
        and r"mine: gold '$5$', answer '\\boxed{6}': should be accepted" in said
    )


def test_the_lines_of_the_readme_run_without_exgrpo():
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(code.strip().splitlines()) <= 10 and code.count("assert") >= 3
    done = python("-c", f"import sys\nsys.modules['exgrpo'] = None\n{code}")
    assert done.returncode == 0, done.stderr


def test_only_math_verify_imports_sympy():
    done = python(
        "-c",
        "import math_verify_rules, sys\nprint('sympy' in sys.modules, 'math_verify' in "
        "sys.modules)",
    )
    assert done.stdout == "False False\n", done.stderr
