"""lab/studies/lucky_successes.py: what is a valid success, and what choices take."""

import lucky_successes
from lucky_successes import Success, facts, table


def success(question, entropy, valid):
    return Success(question, entropy, 1 + entropy, valid)


def test_the_lowest_entropy_and_a_random_success_of_questions_with_both_kinds():
    found = [success(0, 0.1, True), success(0, 0.5, False), success(1, 0.2, False), success(1, 0.3, True)]
    found += [success(2, 0.1, True), success(3, 0.7, False)]  # one kind alone
    measured = facts(found)
    assert measured["questions with both"] == 2
    assert measured["lowest entropy is valid"] == 0.5 and measured["a random one is valid"] == 0.5
    assert measured["median entropy of valid"] == 0.1 and measured["median entropy of lucky"] == 0.5


def test_medians_by_how_often_a_question_is_solved():
    found = [success(0, 0.1, True), *(success(1, 0.3, True), success(1, 0.5, False)) * 2]
    rows = table({"sum": found}, answers=4).splitlines()
    assert rows[2:] == [
        "| sum | hard | 1, 0 | 0.10, - | 1.10, - |",
        "| sum | medium | 0, 0 | -, - | -, - |",
        "| sum | easy | 2, 2 | 0.30, 0.50 | 1.30, 1.50 |",
    ]


def test_a_guess_is_lucky_and_a_right_calculation_valid(monkeypatch):
    monkeypatch.setattr(lucky_successes, "QUESTIONS", 24)
    found = lucky_successes.successes("sum", answers=8)
    valid = [one.entropy for one in found if one.valid]
    lucky = [one.entropy for one in found if not one.valid]
    assert valid and lucky and max(valid) < min(lucky)
