"""The generating half of eval/: seeds, what is kept over a kill, GPUs. The model itself is in
tests/e2e.
"""

import ctypes
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import watched
from eval_inputs import settings

import process_tree
from exgrpo.experience.question_id import question_id
from exgrpo_eval.generate import command as generate_vllm
from exgrpo_eval.generate import copies, generation, partial_file, vllm_engine
from exgrpo_eval.generate.partial_file import PartialFile
from exgrpo_eval.generate.question_files import Question

ROOT = Path(__file__).parents[2]


# the plan


def plan(texts, seed=0, n=3):
    def question(index, text):
        return Question(
            "math",
            index,
            question_id(text),
            ({"role": "user", "content": text},),
            "1",
            "in.parquet",
            1,
        )

    questions = [question(index, text) for index, text in enumerate(texts)]
    return generation.plan(
        questions, lambda *_: n, seed, lambda q: generation.Prompt(q.messages[0]["content"], (1, 2))
    )


def test_a_samples_seed_depends_on_run_question_and_number_alone():
    def seeds(texts, **how):
        return {
            (request.prompt.text, request.sample): request.seed for request in plan(texts, **how)
        }

    whole = seeds("abcd")
    assert len(set(whole.values())) == 12 and max(whole.values()) < 2**48
    assert seeds("dxb", n=2).items() - whole.items() == seeds("x", n=2).items()
    assert not set(whole.values()) & set(seeds("abcd", seed=1).values())


def test_the_order_is_question_by_question():
    assert [request.key for request in plan("ab", n=2)] == [
        ("math", 0, 0),
        ("math", 0, 1),
        ("math", 1, 0),
        ("math", 1, 1),
    ]


# the partial file


def rows_of(texts="ab"):
    done = generation.Response(0, "答え\u2028\\boxed{1}", 3, "stop")
    return [generation.row(request, done) for request in plan(texts)]


def test_wherever_it_is_cut_the_whole_lines_are_kept(tmp_path):
    path, rows = tmp_path / "p", rows_of()
    with PartialFile(path, {"seed": 0}) as partial:
        partial.add(rows[:2])
        partial.add(rows[2:])
        started = partial.started
    whole = path.read_bytes()
    for cut in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:cut])
        held = max(0, whole[:cut].count(b"\n") - 1)
        with PartialFile(path, {"seed": 0}) as partial:
            assert list(partial.rows.values()) == rows[:held]
            assert partial.started == started or not held
            partial.add(rows[held:])
        with PartialFile(path, {"seed": 0}) as partial:
            assert list(partial.rows.values()) == rows


@pytest.mark.parametrize(
    "damaged",
    [
        lambda line: b"\0" * (len(line) - 1) + b"\n",
        lambda line: line[:40] + b"\n",
        lambda line: b"[" * 100_000 + b"\n",
        lambda line: b"[]\n",
        lambda line: line.replace(b'"sample"', b'"simple"'),
        lambda line: line.replace(b'"tokens": 3', b'"tokens": "3"'),
        lambda line: line.replace(b'"session"', b'"sessiom"'),
    ],
)
def test_a_damaged_line_costs_its_own_sample_alone_and_is_named(tmp_path, capsys, damaged):
    path, rows = tmp_path / "p", rows_of()
    with PartialFile(path, {}) as partial:
        partial.add(rows)
    lines = path.read_bytes().splitlines(keepends=True)
    assert damaged(lines[3]) != lines[3]
    before = b"".join([*lines[:3], damaged(lines[3]), *lines[4:]])
    path.write_bytes(before)
    kept = [*rows[:2], *rows[3:]]
    with PartialFile(path, {}) as partial:
        assert list(partial.rows.values()) == kept
        assert capsys.readouterr().out == (
            f"{path}: 1 of 6 rows cannot be read (line 4); "
            "they stay in the file, and their samples are generated again\n"
        )
        partial.add([rows[2]])
    assert path.read_bytes().startswith(before)
    with PartialFile(path, {}) as partial:
        assert list(partial.rows.values()) == [*kept, rows[2]]


