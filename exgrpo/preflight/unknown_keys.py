"""The words of a refusal of an unknown key, with the nearest known one. Hydra refuses most of them,
and advises a ``+``; what was added so by a typing error is refused here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from exgrpo.overrides import override
from exgrpo.preflight import released
from exgrpo.preflight.values import defaults, entries, shown

# Hydra's messages begin so
_UNKNOWN = re.compile(r"Could not override '(?P<key>[^']+)'\.")
_THERE = re.compile(r"Could not append to config. An item is already at '(?P<key>[^']+)'\.")
# keys of earlier versions, and what to use now
GONE = {
    "trainer.exp_max_candidates": "every candidate is scored",
    **dict.fromkeys(
        (
            "actor_rollout_ref.actor.policy_loss.off_policy_baseline_shift",
            "actor_rollout_ref.actor.policy_loss.off_policy_m2_bound",
        ),
        "a loss of your own by off_policy_loss=path/file.py:name has its numbers in its file",
    ),
}
_HANDED_ON = "ray_kwargs.ray_init"  # takes any key of ray.init
_ADVICE = re.compile(r"\s*(Config search path:|See https:|To append to your).*", re.DOTALL)


def explain(
    error: HydraException, overrides: Sequence[str], compose: Callable[[list[str]], DictConfig]
) -> list[str]:
    """A line for each override whose key is unknown, and one for any other error of Hydra's.

    Args:
        error: raised for these overrides.
        compose: overrides -> the configuration; raises HydraException.
    """
    if unread := [line for each in overrides if (line := _unreadable(each))]:
        return unread
    found = _UNKNOWN.match(str(error)) or _THERE.match(str(error))
    plus = "+" if found and found.re is _THERE else ""
    unknown = [each for each in overrides if found and _key(each) == plus + found["key"]]
    if not unknown:
        return [" ".join(_ADVICE.sub("", str(error) or str(error.__cause__)).split())]
    left = [each for each in overrides if each not in unknown]
    following: list[str] = []
    try:
        config = compose(left)
    except HydraException as another:
        following = explain(another, left, compose)
        config = compose([])
    keys = [key for key, _ in entries(OmegaConf.to_container(config, resolve=False))]
    said = "verl has the key; write it without the +" if plus else "no such key; {}"
    return [*(f"{each}: {said.format(_hint(each, keys))}" for each in unknown), *following]


def verify_added(config: DictConfig) -> None:
    """ValueError with a line for each added key, ``+key=value``, that is nearly one of the group's:
    a typing error, which nobody would read.
    """
    ours = yaml.safe_load((files("exgrpo.config") / "exgrpo.yaml").read_text(encoding="utf-8"))
    known = {*defaults(), *(key for key, _ in entries(ours))}
    wrong = []
    for key, value in entries(OmegaConf.to_container(config, resolve=False)):
        group, _, name = key.rpartition(".")
        if key not in known and group in known and group != _HANDED_ON:
            siblings = [each.rpartition(".")[2] for each in known if each.startswith(f"{group}.")]
            if meant := difflib.get_close_matches(name, siblings, n=1, cutoff=0.85):
                given = f"+{key}={shown(value)}"
                wrong.append(f"{given}: nobody reads it; did you mean {group}.{meant[0]}?")
    if wrong:
        raise ValueError("\n".join(wrong))


def _unreadable(given: str) -> str:
    """The cure of an override that Hydra's grammar does not read; empty if it does."""
    try:
        OverridesParser.create().parse_override(given)
    except HydraException:
        key, _, value = given.partition("=")
        return f'{given}: Hydra cannot read it; write "{override(key, value)}"'
    return ""


def _key(given: str) -> str:
    return given.partition("=")[0]


def _hint(given: str, keys: Sequence[str]) -> str:
    """What a released or earlier key is now; else the nearest key; one of the same last name, if no
    key is as near as a typing error.
    """
    key = _key(given)
    if key in GONE:
        return f"it is gone: {GONE[key]}"
    if known := released.hint(given):
        return known
    name = key.rpartition(".")[2]
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.85)
    namesakes = [each for each in keys if each.rpartition(".")[2] == name]
    if nearest := close or difflib.get_close_matches(key, namesakes, n=1, cutoff=0.0):
        return f"did you mean {nearest[0]}?"
    return (
        "--cfg job prints all keys; one that verl reads without listing it is added as +key=value"
    )
