"""What exgrpo's configuration sets of verl's own keys, for a line at the start of a run."""

from __future__ import annotations

from pathlib import Path

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from exgrpo.preflight.values import defaults, entries, shown

CONFIG = Path(__file__).parents[1] / "config"
_OPEN = "actor_rollout_ref.model.override_config."  # verl reads keys there that it does not list


def line(config: DictConfig) -> str:
    """The settings that have exgrpo's default and not verl's; not those that were given anew."""
    verls, is_now = defaults(), dict(entries(OmegaConf.to_container(config, resolve=False)))
    said = [
        f"{key}={shown(OmegaConf.select(config, key))}"
        for file in ("exgrpo.yaml", f"method/{_method(config)}.yaml")
        for key, value in entries(yaml.safe_load((CONFIG / file).read_text(encoding="utf-8")))
        if not isinstance(value, dict)
        and (key in verls or key.startswith(_OPEN))
        and is_now.get(key) == value != verls.get(key)
    ]
    return f"exgrpo: verl's settings with another default than verl's: {', '.join(said)}"


def _method(config: DictConfig) -> str:
    """The option of the group ``method``."""
    choices = OmegaConf.select(config, "hydra.runtime.choices")  # a callback's configuration has it
    if choices is None and HydraConfig.initialized():
        choices = HydraConfig.get().runtime.choices
    return str((choices or {}).get("method", "exgrpo"))
