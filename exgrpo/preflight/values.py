"""Values that verl takes and fails on minutes later, or silently ignores: all of a command at once.

``values.yaml`` says what the keys must be that a run is set up with, alone or with other keys. Of
every other key of verl's only the kind is asked, that of its default in verl's own reference file:
verl takes the word ``no`` for true.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from exgrpo.data_files import is_local
from exgrpo.experience.config import ExperienceConfig, TrainerKeys
from exgrpo.loss_settings import LossSettings
from exgrpo.refusal import shown

TABLE = Path(__file__).with_name("values.yaml")
_LOSS = "actor_rollout_ref.actor.policy_loss"
# of other names verl knows none that is a package's
_PACKAGES = ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio", "rl_insight")
_TOGETHER = {"when", "replay"}  # a rule with either holds with other values alone
_GENERIC = {
    bool: {"kind": "boolean", "must": "true or false"},
    int: {"kind": "number", "must": "a finite number"},
    float: {"kind": "number", "must": "a finite number"},
    str: {"kind": "text or list", "must": "text"},
    dict: {"kind": "group", "must": "a group of keys"},
}


def verify(config: DictConfig) -> None:
    """Raise ValueError with a line for each wrong value.

    A text that Hydra would read as a number or a truth value, such as ``"4"``, becomes it in place.
    """
    wrong = [line for key, rule in _of_all_keys().items() if (line := _wrong(config, key, rule))]
    if not any(line.endswith(_GENERIC[dict]["must"]) for line in wrong):
        wrong += [*_wrong_of_ours(config), *_loggers(config.trainer.logger)]
    if wrong:
        raise ValueError("\n".join(wrong))


def verify_together(config: DictConfig) -> None:
    """The same for what a value must be with replay, or with the values of other keys."""
    wrong, replay = [], config.trainer.experience
    for key, rule in table():
        others = {other: OmegaConf.select(config, other) for other in rule.get("when", {})}
        holds = all(value in _listed(rule["when"][other]) for other, value in others.items())
        if _TOGETHER & rule.keys() and holds and (replay or "replay" not in rule):
            together = " and ".join(f"{other}={shown(value)}" for other, value in others.items())
            wrong.append(_wrong(config, key, rule, f" with {together}" if together else ""))
    if any(wrong):
        raise ValueError("\n".join(filter(None, wrong)))


@functools.cache
def table() -> list[tuple[str, dict[str, Any]]]:
    """(key, what its value must be), for a key several times if that follows from other keys."""
    rules = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    for rule in rules:
        if "listed" in rule:
            rule["choices"] = named_by(rule["listed"])
            rule.setdefault("must", f"one of {', '.join(rule['choices'])}")
    # a list that is not there leaves the check to the library
    return [(key, rule) for rule in rules for key in rule["keys"] if rule.get("choices", True)]


def alone() -> dict[str, dict[str, Any]]:
    """Key -> what its value must be whatever the others are."""
    return {key: rule for key, rule in table() if not _TOGETHER & rule.keys()}


def defaults() -> dict[str, Any]:
    """Key -> verl's default, as its reference file has it: interpolations are texts with ``${``."""
    file = _installed("verl") / "trainer/config/_generated_ppo_trainer.yaml"
    return dict(entries(yaml.safe_load(file.read_text(encoding="utf-8"))))


@functools.cache
def named_by(listed: str) -> list[str]:
    """The names in a library's own list, read without importing it; empty if there is none.

    Args:
        listed: package/file.py:variable.
    """
    path, _, variable = listed.partition(":")
    package, _, path = path.partition("/")
    file = _installed(package) / path
    tree = ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
    lists = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable
    )
    items = (item for each in lists for item in ast.walk(each) if isinstance(item, ast.Constant))
    return [item.value for item in items if isinstance(item.value, str)]


def _installed(package: str) -> Path:
    """The folder of a package, or one that is not there."""
    found = find_spec(package)
    folders = found.submodule_search_locations if found else None
    return Path(folders[0] if folders else f"{package} is not installed")


