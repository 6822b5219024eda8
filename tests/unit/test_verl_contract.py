"""The names of verl that we override, call or read: an upgrade that changes one fails here, not on
a cluster.

The names are in exgrpo/verl_names.toml, and those of verl-cpu in its tests. What rows and the loss
look like is in test_verl_rows.py and test_verl_actor.py, the configuration's keys in
test_verl_keys.py.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_code import PACKAGE, ROOT, defined, dotted, imports, top, tree

from exgrpo import verl_contract
from exgrpo.verl_contract import Source, missing, read_names

LIBRARIES = ("verl", "transfer_queue", "vllm")
OURS = {
    name: [
        each
        for each in sorted(folder.rglob("*.py"))
        if any(top(one.name) in LIBRARIES for one in imports(each))
    ]
    for name, folder in (("exgrpo", PACKAGE), ("verl_cpu", ROOT / "packages" / "verl-cpu" / "src"))
}
NAMES = {
    "exgrpo": read_names(),
    "verl_cpu": read_names(ROOT / "packages" / "verl-cpu" / "tests" / "verl_names.toml"),
}
ALL = NAMES["exgrpo"] | NAMES["verl_cpu"]
CLASSES = {
    name for name, entry in ALL.items() if entry.keys() & {"calls", "overrides", "attributes"}
}


def load(name):
    """What `module:name` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("package", NAMES)
def test_the_installed_verl_has_every_name_with_its_parameters(package):
    assert missing(Source(), NAMES[package]) == []


# -- the check itself, on a small verl -------------------------------------------------------------

TRAINER = """
from .base import *
try:
    from verl.tables import TABLE as NAMES
except ImportError:
    NAMES = None

class Trainer(Base):
    async def step(self, batch, *, scale, seed=0): ...

def start(config, runner, tag=None): ...
"""
BASE = """
class Base:
    def __init__(self):
        self.config, self.count = None, 0

    def save(self, folder): ...
"""
ENTRIES = {
    "verl.v1:Trainer": {
        "for": "the order of a step",
        "overrides": {"save": "folder"},
        "calls": {"step": "batch scale"},
        "attributes": "config count",
    },
    "verl.v1:start": {"for": "the command", "takes": "config runner"},
    "verl.v1:NAMES": {"for": "names"},
}


@pytest.fixture
def small(tmp_path):
    """A tree with a verl of a few files, and how one of them is changed."""
    files = {
        "v1/__init__.py": TRAINER,
        "v1/base.py": BASE,
        "tables.py": "TABLE: dict = {}\n",
        "version/version": "0.10.1\n",
    }
    for name, text in files.items():
        (tmp_path / "verl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "verl" / name).write_text(text)

    def change(name, old, new):
        file = tmp_path / "verl" / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return tmp_path, change


def test_names_are_found_behind_imports_and_in_bases(small):
    source = Source(small[0])
    assert source.version == "0.10.1" and missing(source, ENTRIES) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        (
            "v1/base.py",
            "def save",
            "def keep",
            "verl.v1:Trainer.save is gone, which is for the order of a step",
        ),
        (
            "v1/base.py",
            "folder",
            "folder, step=0",
            "Trainer.save takes (self, folder, step=0), not (folder)",
        ),
        (
            "v1/__init__.py",
            "scale,",
            "",
            "Trainer.step takes (self, batch, *, seed=0), not (batch scale)",
        ),
        (
            "v1/__init__.py",
            "seed=0",
            "seed",
            "Trainer.step takes (self, batch, *, scale, seed), not",
        ),
        (
            "v1/__init__.py",
            "tag=None",
            "tag",
            "start takes (config, runner, tag), not (config runner)",
        ),
        (
            "v1/__init__.py",
            "def start",
            "def begin",
            "verl.v1:start is gone, which is for the command",
        ),
        (
            "v1/base.py",
            "self.count = None",
            "self.number = None",
            "verl.v1:Trainer.count is assigned nowhere",
        ),
        ("tables.py", "TABLE", "TABLES", "verl.v1:NAMES is gone, which is for names"),
    ],
)
def test_what_is_missing_is_named_with_what_it_is_for(small, file, old, new, line):
    small[1](file, old, new)
    (said,) = missing(Source(small[0]), ENTRIES)
    assert line in said


def test_another_parameter_with_a_default_is_no_harm_where_a_function_is_called(small):
    small[1]("v1/__init__.py", "tag=None", "tag=None, *, more=1")
    assert missing(Source(small[0]), ENTRIES) == []


def test_an_untested_version_is_one_warning_or_refused_and_a_missing_name_is_refused(
    small, caplog, monkeypatch
):
    monkeypatch.setattr(verl_contract, "read_names", lambda: ENTRIES)
    verl_contract.verify(small[0])
    (tested,) = verl_contract.TESTED
    assert caplog.messages == [f"exgrpo: verl 0.10.1 is untested ({tested} is tested)"]
    monkeypatch.setenv("EXGRPO_STRICT_VERL", "1")
    with pytest.raises(
        ValueError, match=rf"^verl 0.10.1: must be {tested} with EXGRPO_STRICT_VERL=1$"
    ):
        verl_contract.verify(small[0])
    small[1]("v1/base.py", "def save", "def keep")
    verl_contract.look.cache_clear()
    with pytest.raises(
        ValueError,
        match=r"^verl 0.10.1: verl.v1:Trainer.save is gone, which is for the order of a step;",
    ):
        verl_contract.verify(small[0])


