"""The reward against given verdicts, hostile answers, and the ways its process can go."""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from exgrpo import math_verify_reward as reward
from exgrpo.math_verify_reward import compute_score

GRADING = Path(__file__).parents[3] / "shared" / "data" / "grading"


def whole(answer, gold, **kwargs):
    return compute_score("math", answer, gold, require_think=False, **kwargs)


@pytest.mark.parametrize(
    ("answer", "gold", "correct"),
    [
        (r"so \boxed{25}", "025", True),  # AIME
        (r"\boxed{142}", "142.0", True),  # AMC
        (r"\boxed{\frac{1}{2}}", "$0.5$", True),  # Olympiad: dollars are there already
        (r"\boxed{\frac{1}{2}}", r"so \[ \boxed{0.5} \]", True),  # marks its mathematics itself
        (r"\boxed{4.5e33}", "4.5e33", True),
        (r"\boxed{5}", "np.arcsin(10/13)", False),  # Minerva
        (r"\boxed{24}", "025", False),
        ("25", None, False),
        ("", "25", False),
        ("25", " $$ ", False),
    ],
)
def test_verdicts(answer, gold, correct):
    assert whole(answer, gold) == {"score": float(correct), "acc": float(correct), "timed_out": 0.0}


def test_only_what_follows_the_thought_counts():
    assert compute_score("math", r"\boxed{1} </think> \boxed{2}", "2")["score"] == 1
    assert compute_score("math", r"\boxed{2} </think> I do not know", "2")["score"] == 0
    assert compute_score("math", r"\boxed{2}", "2")["score"] == 0  # the thought never ends
    assert whole(r"\boxed{2}", "2")["score"] == 1


def test_after_the_first_thought_there_is_no_second_try():
    assert (
        compute_score("math", r"a </think> \boxed{1} </think> \boxed{2}", "1")["score"] == 1
    )  # as released
    assert compute_score("math", r"a </think> \boxed{1} </think> \boxed{2}", "2")["score"] == 0
    assert compute_score("math", r"a </think></think> \boxed{2}", "2")["score"] == 0


@pytest.mark.parametrize(
    "response",
    [
        r"a </think> \boxed{2}",
        r"<think> again </think> \boxed{2}",  # opened by the prompt and once more by the model
        r"\boxed{2}",
        r"</think> \boxed{2}",
        r"a </think> \boxed{2} <think> no: </think> \boxed{3}",
        "",
    ],
)
def test_the_thought_that_the_prompt_opened_changes_no_verdict(response):
    """The release grades the prompt's ``<think>`` and the response as one text; verl hands over the
    response alone.
    """
    shown_and_written = compute_score("math", f"<think>\n{response}", "2")
    assert shown_and_written == compute_score("math", response, "2")
    assert shown_and_written["score"] == float("</think>" in response)


@pytest.mark.parametrize(
    "answer",
    [
        "9" * 1_000_000,
        r"\frac{" * 10_000 + "1" + "}" * 10_000,
        r"\boxed{5",
        "\x00\x00\ud800",
        "答案是五",
        r"$\int_0^1 \sum_{i" * 50,
    ],
)
def test_hostile_answers_are_wrong_and_nothing_more(answer):
    assert whole(answer, "5")["score"] == 0
    assert whole(r"\boxed{5}", "5")["score"] == 1


def test_a_long_response_is_judged_by_its_end():
    response = "I try again. " * 3_000 + r"So it is \boxed{5}"
    assert len(response) > 1.5 * reward.MAX_CHARACTERS
    assert whole(response, "5")["score"] == 1


def test_no_answer_may_take_more_than_4_gib():
    assert whole(r"\boxed{5}", "5")["score"] == 1
    most, _ = resource.prlimit(reward._VERIFIER._process.pid, resource.RLIMIT_AS)
    assert 0 < most <= 4 * 2**30


def test_an_answer_that_takes_too_long_is_wrong_and_the_next_one_is_not():
    started = time.monotonic()
    assert whole(r"\boxed{10^{10^{10}}}", "5", timeout_s=0.5) == {
        "score": 0.0,
        "acc": 0.0,
        "timed_out": 1.0,
    }
    assert time.monotonic() - started < 20
    assert reward._VERIFIER._process.poll() is None  # the next one loads while nobody waits for it
    assert whole(r"\boxed{5}", "5")["score"] == 1


def test_a_slow_answer_costs_one_start_and_the_next_answer_waits_for_none(monkeypatch):
    starts = []
    started = reward._Process.__init__
    monkeypatch.setattr(
        reward._Process, "__init__", lambda *given: starts.append(1) or started(*given)
    )
    reward._VERIFIER.close()
    assert whole(r"\boxed{5}", "5")["score"] == 1
    assert len(starts) == 2  # the first one, and the spare one
    for n in range(3):
        spare = reward._VERIFIER._spare
        assert whole(r"\boxed{10^{10^{10}}}", "5", timeout_s=0.5)["timed_out"] == 1
        assert len(starts) == 3 + n and reward._VERIFIER._judging is spare
    assert whole(r"\boxed{5}", "5")["score"] == 1


