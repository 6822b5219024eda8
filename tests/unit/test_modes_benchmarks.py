"""benchmarks/modes.py and overlap.py: what they make of figures and stamps; the quickstart's reward
between 0 and 1.
"""

import importlib
import json
from argparse import Namespace

import modes
import overlap
import pytest


def write(output, name, kind, seconds):
    file = modes.figures_file(output, name, kind)
    file.parent.mkdir(parents=True)
    steps = modes.STEPS
    groups = [0.0, 0.0] + [8.0] * (steps - 2) if kind == "replay" else [0.0] * steps
    figures = {
        "before": 0.25,
        "after": 0.75,
        "groups": groups,
        "seconds": seconds,
        "cpu_seconds": [2.0] * steps,
    }
    figures |= {"staleness": [0.0] * steps, "generated_tokens": [100.0] * steps, "load": 1.0}
    file.write_text(json.dumps(figures))


def test_a_mode_is_compared_over_the_steps_that_replay(tmp_path):
    steps = modes.STEPS
    assert modes.compared(tmp_path, "rloo") is None
    write(tmp_path, "rloo", "replay", [90.0, 90.0] + [3.0] * (steps - 3) + [50.0])
    alone = modes.compared(tmp_path, "rloo")
    assert alone["replayed_share"] == 8 * (steps - 2) / (16 * steps) and "step ratio" not in alone
    assert "| rloo | 0.250, 0.750 | - | 0.45 | 3.00, - | - | - | 2,000, - |" in modes.table([alone])
    write(tmp_path, "rloo", "on-policy", [1.0, 1.0] + [2.0] * (steps - 2))
    both = modes.compared(tmp_path, "rloo")
    assert (both["step ratio"], both["cpu ratio"]) == (1.5, 1.0)


def test_only_runs_that_are_not_complete_are_added(tmp_path):
    write(tmp_path, "rloo", "replay", [1.0] * modes.STEPS)
    options = Namespace(names=["rloo", "gspo"], only=None, output=tmp_path)
    assert modes.missing(options) == [
        ("rloo", "on-policy"),
        ("gspo", "replay"),
        ("gspo", "on-policy"),
    ]
    options = Namespace(names=[], only="replay", output=tmp_path)
    assert modes.missing(options) == [(name, "replay") for name in modes.MODES if name != "rloo"]


def stamp(what, begin, end, **more):
    return {"what": what, "begin": 100.0 + begin, "end": 100.0 + end, **more}


def test_overlap_counts_the_rollout_server_alone_and_not_while_its_weights_change():
    stamps = [
        stamp("hybrid", 0, 0, servers=["own"]),
        stamp("log_probs", 0, 1),  # before the first update
        stamp("update", 1, 3),
        stamp("rollout", 1.5, 2.5, server="other"),
        stamp("rollout", 0, 9, server="own"),
        stamp("rollout", 3.5, 6, server="other"),
        stamp("weights", 4, 5),
        stamp("log_probs", 5, 5.5),
        stamp("update", 5.5, 11),
    ]
    figures = overlap.overlap(stamps)
    assert list(figures.values()) == pytest.approx([10, 8, 2.5, 2, 2 / 8, 1.5 / 7.5, 2 / 2.5, 2, 1])


def test_a_near_answer_has_part_of_the_reward():
    score = importlib.import_module("partial_credit").compute_score
    answers = [r"\boxed{12}", r"1+2=3;\boxed{7}", r"\boxed{40}", "12", r"\boxed{3}\boxed{12}"]
    graded = [score("sum5", answer, "12") for answer in answers]
    assert [each["score"] for each in graded] == pytest.approx([1, 0.4, 0, 0, 1])
    assert [each["acc"] for each in graded] == [1, 0, 0, 0, 1]