def test_the_tested_version_is_the_pinned_one_and_silent(caplog):
    for lock in ("requirements.txt", "requirements/cpu.txt", "requirements/gpu-versions.txt"):
        pins = re.findall(r"^verl==(.+)$", (ROOT / lock).read_text(), re.MULTILINE)
        assert pins == list(verl_contract.TESTED), lock
    verl_contract.verify()
    assert bool(caplog.messages) == (verl_contract.look()[0] not in verl_contract.TESTED)


def test_the_command_imports_neither_torch_nor_verl(small):
    code = (
        "import runpy, sys\ntry:\n    runpy.run_module('exgrpo.verl_contract', "
        "run_name='__main__')\n"
    )
    code += "finally:\n    print(sorted({'torch', 'verl', 'ray', 'numpy'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"verl {verl_contract.look()[0]}: {len(read_names())} names, 0 missing",
        "[]",
    ], done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "exgrpo.verl_contract", small[0]], capture_output=True, text=True
    )
    assert (
        done.returncode == 1
        and "verl.trainer.main_ppo:run_ppo is gone, which is for the training" in done.stdout
    )


# -- nothing is used that is not pinned ------------------------------------------------------------


def source_of(module):
    """The file of a module, by its place alone: some import only beside a GPU or vLLM."""
    first, *rest = module.split(".")
    root = Path(importlib.util.find_spec(first).origin).parent
    file = root.joinpath(*rest)
    return file / "__init__.py" if file.is_dir() else file.with_suffix(".py")


def used(path):
    """`module:name` of everything a file takes from the libraries, by `from` or as an attribute of
    a module.
    """
    modules = {}  # as the file calls them
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            modules |= {
                each.asname or each.name: each.name
                for each in node.names
                if top(each.name) in LIBRARIES
            }
        elif isinstance(node, ast.ImportFrom) and top(node.module) in LIBRARIES:
            for each in node.names:
                if source_of(f"{node.module}.{each.name}").is_file():
                    modules[each.asname or each.name] = f"{node.module}.{each.name}"
                else:
                    yield f"{node.module}:{each.name}"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and dotted(node.value) in modules:
            yield f"{modules[dotted(node.value)]}:{node.attr}"


OF_PYTHON = (
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:shared_memory"  # multiprocessing's
)


def of_package(package):
    return {name for path in OURS[package] for name in used(path)} - {OF_PYTHON}


@pytest.mark.parametrize("package", NAMES)
def test_every_name_that_is_used_is_pinned_and_every_pinned_name_is_used(package):
    assert of_package(package) == set(NAMES[package])


def our_classes():
    """(class statement, `module:name` of verl's class that it extends) of all of ours that do."""
    for path in [*OURS["exgrpo"], *OURS["verl_cpu"]]:
        homes = {
            each.name.rpartition(".")[2]: ":".join(each.name.rsplit(".", 1))
            for each in imports(path)
        }
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                bases = [homes[name] for base in node.bases if (name := dotted(base)) in homes]
                yield from ((node, base) for base in bases if base in CLASSES)


@pytest.mark.parametrize(
    ("node", "base"), our_classes(), ids=lambda each: getattr(each, "name", None)
)
def test_every_method_and_attribute_of_verls_that_our_classes_use_is_pinned(node, base):
    methods = {
        each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    overridden = {name for name in methods if hasattr(load(base), name)} - {"__init__"}
    asked = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and dotted(each.value) == "self"
        and each.attr not in methods
    }
    entry = ALL[base]
    pinned = {
        *entry.get("calls", ()),
        *entry.get("overrides", ()),
        *entry.get("attributes", "").split(),
    }
    assert overridden <= {*entry.get("overrides", ())}
    assert (overridden | asked) - pinned <= defined(node) - overridden


def test_our_trainers_register_and_override_what_is_pinned():
    from verl.trainer.ppo.v1 import get_trainer_cls

    from exgrpo import mix_trainer_experience as ours
    from exgrpo.preflight.modes import TRAINERS

    modes = {get_trainer_cls(name).verl_mode: get_trainer_cls(name) for name in TRAINERS.values()}
    assert set(modes) == set(TRAINERS) - {"exgrpo"}
    base = load("verl.trainer.ppo.v1.trainer_base:PPOTrainer")
    pinned = set(ALL["verl.trainer.ppo.v1.trainer_base:PPOTrainer"]["overrides"])
    classes = {
        each
        for trainer in modes.values()
        for each in trainer.__mro__
        if each.__module__.startswith("exgrpo")
    }
    overridden = {name for each in classes for name in vars(each) if hasattr(base, name)}
    assert {
        name for name in overridden if callable(getattr(base, name)) and name[:2] != "__"
    } == pinned
    for mode, trainer in modes.items():
        assert get_trainer_cls(mode) in trainer.__mro__
        # ours come first, and reach verl's of that mode by super()
        ranks = [each in classes for each in trainer.__mro__]
        assert ours.ExperienceMixin in trainer.__mro__ and ranks == sorted(ranks, reverse=True)


def test_the_class_under_the_task_runner_can_be_reached():
    runner = load("verl.trainer.main_ppo:TaskRunnerV1").__ray_metadata__.modified_class
    assert list(inspect.signature(runner.run).parameters)[:2] == ["self", "config"]
    source = inspect.getsource(importlib.import_module("verl.trainer.main_ppo"))
    assert "tq.init(config.transfer_queue)" in source, (
        "verl's runner attaches to another queue than queue.start's"
    )
