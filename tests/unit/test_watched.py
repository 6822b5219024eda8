"""What tests wait with: it ends with the process, with what is waited for, or with a process that
makes no progress.
"""

import subprocess
import sys

import pytest
import watched


def started(code, **more):
    return subprocess.Popen([sys.executable, "-c", code], **more)


@pytest.mark.parametrize(
    ("code", "limit", "why"),
    [
        ("import time; time.sleep(1e6)", "ASLEEP_S", "no output"),
        ("while True: pass", "COMPUTED_S", "no output"),
        ("import sys; sys.exit(3)", "ASLEEP_S", "ended with 3"),
    ],
)
def test_who_sleeps_spins_or_ends_is_not_waited_for(monkeypatch, tmp_path, code, limit, why):
    monkeypatch.setattr(watched, limit, 1.5)
    process = started(code)
    try:
        with pytest.raises(watched.Hung, match=why):
            watched.Watch(process, tmp_path / "log").until(lambda: False)
    finally:
        process.kill()
        process.wait()


def test_output_and_work_are_progress(monkeypatch, tmp_path):
    monkeypatch.setattr(watched, "ASLEEP_S", 2.5)
    log = tmp_path / "log"
    code = "import time\nfor _ in range(5): time.sleep(1); print('.', flush=True)"
    with log.open("w") as file:
        assert watched.Watch(started(code, stdout=file), log).end() == 0
    busy = started(
        "import time\nuntil = time.process_time() + 4\nwhile time.process_time() < until: pass"
    )
    assert watched.Watch(busy, log).end() == 0


def test_a_command_gives_code_and_both_texts(tmp_path):
    code = "import os, sys; print(os.getcwd()); print('e', file=sys.stderr); sys.exit(4)"
    done = watched.run([sys.executable, "-c", code], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (4, f"{tmp_path}\n", "e\n")


def test_what_children_bring_about(tmp_path):
    process = started(f"open({str(tmp_path / 'made')!r}, 'w')")
    watched.until((tmp_path / "made").exists)
    assert process.wait() == 0