def test_a_damaged_first_line_is_refused_and_costs_no_row(tmp_path):
    path = tmp_path / "p"
    with PartialFile(path, {}) as partial:
        partial.add(rows_of())
    path.write_bytes(before := b"x" + path.read_bytes())
    with pytest.raises(ValueError, match=r"its line 1, .* and 6 lines follow; --restart"):
        PartialFile(path, {})
    assert path.read_bytes() == before
    with PartialFile(path, {}, restart=True) as partial:
        assert not partial.rows


def test_a_run_with_other_settings_is_refused_by_name(tmp_path):
    path, rows = tmp_path / "p", rows_of()
    files = {"files": {"a.parquet": "12"}}
    with PartialFile(path, {"seed": 0, "n": "4", **files}) as partial:
        partial.add(rows)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"\(seed=1, was 0; a\.parquet=13, was 12\); --restart discards it$"
    ):
        PartialFile(path, {"seed": 1, "n": "4", "files": {"a.parquet": "13"}})
    assert path.read_bytes() == before
    with PartialFile(path, {"seed": 1}, restart=True) as partial:
        assert not partial.rows
    with PartialFile(path, {"seed": 2}) as partial:  # one without a sample stands in nobody's way
        assert not partial.rows


def test_one_run_at_a_time(tmp_path):
    with PartialFile(tmp_path / "p", {}), pytest.raises(OSError, match="another run is writing it"):
        PartialFile(tmp_path / "p", {}, restart=True)


def test_seconds_are_those_of_all_sessions(tmp_path, monkeypatch):
    clock = iter([0, 100, 102, 107, 0, 1000, 1003])
    monkeypatch.setattr(partial_file.time, "monotonic", lambda: next(clock))
    rows = rows_of()
    with PartialFile(tmp_path / "p", {}) as partial:
        partial.begin()
        partial.add(rows[:1])
        partial.add(rows[1:2])
        assert partial.seconds == 7
    with PartialFile(tmp_path / "p", {}) as partial:
        partial.begin()
        partial.add(rows[2:])
        assert partial.seconds == 10


# an output that is there already


def finished(tmp_path, *flags, identity=None):
    found = replace(settings(*flags), output_file=tmp_path / "o.jsonl")
    return generate_vllm.finished_run(found, identity or {"seed": 0})


def test_a_finished_output_is_recognised_and_not_overwritten_by_another_run(tmp_path):
    assert finished(tmp_path) is None
    rows = rows_of()
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "o.jsonl").write_text(lines, encoding="utf-8", errors="replace")
    with pytest.raises(ValueError, match=r"exists, without .*; --restart overwrites it"):
        finished(tmp_path)
    (tmp_path / "o.run.json").write_text(json.dumps({"identity": {"seed": 0}}))
    assert finished(tmp_path) == generate_vllm.FinishedRun(rows, {"identity": {"seed": 0}})
    with pytest.raises(
        ValueError, match=r"other settings \(seed=1, was 0\); --restart overwrites it"
    ):
        finished(tmp_path, identity={"seed": 1})
    assert finished(tmp_path, "--restart", identity={"seed": 1}) is None


@pytest.mark.parametrize(
    ("record", "rows", "complaint"),
    [
        ("{}", "{}", "o.run.json: identity=None: must be the settings of a run"),
        ('{"identity": [1]}', "{}", "o.run.json: identity=[1]: must be the settings of a run"),
        ("[]", "{}", "o.run.json: must be an object"),
        ('{"identity": {"se', "{}", "o.run.json: must be JSON (Unterminated string"),
        (
            '{"identity": {"seed": 0}}',
            '{}\n{"res',
            "o.jsonl: line 2: must be JSON (Unterminated string",
        ),
    ],
)
def test_what_cannot_be_read_of_a_finished_run_is_named(tmp_path, record, rows, complaint):
    (tmp_path / "o.run.json").write_text(record)
    (tmp_path / "o.jsonl").write_text(rows)
    with pytest.raises(ValueError) as error:
        finished(tmp_path)
    assert complaint in str(error.value) and str(error.value).endswith("; --restart overwrites it")
    assert finished(tmp_path, "--restart") is None


