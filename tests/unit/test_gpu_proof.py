"""benchmarks/gpu_proof.py: what fails leaves the rest standing, and its page says so."""

import json
import sys
from pathlib import Path

import gpu_proof
import proof_page
import pytest

ROOT = Path(__file__).parents[2]


def fails(given):
    raise RuntimeError("the engine did not start")


def absent(given):
    raise gpu_proof.LeftOut("the package x is not installed")


STAGES = {
    "facts": lambda given: {"gpu": "NVIDIA H100", "overrides": "none"},
    "resume": fails,
    "step": lambda given: {"figures": {"replayed / on-policy": [1.02, 0.9, 1.25]}, "training": {"correlation": 0.999}},
    "smollm2": absent,
    "evaluation": lambda given: {"figures": {}, "alike": True},
}


@pytest.fixture
def prove(monkeypatch, tmp_path):
    """Run it with the stages above; the exit code and what was written."""

    def run(*arguments):
        monkeypatch.setattr(gpu_proof, "STAGES", STAGES)
        monkeypatch.setattr(gpu_proof, "gpu_is_there", lambda: True)
        monkeypatch.setattr(sys, "argv", ["gpu_proof.py", "--output", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as ended:
            gpu_proof.main()
        return ended.value.code, json.loads((tmp_path / "proof.json").read_text()), (tmp_path / "proof.md").read_text()

    return run


def test_a_failed_stage_leaves_the_others_standing(prove):
    code, found, page = prove()
    assert code == 1
    assert list(found) == list(STAGES)
    assert found["resume"]["failed"] == "RuntimeError: the engine did not start"
    assert found["smollm2"]["left out"] == "the package x is not installed"
    assert found["step"]["figures"]["replayed / on-policy"] == [1.02, 0.9, 1.25]
    assert "**Failed** after" in page and "the engine did not start" in page
    assert "Left out: the package x is not installed" in page


def test_what_is_left_out_is_no_failure_and_a_second_call_adds_to_the_first(prove):
    assert prove("--stages", "facts")[0] == 0
    code, found, page = prove("--stages", "smollm2", "step")
    assert code == 0
    assert set(found) == {"facts", "smollm2", "step"}
    assert page.startswith("# exgrpo on NVIDIA H100\n")


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
