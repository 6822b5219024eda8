"""trainer.exp_unit=prompt: the questions that replay would draw, asked anew, and nothing old."""

from test_group_replay import group, replay_of


def steps_of(unit, steps=3):
    """The draws of a run whose fresh groups each have one success of two."""
    replay, questions = replay_of(exp_unit=unit)
    drawn = []
    for step in range(1, steps + 1):
        drawn.append(replay.draw(step, 4, lambda: next(questions)))
        replay.observe(step, [group(question, 1, 0, step=step) for question in drawn[-1].fresh], {})
    return replay, drawn


def test_the_same_questions_are_drawn_and_are_fresh_ones():
    (_, with_past), (replay, alone) = steps_of("trajectory", 2), steps_of("prompt", 2)
    assert len(with_past[1].replayed) == 2
    assert alone[1].fresh == with_past[1].replayed + with_past[1].fresh
    assert not alone[1].replayed and not alone[1].stored and alone[1].mixed
    assert len(replay.pool.replays) == 0


def test_no_question_is_in_a_step_twice_and_a_solved_one_is_retired():
    replay, drawn = steps_of("prompt", 6)
    assert all(len(set(each.fresh)) == 4 for each in drawn)
    question = drawn[-1].fresh[0]
    replay.observe(7, [group(question, 1, 1, step=7)], {})
    assert question not in replay.pool


def test_draws_are_counted_by_bucket_as_those_of_replay():
    replay, questions = replay_of(exp_unit="prompt")
    replay.observe(
        1,
        [group(question, 1, 0) for question in replay.draw(1, 4, lambda: next(questions)).fresh],
        {},
    )
    replay.draw(2, 4, lambda: next(questions))
    assert replay.observe(2, [], {})["drawn_bucket_1"] == 2
