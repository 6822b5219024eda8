"""benchmarks/gpu_proof.py: what fails or has no time leaves the rest standing, and its page says
so.
"""

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import gpu_proof
import proof_page
import proof_runs
import proof_stages
import pytest
import runs
import step
from common import OutOfTime

ROOT = Path(__file__).parents[2]


def fails(options, found, ends):
    found["steps"] = 3
    raise RuntimeError("the engine did not start")


def absent(options, found, ends):
    raise proof_stages.LeftOut("the package x is not installed")


def is_slow(options, found, ends):
    found["figures"] = {"pairs": 2}
    raise OutOfTime("2 of 12 pairs of steps were taken")


def finds(**facts):
    return lambda options, found, ends: found.update(facts)


WORKS = {  # name -> work, wave, turn
    "facts": (finds(gpu="NVIDIA H100", overrides="none"), 1, 0),
    "large": (
        finds(
            figures={"replayed / on-policy": [1.02, 0.9, 1.25]}, training={"log-perplexity": 0.001}
        ),
        1,
        1,
    ),
    "stock": (is_slow, 1, 2),
    "smollm2": (absent, 2, 3),
    "resume": (fails, 2, 4),
    "evaluation": (finds(figures={}, alike=True), 2, 5),
}


@pytest.fixture
def prove(monkeypatch, tmp_path):
    """Run it with the stages above; the exit code and what was written."""

    def run(*arguments, **works):
        stages = {
            name: proof_stages.Stage(works.get(name, work), *when)
            for name, (work, *when) in WORKS.items()
        }
        monkeypatch.setattr(gpu_proof, "STAGES", stages)
        monkeypatch.setattr(gpu_proof, "gpu_is_there", lambda: True)
        monkeypatch.setattr(gpu_proof, "prepared", lambda options, names: None)
        monkeypatch.setattr(sys, "argv", ["gpu_proof.py", "--output", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as ended:
            gpu_proof.main()
        written = [tmp_path / name for name in ("proof.json", "proof.md")]
        found, page = (file.read_text() if file.exists() else "{}" for file in written)
        return ended.value.code, json.loads(found), page

    return run


def test_a_failed_stage_leaves_the_others_standing(prove):
    code, found, page = prove("--at_once")
    assert code == 1
    assert list(found) == list(WORKS)
    assert (
        found["resume"]["failed"] == "RuntimeError: the engine did not start"
        and found["resume"]["steps"] == 3
    )
    assert found["smollm2"]["left out"] == "the package x is not installed"
    assert found["large"]["figures"]["replayed / on-policy"] == [1.02, 0.9, 1.25]
    assert (
        "**Failed** after" in page
        and "the engine did not start" in page
        and "| steps | 3 |" in page
    )
    assert "Left out: the package x is not installed" in page


def test_a_stage_whose_time_is_up_keeps_what_it_has_finished(prove):
    _, found, page = prove()
    assert found["stock"]["figures"] == {"pairs": 2}
    assert "2 of 12 pairs of steps were taken. Up to there:" in page and "| pairs | 2 |" in page


def test_a_call_takes_a_wave_and_the_next_ones_what_is_left(prove):
    begun = []

    def noted(name):
        return lambda options, found, ends: begun.append(name)

    assert set(prove()[1]) == {"facts", "large", "stock"}
    noting = {name: noted(name) for name in WORKS}
    for wanted in ({"stock"}, {"smollm2", "resume", "evaluation"}, set()):
        code, found, _ = prove(**noting)
        assert set(begun) == wanted and code == 0
        begun.clear()
    assert not [name for name in found if {"failed", "unfinished"} & found[name].keys()]


def test_stages_start_together_and_work_one_after_another(prove, tmp_path):
    """Each waits for its turn, as its training's reward does; the first one's end is the second
    one's turn.
    """
    seen = []

    def waiting(name):
        def work(options, found, ends):
            seen.append(f"{name} starts")
            proof_stages.until_its_turn(options, name, ends)
            time.sleep(0.05)
            seen.append(f"{name} ends")

        return work

    prove("--at_once", **{name: waiting(name) for name in WORKS})
    assert {*seen[: len(WORKS)]} == {f"{name} starts" for name in WORKS}
    assert seen[len(WORKS) :] == [f"{name} ends" for name in WORKS]
    seen.clear()
    prove("--one_by_one", "--stages", *WORKS, **{name: waiting(name) for name in WORKS})
    assert seen == [f"{name} {what}" for name in WORKS for what in ("starts", "ends")]


def test_one_by_one_no_stage_begins_in_the_last_seconds(prove, capsys):
    assert prove("--one_by_one", "--minutes", "1", "--spent_s", "55") == (0, {}, "{}")
    assert f"the same command goes on with {', '.join(WORKS)}\n" in capsys.readouterr().out


def test_a_stage_is_told_in_time_that_its_turn_does_not_come(prove):
    code, found, _ = prove(
        "--stages", "large", "--minutes", "1", "--spent_s", "41", large=never_its_turn
    )
    assert code == 0 and found["large"]["unfinished"] == "its turn did not come"


def never_its_turn(options, found, ends):
    proof_stages.until_its_turn(options, "of nobody", ends)


def test_the_page_says_which_parts_vllm_took(tmp_path):
    log = tmp_path / "train.log"
    assert proof_runs.engine(log) == {}
    log.write_text(
        "vllm\nUsing FLASH_ATTN attention backend out of potential backends: "
        "['FLASH_ATTN', 'FLASHINFER'].\n"
    )
    parts = {
        "vLLM's model runner": "V1",
        "vLLM's attention": "FLASH_ATTN",
        "vLLM's sampler": "vLLM's own",
    }
    assert proof_runs.engine(log) == parts
    log.write_text(
        log.read_text() + "Using V2 Model Runner\nUsing FlashInfer for top-p & top-k sampling.\n"
    )
    assert proof_runs.engine(log) == parts | {
        "vLLM's model runner": "V2",
        "vLLM's sampler": "FlashInfer's",
    }
    log.write_text("vllm: Model Runner V2 requires Triton; using the V1 model runner instead.\n")
    assert proof_runs.engine(log)["vLLM's model runner"] == "V1 (Model Runner V2 requires Triton)"


def test_of_an_h200s_steps_it_reads_agreement_and_the_actors_memory():
    logged = runs.steps(ROOT / "benchmarks" / "gpu" / "h200" / "F.jsonl")
    figures = proof_runs.agreement(dict(enumerate(logged)))
    assert len(logged) == 12 and len(figures) == 9
    assert (
        round(figures["actor's peak memory, GiB"], 1)
        == 28.8
        < figures["actor's peak reserved memory, GiB"]
    )
    # its tokenizer had 265 words, its head 151,936: what a correlation of .996 did not show
    assert 5.9 < figures["log-perplexity, vLLM - actor: mean"] < 6.2


def test_accuracies_are_of_any_source_of_questions():
    steps = {0: {"val-core/chain_sum/acc/mean@2": 0.25, "val-aux/x": 1.0}, 1: {"actor/loss": 0.0}}
    assert proof_runs.accuracies(steps) == {0: 0.25}


def test_vllm_still_says_which_parts_it_takes():
    folder = Path(find_spec("vllm").origin).parent
    words = {
        "v1/worker/gpu_worker.py": "Using V2 Model Runner",
        "platforms/cuda.py": "Using %s attention backend out of",
        "v1/sample/ops/topk_topp_sampler.py": "Using FlashInfer for top-p & top-k sampling",
        "config/vllm.py": "; using the V1",
    }
    assert not [file for file, said in words.items() if said not in (folder / file).read_text()]


def test_pairs_of_steps_that_are_finished_count_when_time_is_up(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert step.finished_pairs(file, warmup=1) == []
    file.write_text("".join(json.dumps({"step": n, "data": {"n": n}}) + "\n" for n in range(6)))
    assert [taken["n"] for taken in step.finished_pairs(file, warmup=1)] == [1, 2, 3, 4]


def test_the_page_shows_figures_and_answers(prove):
    page = prove("--at_once")[2]
    assert "| replayed / on-policy | 1.02 (0.9 to 1.25) |" in page
    assert "| log-perplexity | 0.001 |" in page
    assert "| alike | yes |" in page
    assert "too few to compare" not in page and "too few to compare" in proof_page.page({})
    assert "| alike | **no** |" in proof_page.page({"evaluation": {"alike": False, "seconds": 1.0}})


def test_without_a_gpu_nothing_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_proof, "gpu_is_there", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_proof.py", "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        gpu_proof.main()
    assert ended.value.code == 2 and not (tmp_path / "out").exists()
    assert capsys.readouterr().err == "gpu_proof: torch finds no GPU; --cpu proves the CPU stack\n"


def test_smollm2_is_pinned_alike_in_both_files():
    pins = {}
    for name in ("requirements/cpu.txt", "requirements/smollm2.txt"):
        for line in (ROOT / name).read_text().splitlines():
            package, _, version = line.partition("==")
            if version:
                assert pins.setdefault(package, version) == version, package
