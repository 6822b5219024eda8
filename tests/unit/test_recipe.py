"""docs/recipe.md says of each setting what the script and every recipe print with `--cfg job`.

And what the release has, as read from its source (tests/golden/released_settings.json).
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import watched
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "exp_scripts" / "run_exgrpo.sh"
RECIPES = sorted((ROOT / "exp_scripts" / "recipes").glob("*.sh"))
PAGE = (ROOT / "docs" / "recipe.md").read_text()
RELEASED = json.loads((ROOT / "tests" / "golden" / "released_settings.json").read_text())
FROM_ENVIRONMENT = ("MODEL_PATH", "DATA_DIR", "SAVE_PATH", "N_GPUS", "N_NODES")


def tables(header):
    """The rows of every table of the page with this header, as lists of cells."""
    rows, inside = [], False
    for line in PAGE.splitlines():
        cells = (
            [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        )
        inside = cells == header or (inside and bool(cells))
        if inside and cells != header and not set(cells[0]) <= set("- "):
            rows.append(cells)
    return rows


def value(cell):
    """The value between the backticks of a cell, of the type it has in a configuration."""
    (text,) = re.findall(r"`([^`]*)`", cell)
    return OmegaConf.to_container(OmegaConf.from_dotlist([f"v={text}"]))["v"]


def released_value(cell):
    """The value between the first backticks of a cell; None if it says that the release has
    none.
    """
    if re.match(r"none\b", cell):
        return None
    assert cell.startswith("`"), cell
    return value("`" + cell.split("`")[1] + "`")


def flat(config, prefix=""):
    """key -> value of every leaf; lists are leaves."""
    leaves = {}
    for name, child in config.items():
        leaves |= (
            flat(child, f"{prefix}{name}.")
            if isinstance(child, dict)
            else {f"{prefix}{name}": child}
        )
    return leaves


@pytest.fixture(scope="module")
def configuration(tmp_path_factory):
    """What a script prints with --cfg job, called from an empty folder with nothing of ours in the
    environment.
    """
    folder, printed = tmp_path_factory.mktemp("called_from"), {}
    environment = {name: text for name, text in os.environ.items() if name not in FROM_ENVIRONMENT}
    environment |= {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}

    def of(script):
        if script not in printed:
            command = ["bash", str(script), "--cfg", "job"]
            done = watched.run(command, cwd=folder, env=environment)
            assert done.returncode == 0, done.stderr
            printed[script] = flat(OmegaConf.to_container(OmegaConf.create(done.stdout)))
        return folder, printed[script]

    return of


def same_in_both():
    """The settings in the page's blocks after "The same in both:", as rows of the table that has
    the others.
    """
    blocks = re.findall(r"^The same in both:\n\n```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    settings = (line.partition("=") for block in blocks for line in block.splitlines())
    return [[f"`{key}`", f"`{setting}`", f"`{setting}`", ""] for key, _, setting in settings]


ROWS = tables(["key", "release", "ours", "why they differ"]) + same_in_both()
SETTINGS = {value(row[0]): value(row[2]) for row in ROWS}
OF_RECIPES = [
    (value(recipe), key, value(f"`{setting}`"))
    for recipe, settings in tables(["recipe", "settings"])
    for key, _, setting in (each.partition("=") for each in re.findall("`([^`]+)`", settings))
]


def test_the_page_has_what_the_script_prints(configuration):
    _, printed = configuration(SCRIPT)
    assert {key: printed.get(key, "no such key") for key in SETTINGS} == SETTINGS


def test_every_setting_of_the_script_is_on_the_page():
    given = set(
        re.findall(r"^    '?([a-z_]+(?:\.[a-zA-Z0-9_]+)+)=", SCRIPT.read_text(), re.MULTILINE)
    )
    assert len(given) > 40 and given <= set(SETTINGS)


def test_no_setting_stands_twice_on_the_page():
    rows = [value(row[0]) for row in ROWS]
    assert len(rows) == len(set(rows)) > 70


def test_the_page_has_what_the_release_sets():
    known = {key: fact["value"] for key, fact in RELEASED["settings"].items()}
    assert {value(key): released_value(release) for key, release, _, _ in ROWS} == known


def test_each_value_of_the_release_says_where_it_was_read():
    assert re.fullmatch("01f4ae0[0-9a-f]{33}", RELEASED["commit"])
    for key, fact in RELEASED["settings"].items():
        read = (
            set(fact) == {"value", "file", "line"}
            and fact["file"].startswith("ExGRPO/")
            and fact["line"] > 0
        )
        assert read or fact == {"value": None}, key


def test_where_the_two_differ_the_page_says_why():
    silent = [
        key
        for key, release, ours, why in ROWS
        if released_value(release) != value(ours) and not why
    ]
    assert not silent


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_differs_from_the_script_in_what_the_page_says_and_in_nothing_else(
    configuration, recipe
):
    folder, printed = configuration(recipe)
    said = {key: setting for name, key, setting in OF_RECIPES if name == recipe.stem}
    if said["actor_rollout_ref.model.path"].startswith("models/"):
        said["actor_rollout_ref.model.path"] = f"{folder}/{said['actor_rollout_ref.model.path']}"
    said["trainer.experiment_name"] = f"exgrpo_{recipe.stem}"
    _, common = configuration(SCRIPT)
    assert {
        key: setting for key, setting in printed.items() if common.get(key) != setting
    } == settle(said, printed)


def settle(said, printed):
    """What the page says, with the keys that verl's configuration copies model path and name of the
    run to.
    """
    copied = (said["actor_rollout_ref.model.path"], said["trainer.experiment_name"])
    return said | {key: setting for key, setting in printed.items() if setting in copied}


def test_each_recipe_is_on_the_page():
    assert {name for name, _, _ in OF_RECIPES} == {recipe.stem for recipe in RECIPES} and len(
        RECIPES
    ) == 7
