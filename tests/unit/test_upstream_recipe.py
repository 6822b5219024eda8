"""The recipe that is offered to verl sets what ours sets, by names that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs" / "upstream" / "verl-recipe" / "exgrpo"


def settings(script: Path) -> dict[str, str]:
    return dict(re.findall(r"([\w.]+)=\"?([\w.$\{\}:/-]+)", script.read_text().partition("\nexec")[2]))


def test_it_agrees_with_our_script_and_pins_the_verl_that_is_installed():
    ours, recipe = (
        settings(path) for path in (ROOT / "exp_scripts" / "run_exgrpo.sh", RECIPE / "run_exgrpo_qwen2.5_math_7b.sh")
    )
    named = [key for key in recipe if not recipe[key].startswith("$")]
    assert len(named) > 15 and {key: ours.get(key) for key in named} == {key: recipe[key] for key in named}
    (version,) = re.findall(r"VERL_VERSION=(.*)", (RECIPE / "REQUIRED_VERL.txt").read_text())
    assert f"verl=={version}\n" in (ROOT / "requirements" / "cpu.txt").read_text()


def test_the_baseline_is_that_script_without_replay():
    assert 'run_exgrpo_qwen2.5_math_7b.sh" trainer.experience=False' in (RECIPE / "run_grpo_baseline.sh").read_text()
