"""Which tests are slow: their files begin first, so that nothing waits for the last one; --fast
leaves them out.

What each shows that no other test does:

- test_crash_sweep.py: a save that is killed at any system call resumes to one of the two
neighbouring checkpoints.
- test_released_update.py: the gradient is the released one, by verl's real engine, on one and two
ranks.
- test_pool_model.py, test_buffer_model.py: the pool and the buffer, against a plain model, in any
order of calls.
- test_recipe.py, test_released_scale.py: what the recipes' scripts set, as Hydra composes it,
against the page.
- packages/verl-cpu: test_plain_verl.py: verl's own trainers without exgrpo; test_verl_plugin.py:
its entry point.
- test_packaging.py: the wheel, installed, has its command and its configuration.
- test_eval_hostile.py: answers that are made to hang or crash a grader cost themselves alone.
- test_full_grader.py, test_rules_and_guards.py: agreement with given verdicts; a sample of the
adversary.
- test_served.py: evaluation against a real server of vLLM's protocol, with faults.
- test_eval_grading.py, test_math_verify_reward.py: both graders' agreement with given verdicts;
their processes' ends.
- test_prepare_eval.py, test_grade_only.py, test_script_starts.py: commands, each a process that
imports the stack.
- test_weight_socket.py: two trainings' weights at once.
- test_watched.py: what waits for processes that hang is itself a matter of seconds.
- tests/e2e/: see each file's first lines.
"""

import os
import signal
import tempfile

import pytest
import survivors

from verl_cpu.prepared.uncollected import uncollected

# A script's background ignores SIGINT, and every process that the tests start and interrupt would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray gives its own processes 30 s to start, which a busy machine can take longer for.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "150")

SLOW = [
    *(
        "test_plain_verl.py",
        "test_training.py",
        "test_settings.py",
        "test_cluster_settings.py",
        "test_exact_resume.py",
    ),
    *("test_modes.py", "test_two_nodes.py"),
    *("test_evaluation.py", "test_crash_sweep.py", "test_released_update.py", "test_pool_model.py"),
    *(
        "test_recipe.py",
        "test_released_scale.py",
        "test_eval_hostile.py",
        "test_verl_plugin.py",
        "test_buffer_model.py",
    ),
    *(
        "test_packaging.py",
        "test_full_grader.py",
        "test_rules_and_guards.py",
        "test_served.py",
        "test_eval_grading.py",
    ),
    *(
        "test_math_verify_reward.py",
        "test_prepare_eval.py",
        "test_grade_only.py",
        "test_script_starts.py",
    ),
    *("test_weight_socket.py", "test_watched.py"),
]


def pytest_addoption(parser):
    parser.addoption(
        "--fast", action="store_true", help="without the slow tests (tests/conftest.py)"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with uncollected():
        return (yield)


def pytest_collection_modifyitems(config, items):
    items.sort(
        key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW)
    )  # stable
    if config.getoption("--fast"):
        left_out = [item for item in items if item.path.name in SLOW]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.path.name not in SLOW]


@pytest.fixture(scope="session", autouse=True)
def no_survivors():
    with survivors.none_left():
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(no_survivors):
    """Where processes that tests start leave sockets, locks and caches; those of killed ones stay
    until the end.
    """
    made = tempfile.TemporaryDirectory(prefix="xg-", ignore_cleanup_errors=True)
    with made as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield
