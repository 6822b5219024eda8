"""Who may import whom, and who may use which framework: read from the source of the package, file
by file.
"""

import re
import sys
from pathlib import Path

import pytest
from source_code import (
    PACKAGE,
    ROOT,
    defined,
    imports,
    is_private,
    overrides,
    private_uses,
    shown,
    top,
    tree,
)

# Room or module at the package's root -> what it may import. Only rooms above it in this table: so
# there is no circle.
# Not here: exgrpo/__init__.py, the front door, which loads any of them at the first use of a name.
ARROWS = {
    "config": "",
    "console": "",
    "refusal": "",
    "overrides": "",
    "open_table": "refusal",
    "verl_contract": "",
    "gold_answers": "",
    "prompts": "",
    "math_verify_worker": "",
    "full_grader": "math_verify_worker",
    "provenance": "full_grader",
    "experience": "refusal open_table",
    "data_files": "experience",
    "saved": "experience",
    "advantages": "refusal",
    "loss_metrics": "",
    "loss_settings": "refusal open_table",
    "replay_losses": "open_table loss_settings",
    "mix_core_alg": "open_table loss_metrics loss_settings replay_losses",
    "buffer": "refusal experience saved advantages loss_settings replay_losses mix_core_alg",
    "replay": "buffer",
    "math_verify_reward": "gold_answers full_grader",
    "on_verl": (
        "config console refusal provenance prompts experience data_files saved advantages "
        "loss_metrics loss_settings replay_losses "
        "mix_core_alg"
    ),
    "preflight": (
        "config overrides refusal open_table verl_contract full_grader prompts experience "
        "data_files saved gold_answers provenance "
        "loss_settings replay_losses math_verify_reward on_verl"
    ),
    "mix_trainer_experience": "provenance console experience loss_metrics on_verl",
    "main_mix_ppo": "console on_verl preflight",
    "verl_plugin": "",
    "commands": "console main_mix_ppo preflight",
}
MAP = (ROOT / "docs" / "map.md").read_text()
BESIDE = sorted((ROOT / "packages").glob("*/src/*/**/*.py"))  # distributions of their own
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
CLUSTER = ("verl", "vllm", "ray", "tensordict", "transfer_queue")  # of verl's stack
DATA_SET = "exgrpo/experience/rl_dataset_with_experience.py"  # the release has it in that room
KNOW_VERL = (
    "exgrpo/on_verl/",
    "exgrpo/mix_trainer_experience.py",
    "exgrpo/main_mix_ppo.py",
    DATA_SET,
)

# The other packages of this distribution: name -> its folder, and which of them it may import.
TOOLS = {
    "exgrpo_tools": ("packages/exgrpo_tools", ""),
    "exgrpo_eval": ("eval", "exgrpo_tools"),
    "exgrpo_data": ("data", "exgrpo_tools exgrpo_eval"),
}
OUTSIDE = ("benchmarks", "exp_scripts", "eval", "data", "packages/exgrpo_tools", "lab")
# Private names of other libraries that are theirs to give; exgrpo's own are never here.
FOREIGN = {
    "_replace": "a documented method of namedtuple",
    "_init_dataloader": "a hook of verl's trainer",
    "_next_train_batch": "a hook of verl's trainer",
    "_compute_metrics": "a hook of verl's trainer",
    "_step_once": "a hook of verl's trainer",
    "_compute_old_log_prob": "a hook of verl's trainer",
    "_add_batch_to_generate": "a hook of verl's trainer",
    "_acquire_server": "called by verl's client before each request",
    "_release_server": "called by verl's client after each request",
}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def own_imports(path: Path) -> list[tuple[str, int]]:
    """(room, line) of what a file imports of the package's other rooms."""
    names = [
        (name.name.split(".")[1], name.line) for name in imports(path) if top(name.name) == "exgrpo"
    ]
    return [(target, line) for target, line in names if target not in (room(path), "__version__")]


def test_the_table_has_every_room():
    assert {room(path) for path in FILES} == set(ARROWS)


def test_rooms_import_only_rooms_above_them_in_the_table():
    rooms = list(ARROWS)
    for name, targets in ARROWS.items():
        assert set(targets.split()) <= set(rooms[: rooms.index(name)]), name


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_imports_only_what_its_room_may(path):
    wrong = [
        f"{shown(path)}:{line} imports {target}"
        for target, line in own_imports(path)
        if target not in ARROWS[room(path)].split()
    ]
    assert not wrong


def test_no_arrow_of_the_table_is_unused():
    used = {(room(path), target) for path in FILES for target, _ in own_imports(path)}
    assert {
        (name, target) for name, targets in ARROWS.items() for target in targets.split()
    } <= used


def test_a_step_is_read_in_the_ten_files_that_the_map_lists():
    section = MAP.split("## A step, in ten files")[1].split("\n## ")[0]
    listed = re.findall(r"^\d+\. `(.+?)`", section, flags=re.MULTILINE)
    assert len(listed) == 10 and [path for path in listed if not (ROOT / path).is_file()] == []


def test_the_map_names_each_file_on_verl_that_the_trainer_opens():
    opened = {
        name.name.split(".")[2]
        for name in imports(PACKAGE / "mix_trainer_experience.py")
        if ".on_verl." in name.name
    }
    assert {name for name in opened if f"{name}.py" not in MAP} == set()


def importers(framework: str) -> set[str]:
    return {
        shown(path) for path in FILES if any(top(name.name) == framework for name in imports(path))
    }


@pytest.mark.parametrize("framework", CLUSTER)
def test_verl_and_its_stack_are_known_to_one_room_the_trainer_and_the_command(framework):
    assert {path for path in importers(framework) if not path.startswith(KNOW_VERL)} == set()


def test_nothing_is_imported_of_the_distributions_beside_it():
    beside = {*TOOLS, "verl_cpu", "math_verify_rules"}
    assert {name: importers(name) for name in beside if importers(name)} == {}


@pytest.mark.parametrize("name", TOOLS)
def test_the_other_packages_import_one_another_one_way(name):
    folder, targets = TOOLS[name]
    others = TOOLS.keys() - {name, *targets.split()}
    files = [path for path in sorted((ROOT / folder).rglob("*.py"))]
    wrong = [
        f"{shown(path)}:{each.line} {each.name}"
        for path in files
        for each in imports(path)
        if top(each.name) in others
    ]
    assert files and not wrong


def test_one_file_knows_the_transfer_queue():
    assert importers("transfer_queue") == {"exgrpo/on_verl/queue.py"}


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if room(path) in ("experience", "open_table", "refusal")],
    ids=shown,
)
def test_memory_and_mathematics_import_numpy_alone(path):
    foreign = (
        {top(name.name) for name in imports(path)} - sys.stdlib_module_names - {"numpy", "exgrpo"}
    )
    assert foreign == ({"verl"} if shown(path) == DATA_SET else set())


@pytest.mark.parametrize("path", BESIDE, ids=shown)
def test_a_package_beside_this_one_does_not_know_it(path):
    assert "exgrpo" not in {top(name.name) for name in imports(path)}


def outside() -> list[Path]:
    files = [path for folder in OUTSIDE for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in files if "tests" not in path.relative_to(ROOT).parts)


def test_no_private_name_is_used_from_outside():
    found = [
        f"{shown(path)}:{name.line} {name.name}"
        for path in outside()
        for name in private_uses(path)
        if name.name not in FOREIGN
    ]
    assert not found


def test_no_private_method_of_the_package_is_overridden_from_outside():
    private = {name for path in FILES for name in defined(tree(path)) if is_private(name)}
    found = [
        f"{shown(path)}:{method.line} {method.name}"
        for path in outside()
        for method in overrides(path, "exgrpo")
        if method.name in private - set(FOREIGN)
    ]
    assert not found


def test_the_allowed_foreign_names_are_all_needed():
    assert {name.name for path in outside() for name in private_uses(path)} >= set(FOREIGN)
