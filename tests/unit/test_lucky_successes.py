"""exp_scripts/regime/lucky_successes.py: what is a valid success, and what choices take."""

import lucky_successes
from lucky_successes import Success, facts


def test_the_lowest_entropy_and_a_random_success_of_questions_with_both_kinds():
    found = [Success(0, 0.1, True), Success(0, 0.5, False), Success(1, 0.2, False), Success(1, 0.3, True)]
    found += [Success(2, 0.1, True), Success(3, 0.7, False)]  # one kind alone
    measured = facts(found)
    assert measured["questions with both"] == 2
    assert measured["lowest entropy is valid"] == 0.5 and measured["a random one is valid"] == 0.5
    assert measured["median entropy of valid"] == 0.1 and measured["median entropy of lucky"] == 0.5


def test_a_guess_is_lucky_and_a_right_calculation_valid(monkeypatch):
    monkeypatch.setattr(lucky_successes, "QUESTIONS", 24)
    found = lucky_successes.successes("sum", answers=8)
    valid = [one.entropy for one in found if one.valid]
    lucky = [one.entropy for one in found if not one.valid]
    assert valid and lucky and max(valid) < min(lucky)
