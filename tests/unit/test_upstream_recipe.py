"""The recipe that is offered to verl sets what ours sets, by names that exist."""

import re
import shlex
from pathlib import Path

from composed import job
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs" / "upstream" / "verl-recipe" / "exgrpo"
NAMES = {"trainer.logger", "trainer.project_name", "trainer.experiment_name"}


def composed(script: Path) -> dict[str, str]:
    """key -> value of the configuration that a script's overrides make; what the environment gives
    is empty.
    """
    command = script.read_text().partition("\nexec")[2].replace("\\\n", " ").splitlines()[0]
    words = [re.sub(r"\$(\(quoted \$)?\{?[A-Z].*", "", word) for word in shlex.split(command)[1:]]
    config = OmegaConf.to_container(
        job(*[word for word in words if re.match(r"\w+\.[\w.]+=.", word)])
    )
    leaves, nodes = {}, [("", config)]
    while nodes:
        prefix, node = nodes.pop()
        for key, value in node.items():
            if isinstance(value, dict):
                nodes.append((f"{prefix}{key}.", value))
            else:
                leaves[prefix + key] = value
    return leaves


def test_it_makes_the_configuration_of_our_script_and_pins_the_verl_that_is_installed():
    ours, recipe = (
        composed(path)
        for path in (
            ROOT / "exp_scripts" / "run_exgrpo.sh",
            RECIPE / "run_exgrpo_qwen2.5_math_7b.sh",
        )
    )
    assert {key for key in ours | recipe if ours.get(key) != recipe.get(key)} == NAMES
    (version,) = re.findall(r"VERL_VERSION=(.*)", (RECIPE / "REQUIRED_VERL.txt").read_text())
    assert f"verl=={version}\n" in (ROOT / "requirements" / "cpu.txt").read_text()


def test_the_baseline_is_that_script_without_replay():
    assert (
        'run_exgrpo_qwen2.5_math_7b.sh" trainer.experience=False'
        in (RECIPE / "run_grpo_baseline.sh").read_text()
    )
