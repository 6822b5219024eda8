"""The names of verl 0.9.1 that we override, call or read: an upgrade that changes one fails here, not on a cluster.

The names are in verl_names.py. What rows and the loss look like is in test_verl_rows.py and test_verl_actor.py, the
configuration's keys in test_verl_keys.py. What verl-cpu uses of verl is in the same table.
"""

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest
from source_code import PACKAGE, ROOT, defined, dotted, imports, shown, top, tree
from verl_names import ATTRIBUTES, BY_SOURCE, CLASSES, FUNCTIONS

LIBRARIES = ("verl", "transfer_queue", "vllm")
OURS = [*sorted(PACKAGE.rglob("*.py")), *sorted(ROOT.glob("packages/verl-cpu/src/**/*.py"))]
FILES = [path for path in OURS if any(top(each.name) in LIBRARIES for each in imports(path))]
MEMBERS = [(name, member) for name, members in CLASSES.items() for member in members]


def load(name):
    """What `module:name` stands for."""
    module, _, attribute = name.partition(":")
    assert hasattr(importlib.import_module(module), attribute), f"{name} is gone"
    return getattr(importlib.import_module(module), attribute)


def parameters(function):
    return " ".join(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_parameters(name):
    assert parameters(load(name)) == FUNCTIONS[name]


@pytest.mark.parametrize(("name", "member"), MEMBERS)
def test_methods_keep_their_parameters(name, member):
    assert hasattr(load(name), member), f"{name} has no {member}"
    assert parameters(getattr(load(name), member)) == CLASSES[name][member]


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_where_they_were(name):
    assert load(name)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_instances_still_get_the_attributes_we_use(name):
    sources = "".join(inspect.getsource(cls) for cls in load(name).__mro__[:-1] if top(cls.__module__) == "verl")
    for attribute in ATTRIBUTES[name].split():
        assert (
            f"self.{attribute} = " in sources or f"self.{attribute}: " in sources or f"self.{attribute}, " in sources
        ), f"no method of {name} sets {attribute}"


@pytest.mark.parametrize("name", BY_SOURCE)
def test_functions_that_are_replaced_on_a_cpu_keep_their_parameters(name):
    module, _, function = name.partition(":")
    (found,) = [each for each in tree(source_of(module)).body if getattr(each, "name", None) == function]
    if isinstance(found, ast.ClassDef):
        (found,) = [each for each in found.body if getattr(each, "name", None) == "__init__"]
    assert " ".join(argument.arg for argument in found.args.args) == BY_SOURCE[name]


# -- nothing is used that is not pinned --------------------------------------------------------------------------------


def source_of(module):
    """The file of a module, by its place alone: some import only beside a GPU or vLLM."""
    first, *rest = module.split(".")
    root = Path(importlib.util.find_spec(first).origin).parent
    file = root.joinpath(*rest)
    return file / "__init__.py" if file.is_dir() else file.with_suffix(".py")


def used(path):
    """`module:name` of everything a file takes from the libraries, by `from` or as an attribute of a module."""
    modules = {}  # as the file calls them
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names if top(each.name) in LIBRARIES}
        elif isinstance(node, ast.ImportFrom) and top(node.module) in LIBRARIES:
            for each in node.names:
                if source_of(f"{node.module}.{each.name}").is_file():
                    modules[each.asname or each.name] = f"{node.module}.{each.name}"
                else:
                    yield f"{node.module}:{each.name}"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and dotted(node.value) in modules:
            yield f"{modules[dotted(node.value)]}:{node.attr}"


PINNED = {*FUNCTIONS, *CLASSES, *BY_SOURCE}
OF_PYTHON = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:shared_memory"  # multiprocessing's


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_every_name_that_is_used_is_pinned(path):
    assert set(used(path)) - {OF_PYTHON} <= PINNED


def test_every_pinned_name_is_used():
    assert {name for path in FILES for name in used(path)} >= PINNED


def our_classes():
    """(class statement, `module:name` of verl's class that it extends) of all of ours that do."""
    for path in FILES:
        homes = {each.name.rpartition(".")[2]: ":".join(each.name.rsplit(".", 1)) for each in imports(path)}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                bases = [homes[name] for base in node.bases if (name := dotted(base)) in homes]
                yield from ((node, base) for base in bases if base in CLASSES)


@pytest.mark.parametrize(("node", "base"), our_classes(), ids=lambda each: getattr(each, "name", None))
def test_every_method_and_attribute_of_verls_that_our_classes_use_is_pinned(node, base):
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    overridden = {name for name in methods if hasattr(load(base), name)}
    asked = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and dotted(each.value) == "self" and each.attr not in methods
    }
    pinned = {*CLASSES[base], *ATTRIBUTES.get(base, "").split()}
    assert (overridden | asked) - pinned <= defined(node) - overridden


def test_our_trainers_register_and_override_what_is_pinned():
    from verl.trainer.ppo.v1 import get_trainer_cls

    from exgrpo import mix_trainer_experience as ours
    from exgrpo.preflight.modes import TRAINERS

    modes = {get_trainer_cls(name).verl_mode: get_trainer_cls(name) for name in TRAINERS.values()}
    assert set(modes) == set(TRAINERS) - {"exgrpo"}
    base = load("verl.trainer.ppo.v1.trainer_base:PPOTrainer")
    pinned = set(CLASSES["verl.trainer.ppo.v1.trainer_base:PPOTrainer"])
    classes = [each for each in ours.ExperienceMixin.__mro__ if each.__module__.startswith("exgrpo")]
    overridden = {name for each in classes for name in vars(each) if hasattr(base, name)}
    assert {name for name in overridden if callable(getattr(base, name)) and name[:2] != "__"} == pinned - {
        "_fetch_one_gen_batch"
    }
    for mode, trainer in modes.items():
        assert get_trainer_cls(mode) in trainer.__mro__
        for name in pinned:  # ours come first, and reach verl's of that mode by super()
            assert getattr(trainer, name) is getattr(ours.ExperienceMixin, name)


def test_the_class_under_the_task_runner_can_be_reached():
    runner = load("verl.trainer.main_ppo:TaskRunnerV1").__ray_metadata__.modified_class
    assert list(inspect.signature(runner.run).parameters)[:2] == ["self", "config"]
    source = inspect.getsource(importlib.import_module("verl.trainer.main_ppo"))
    assert "tq.init(config.transfer_queue)" in source, "verl's runner attaches to another queue than queue.start's"
