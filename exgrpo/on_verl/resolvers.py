"""What ``${exgrpo....}`` means in a configuration; registered before Hydra composes."""

from __future__ import annotations

from importlib.util import find_spec

from omegaconf import OmegaConf

from exgrpo.on_verl import released_scale


def register() -> None:
    """Register the resolvers of the configuration ``exgrpo_trainer``."""
    OmegaConf.register_new_resolver("exgrpo.released_scale", released_scale.of, replace=True)
    OmegaConf.register_new_resolver("exgrpo.config_of_verl", _config_of_verl, replace=True)


def _config_of_verl() -> str:
    """verl's configuration as Hydra names a folder, found without importing verl."""
    verl = find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ModuleNotFoundError(
            "verl is not installed: bash exp_scripts/setup_cpu.sh, or setup_gpu.sh, installs it"
        )
    return f"file://{verl.submodule_search_locations[0]}/trainer/config"
