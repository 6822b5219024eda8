"""What is said to wrong values, for equal_runs.py: BASE's tables, through each public way in."""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import re
import shutil
import tempfile
from pathlib import Path

import pandas as pd
import torch

from exgrpo import ExperienceConfig, Trajectory, TrajectoryBuffer, mixed_policy_loss
from exgrpo.loss_settings import LossSettings
from exgrpo.main_mix_ppo import verify_for_verl
from exgrpo.preflight.checks import check

LOSS = LossSettings.__dataclass_fields__
OVERRIDE = re.compile(r"[+~]*[a-z_0-9]+([._][a-z_0-9]+)+=(?!.*: )")  # and not the error beside it
ENOUGH = [  # CPUs and GPUs of a cluster
    "+ray_kwargs.ray_init.address=local",
    "ray_kwargs.ray_init.num_cpus=64",
    "+ray_kwargs.ray_init.num_gpus=8",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
]
RIGHT = {"prompt": "q", "rollout": "a", "entropy": 0.3, "reward": 1.0, "is_correct": True}
WRONG = {**RIGHT, "rollout": "b", "reward": 0.0, "is_correct": False}
# a test file with one of these has values for a way in
OF_TESTS = ("composed", "ExperienceConfig", "LossSettings", "TrajectoryBuffer", "Trajectory(")
TENSORS = ("log_prob", "old_log_prob", "advantages", "response_mask")
TENSORS = {name: torch.ones(2, 3) for name in TENSORS} | {"is_replayed": torch.ones(2) > 1}


def record(root, inputs):
    """Way in and row of a table -> the line, or "passes"; the first call writes `inputs`."""
    if not inputs.exists():
        inputs.write_bytes(pickle.dumps(_tables(root)))
    rows, values = pickle.loads(inputs.read_bytes())
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        doors = [_Command(root, Path(folder)), _config, _loss, _trajectory, _buffer, _tensors]
        for row in rows:
            for door in doors:
                if said := _said(door, row, folder):
                    found[f"{getattr(door, '__name__', 'command')} {row!r}"[:300]] = said
        for start in range(0, len(values), 30):  # one configuration has a line for most of them
            some = values[start : start + 30]
            lines = str(_said(doors[0].check, some, folder)).splitlines()
            for key, value in some:
                of_key = next((line for line in lines if line.startswith(f"{key}=")), None)
                of_key = of_key or _said(doors[0].check, [(key, value)], folder)
                found[f"{key}={value!r}"] = of_key
    return found


def _said(door, row, folder):
    """The error's text; "passes"; None if such a row cannot go in there."""
    try:
        return door(row) or "passes"
    except (LookupError, TypeError, AttributeError, StopIteration):
        return None
    except Exception as error:
        return str(error).replace(folder, "FOLDER")


class _Command:
    """All checks of the training command."""

    def __init__(self, root, folder):
        from composed import configuration

        gold = {"data_source": "t", "reward_model": {"ground_truth": "1", "style": "rule"}}
        rows = [gold | {"prompt": [{"role": "user", "content": f"q{i}"}]} for i in range(16)]
        pd.DataFrame(rows).to_parquet(folder / "data.parquet")
        shutil.copytree(root / "exp_scripts" / "quickstart" / "base_model", folder / "model")
        self.configuration = lambda *overrides: configuration(folder, *ENOUGH, *overrides)

    def __call__(self, row):
        """Of a row that has an override, or several."""
        several = [[each] if isinstance(each, str) else each for each in row]
        several = [each for each in several if isinstance(each, list | tuple) and each]
        overrides = next(each for each in several if all(OVERRIDE.match(str(one)) for one in each))
        prefix = "actor_rollout_ref.actor.policy_loss."
        self.check([], *[prefix * (each.split("=")[0] in LOSS) + each for each in overrides])

    def check(self, values, *overrides):
        """Of (key, value) pairs, the values of any type."""
        from omegaconf import OmegaConf

        config = self.configuration(*overrides)
        for key, value in values:
            with contextlib.suppress(Exception):  # its place is gone with another's value
                OmegaConf.update(config, key, value)
        with contextlib.redirect_stdout(io.StringIO()):
            check(config)
            verify_for_verl(config)


def _config(row):
    if not str(row[0]).startswith("exp"):
        raise TypeError
    ExperienceConfig.from_mapping({row[0]: row[1]}, 8)


def _loss(row):
    if isinstance(row[0], dict):
        LossSettings(**row[0])
    elif row[0] in LOSS:
        LossSettings.from_mapping({row[0]: row[1]})
    else:
        raise TypeError


def _trajectory(row):
    Trajectory(**{"tokens": [1, 2], "log_probs": [-0.1, -0.2], "step": 0} | row[0])


def _buffer(row):
    """As a trajectory, as the buffer's settings, or as those of a draw."""
    if "prompt" in row[0]:
        TrajectoryBuffer().add(row[0])
    elif row[0].keys() & {"size", "strategy", "difficulty_range", "entropy_percentile"}:
        buffer = TrajectoryBuffer()
        buffer.add([RIGHT, WRONG])
        buffer.sample(**row[0])
    else:
        TrajectoryBuffer(**row[0])


def _tensors(row):
    mixed_policy_loss(**TENSORS | row[0])


def _tables(root):
    """Plain values of the tables in tests/unit: rows, and (key, value) pairs."""
    rows, values = [], []
    for path in sorted((root / "tests" / "unit").glob("test_*.py")):
        text = path.read_text()
        if "parametrize" not in text or not any(name in text for name in OF_TESTS):
            continue
        module = importlib.import_module(path.stem)
        marks = [getattr(test, "pytestmark", []) for test in vars(module).values()]
        for mark in [each for several in marks for each in several if hasattr(each, "args")]:
            if mark.name == "parametrize":
                one = isinstance(mark.args[0], str) and "," not in mark.args[0]
                rows += [(each,) if one else each for each in mark.args[1]]
        values += getattr(module, "wrong_values", list)()
    rows = [row for row in rows if isinstance(row, tuple) and _is_plain(row)]
    return list({repr(row): row for row in rows if str(root) not in repr(row)}.values()), values


def _is_plain(value):
    """Whether it has no object of ours, whose class may be elsewhere in another checkout."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return _is_plain([*value.keys(), *value.values()])
    return type(value).__module__ in ("builtins", "numpy", "torch") and not callable(value)