def test_off_the_main_thread_and_from_many():
    verdicts = {}

    def ask(n):
        verdicts[n] = whole(rf"\boxed{{{n}}}", str(n // 2 * 2))["score"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {n: float(n % 2 == 0) for n in range(16)}


def test_a_killed_process_is_replaced():
    assert whole(r"\boxed{5}", "5")["score"] == 1
    process = reward._VERIFIER._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert whole(r"\boxed{5}", "5")["score"] == 1


def test_a_process_that_stops_reading_does_not_hang_the_caller():
    assert whole(r"\boxed{5}", "5")["score"] == 1
    process, verdicts = reward._VERIFIER._process, []
    os.kill(process.pid, signal.SIGSTOP)
    more_than_a_socket_holds = "𝑥" * 20_000  # twelve bytes each
    thread = threading.Thread(
        target=lambda: verdicts.append(whole(more_than_a_socket_holds, "5", timeout_s=0.5))
    )
    thread.start()
    thread.join(5)
    hung = thread.is_alive()
    process.kill()  # lets go of a caller that hangs
    thread.join()
    assert not hung and verdicts == [{"score": 0.0, "acc": 0.0, "timed_out": 1.0}]


def test_a_fork_while_another_thread_asks_does_not_hang():
    with reward._VERIFIER._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if whole(r"\boxed{5}", "5")["score"] == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert whole(r"\boxed{5}", "5")["score"] == 1


def test_many_open_files_do_not_turn_answers_wrong():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2_048:
        pytest.skip("this machine allows too few open files")
    reward._VERIFIER.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (2_048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        assert whole(r"\boxed{5}", "5")["score"] == 1
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_whatever_the_caller_passes_nothing_is_raised(monkeypatch, caplog):
    class Unprintable:
        def __str__(self):
            raise RuntimeError

    assert (
        whole("5", "5", reward_router_address="host:1", reward_model_tokenizer=None)["score"] == 1
    )
    assert whole("5", Unprintable())["score"] == 0
    reward._VERIFIER.close()
    monkeypatch.setattr(reward.sys, "executable", "/nonexistent")
    caplog.clear()
    assert whole("5", "5") == {"score": 0.0, "acc": 0.0, "timed_out": 1.0}
    assert (
        "no Math-Verify process" in caplog.text
    )  # zeros without a word would look like a policy that learns nothing


def test_the_process_ends_with_a_caller_that_dies_while_an_answer_hangs():
    code = r"""
import os, signal, threading, time
from exgrpo import math_verify_reward as reward
def ask(answer): reward.compute_score("m", answer, "5", require_think=False, timeout_s=0.5)
ask(r"\boxed{5}")
print(reward._VERIFIER._process.pid, flush=True)
threading.Thread(target=ask, args=(r"\boxed{10^{10^{10}}}",)).start()
time.sleep(0.2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    process, deadline = f"/proc/{int(done.stdout)}/stat", time.monotonic() + 20
    while _alive(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert done.returncode == -signal.SIGKILL and not _alive(process)


def _alive(stat):
    try:
        return Path(stat).read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_process_gives_an_answer_all_the_time_the_caller_does(monkeypatch):
    sent = []
    reward._VERIFIER.start()
    monkeypatch.setattr(
        reward._VERIFIER, "_ask", lambda request, timeout_s: sent.append(json.loads(request))
    )
    whole(r"\boxed{5}", "5", timeout_s=60)
    assert sent[0]["limit_s"] == 60  # its alarm, see the worker, must not ring before


def test_the_process_is_renewed(monkeypatch):
    monkeypatch.setattr(reward, "ANSWERS_PER_PROCESS", 3)
    reward._VERIFIER.close()
    pids = []
    for _ in range(7):
        assert whole(r"\boxed{5}", "5")["score"] == 1
        pids.append(reward._VERIFIER._process.pid)
    assert len(set(pids)) == 3


def test_memory_of_the_caller_stays_put():
    for n in range(200):
        whole(rf"\boxed{{{n}}}", str(n))
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in range(2_000):
        whole(rf"thinking about {n} \boxed{{{n}}}", str(n))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4_096  # KiB


@pytest.mark.skipif(not GRADING.is_dir(), reason="the grading data is not beside the checkout")
@pytest.mark.parametrize(
    ("name", "share"), [("qwen_math_cot_100", 0.998), ("math_verify_tests", 0.965)]
)
def test_agreement_with_given_verdicts(name, share):
    rows = [json.loads(line) for line in (GRADING / f"{name}.jsonl").read_text().splitlines()]
    agree = [whole(row["pred"], row["gold"])["score"] == float(row["expected"]) for row in rows]
    assert sum(agree) / len(agree) >= share, f"{sum(agree)} of {len(agree)}"


@pytest.mark.parametrize("grader", ["strict", "full"])
def test_of_several_golds_each_counts(grader):
    def score(gold):
        answer = r"so \boxed{0.5}"
        judged = compute_score("x", answer, gold, require_think=False, grader=grader)
        return judged["score"]

    assert score(["7", "1/2"]) == 1 and score(["1/2", "7"]) == 1 and score(np.array(["1/2"])) == 1
    assert score(["7", "8"]) == 0 and score([]) == 0 and score(["", None]) == 0