def entries(node: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key -> value of nested dictionaries, those of the groups too."""
    for name, value in node.items():
        yield f"{before}{name}", value
        if isinstance(value, dict):
            yield from entries(value, f"{before}{name}.")


@functools.cache
def _of_all_keys() -> dict[str, dict[str, Any]]:
    """Key -> what its value must be, by the table or by the kind of verl's default."""
    rules = alone()
    for key, default in defaults().items():
        computed = isinstance(default, str) and "${" in default
        generic = None if computed or default == "???" else _GENERIC.get(type(default))
        if rule := rules.get(key, generic and generic | {"optional": type(default) is not dict}):
            rules[key] = {"computed": computed} | rule
    return rules


def _wrong(config: DictConfig, key: str, rule: Mapping[str, Any], together: str = "") -> str | None:
    """The line about the value of a key, if it is not what it must be."""
    group, _, name = key.rpartition(".")
    node = OmegaConf.select(config, group) if group else config
    if not isinstance(node, DictConfig):
        return None  # said of the group
    must = rule["must"] if "must" in rule else shown(rule["choices"][0])
    try:
        if OmegaConf.is_missing(node, name):
            return f"{key}=???: must be {must}"
        if name not in node:
            return None  # a key that this verl or stack does not have
        if rule.get("computed") and OmegaConf.is_interpolation(node, name):
            return None  # said of the key that it takes its value from
        value = node[name]
    except OmegaConfBaseException as error:
        return f"{key}: must be {must}; {str(error).splitlines()[0]}"
    typed = _as_hydra_reads(value) if rule["kind"] in _NOT_TEXT else value
    if typed is not value:
        node[name] = typed
    if (typed is None and rule.get("optional")) or _KINDS[rule["kind"]](typed, rule):
        return None
    why = f"; {rule['why']}" if "why" in rule else ""
    return f"{key}={shown(value)}: must be {must}{together}{why}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _as_hydra_reads(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _is_number(value: Any, rule: Mapping[str, Any]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    least, most = rule.get("least", -math.inf), rule.get("most", math.inf)
    above, below = rule.get("above", -math.inf), rule.get("below", math.inf)
    within = least <= value <= most and above < value < below
    return bool(within and value not in rule.get("than", ()))


def _is_list(value: Any, rule: Mapping[str, Any]) -> bool:
    if not isinstance(value, ListConfig) or len(value) != rule.get("length", len(value)):
        return False
    right = rule.get("of")
    items = list(value)
    all_right = right is None or all(_KINDS[right["kind"]](item, right) for item in items)
    return all_right and all(item in items for item in rule.get("with", []))


def _is_file(value: Any, rule: Mapping[str, Any]) -> bool:
    """On this disk, as verl looks for it; a remote one is believed."""
    if not isinstance(value, str) or not value.strip():
        return False
    if value.startswith("pkg://"):
        return _is_module(value.removeprefix("pkg://").replace("/", "."), rule)
    path, verl = value.removeprefix("file://"), _installed("verl")
    folders = (Path.cwd(), verl.parent, verl)
    return not is_local(path) or any((each / Path(path).expanduser()).is_file() for each in folders)


def _is_module(value: Any, rule: Mapping[str, Any]) -> bool:
    """Found without importing its package, torch say."""
    if not isinstance(value, str) or not value.strip("."):
        return False
    package, *inner = value.split(".")
    found = find_spec(package) if package else None
    for name in inner:
        found = found and PathFinder.find_spec(name, found.submodule_search_locations or [])
    return found is not None


_NOT_TEXT = ("boolean", "integer", "number")
_KINDS: dict[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "boolean": lambda value, rule: (
        value in rule.get("choices", [True, False]) and isinstance(value, bool)
    ),
    "integer": lambda value, rule: isinstance(value, int) and _is_number(value, rule),
    "number": _is_number,
    "text": lambda value, rule: isinstance(value, str) and bool(value.strip()),
    "text or list": lambda value, rule: isinstance(value, str | ListConfig),
    "choice": lambda value, rule: value in rule["choices"],
    "other": lambda value, rule: value not in rule["than"],
    "list": _is_list,
    "file": _is_file,
    "module": _is_module,
    "group": lambda value, rule: isinstance(value, DictConfig),
}


def _wrong_of_ours(config: DictConfig) -> Iterator[str]:
    """The lines for exgrpo's own keys, by their classes' checks; right values get their type."""
    trainer = config.trainer

    def put(field: Field[Any], value: Any) -> None:  # the trainer and the table read it as it is
        trainer[field.name] = field.metadata["check"](f"trainer.{field.name}", value)

    for field in (*fields(ExperienceConfig), *fields(TrainerKeys)):
        if field.name in trainer:
            yield from _said(put, field, trainer[field.name])
    losses = OmegaConf.select(config, _LOSS)
    for field in fields(LossSettings):
        if field.name in losses:
            yield from _said(LossSettings.from_mapping, {field.name: losses[field.name]})


def _said(check: Callable[..., Any], *arguments: Any) -> Iterator[str]:
    try:
        check(*arguments)
    except ValueError as error:
        yield str(error)


def _loggers(value: Any) -> Iterator[str]:
    known = named_by("verl/utils/tracking.py:supported_backend")
    # an empty list is a wrong value itself
    for name in value or [value] if isinstance(value, ListConfig) else [value]:
        if name not in known:
            yield f"trainer.logger={shown(name)}: must be one or more of {', '.join(known)}"
        elif name in _PACKAGES and find_spec(str(name)) is None:
            yield f"trainer.logger={name}: the package {name} is not installed"
