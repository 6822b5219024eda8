"""exgrpo-sizing: its arithmetic against figures that were worked out apart from it, and what it
refuses.
"""

import json
import sys
from pathlib import Path

import pytest

from exgrpo_tools import sizing

ROOT = Path(__file__).parents[2]


def test_7b_on_eight_gpus_of_80_gb_is_as_the_review_worked_it_out():
    run = sizing.Run(sizing.NAMED["7B"], 8, 79.0, 32_768)
    assert run.model.parameters == pytest.approx(7.616e9, rel=1e-3)
    sums = {name: sum(parts.values()) for name, parts in run.memory().items()}
    assert (
        60 < sums["update"] < 64
        and round(sums["generation"]) == 76
        and round(sums["scoring"]) == 25
    )
    assert round(run.disk_gb(), -1) == 580 and round(run.hours()) == 36
    assert "DOES NOT FIT" not in run.table() and "disk: 579 GB" in run.table()


def test_fewer_tokens_at_a_time_make_a_model_fit():
    large = sizing.Run(sizing.NAMED["7B"], 8, 39.5, 32_768)
    assert large.table().count("DOES NOT FIT") == 2
    smaller = sizing.Run(sizing.NAMED["7B"], 8, 39.5, 8192)
    assert "DOES NOT FIT" not in smaller.table().splitlines()[1]


def test_a_folders_parameters_are_those_of_its_weights():
    from safetensors import safe_open

    folder = ROOT / "exp_scripts" / "quickstart" / "base_model"
    with safe_open(folder / "model.safetensors", "np") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    matrices = sum(
        rows * columns for rows, columns in (shape for shape in shapes.values() if len(shape) == 2)
    )
    assert sizing.read(str(folder)).parameters == matrices


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["7b"], "7b: must be 1.5B or 7B, or a folder with config.json"),
        (["7B", "--gpus", "8"], "--gpus 8: must be a number of GPUs x GB of each, such as 8x80"),
        (
            ["7B", "--gpus", "0x80"],
            "--gpus 0x80: must be a number of GPUs x GB of each, such as 8x80",
        ),
        (["7B", "--tokens", "0"], "--tokens 0: must be an integer of at least 1"),
        (["."], "config.json: not a text model's configuration: KeyError('num_hidden_layers')"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(monkeypatch, tmp_path, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps({"model_type": "clip"}))
    monkeypatch.setattr(sys, "argv", ["sizing", *arguments])
    with pytest.raises(SystemExit) as ended:
        sizing.main()
    assert ended.value.code == 2 and capsys.readouterr().err.endswith(f"error: {said}\n")