# GPUs


@pytest.mark.parametrize(
    ("gpus", "weights_gb", "heads", "flags", "layout"),
    [
        (0, 1, 12, (None, None), (1, 1)),
        (0, 1, 12, (None, 2), (1, 2)),
        (1, 15, 28, (None, None), (1, 1)),
        (8, 15, 28, (None, None), (1, 8)),
        (8, 64, 40, (None, None), (2, 4)),
        (8, 140, 64, (None, None), (4, 2)),
        (8, 64, 7, (None, None), (1, 8)),  # seven heads cannot be shared
        (8, 15, 28, (4, None), (4, 2)),
        (8, 15, 28, (None, 1), (1, 1)),
        (2, 900, 64, (None, None), (2, 1)),  # too large: vLLM says so
    ],
)
def test_copies_of_the_model(gpus, weights_gb, heads, flags, layout):
    tensor, data = flags
    model = copies.ModelSize(weights_gb * 10**9, heads)
    assert copies.layout(
        copies.Gpus(gpus, 80 * 10**9), model, tensor=tensor, data=data
    ) == copies.Layout(*layout)


@pytest.mark.parametrize(("gpus", "tensor", "data"), [(0, 2, None), (4, 2, 4), (1, None, 2)])
def test_more_gpus_than_there_are(gpus, tensor, data):
    with pytest.raises(ValueError, match=f"GPUs, there are {gpus}"):
        copies.layout(copies.Gpus(gpus, 80), copies.ModelSize(1, 8), tensor=tensor, data=data)


def test_each_copy_sees_its_part_of_the_callers_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [copies._visible(number, 2) for number in range(2)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [copies._visible(number, 2) for number in range(2)] == ["4,5", "6,7"]


def test_what_the_caller_has_set_for_vllm_stays(monkeypatch):
    monkeypatch.setattr(vllm_engine.os, "environ", {"OMP_NUM_THREADS": "7"})
    vllm_engine.prepare(gpus=0, copies=1, debug=False)
    environment = vllm_engine.os.environ
    assert environment["OMP_NUM_THREADS"] == "7" and environment["TORCHDYNAMO_DISABLE"] == "1"
    assert 1 <= int(environment["VLLM_CPU_KVCACHE_SPACE"]) <= 8


def test_the_engine_is_no_process_of_its_own_that_could_outlive_this_one(monkeypatch):
    for gpus in (0, 1):
        monkeypatch.setattr(vllm_engine.os, "environ", {})
        vllm_engine.prepare(gpus=gpus, copies=1, debug=False)
        assert vllm_engine.os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


WORKERS_PARENT = """
import multiprocessing, os, time
def work(sender):
    from exgrpo_eval.generate.vllm_worker import EndsWithParent
    sender.send(os.getpid())
    time.sleep(600)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()
    context.Process(target=work, args=(sender,), daemon=True).start()
    sender.close()
    print(receiver.recv(), flush=True)
    time.sleep(600)
"""


def test_a_worker_of_vllm_ends_with_a_killed_parent():
    parent = subprocess.Popen(
        [sys.executable, "-c", WORKERS_PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    worker = int(parent.stdout.readline())
    assert process_tree.lives(worker)
    parent.kill()
    parent.communicate()
    watched.until(lambda: not process_tree.lives(worker))


def test_the_command_itself_does_not_end_with_its_shell():
    found = ctypes.c_int()
    copies.end_with_parent()
    ctypes.CDLL(None).prctl(2, ctypes.byref(found))  # PR_GET_PDEATHSIG
    assert found.value == 0
