"""What the trainer knows of a prompt that has not been trained on yet."""

import json

from exgrpo.on_verl.in_flight import InFlight, Prompt


def out(*uids):
    prompts = InFlight()
    for uid in uids:
        prompts.add(uid, Prompt(f"question {uid}", uid == "b", True))
    return prompts


def test_positions_count_on_within_a_step_and_begin_anew_in_the_next():
    prompts = InFlight()
    assert [
        prompts.first_position(step, size) for step, size in [(1, 8), (1, 4), (1, 1), (2, 8)]
    ] == [0, 8, 12, 0]


def test_a_prompt_is_taken_once_in_the_order_of_names():
    prompts = out("c", "b", "a")
    assert list(prompts.take({"c", "a", "unknown"})) == ["a", "c"]
    assert prompts.take({"a"}) == {} and prompts.questions == ["question b"]


def test_what_was_evicted_is_forgotten():
    prompts = out("a", "b", "c")
    prompts.keep_only({"b", "unknown"})
    assert prompts.questions == ["question b"]


def test_the_state_is_json_and_whole():
    prompts, again = out("a", "b"), InFlight()
    again.restore(json.loads(json.dumps(prompts.state())), {"a", "b", "c"}, step=3)
    assert again.take({"a", "b"}) == {
        "a": Prompt("question a", False, True),
        "b": Prompt("question b", True, True),
    }
