"""Keys of the reward under verl's old names: its configuration has them still, its V1 trainer reads
none, and the run would train by another reward.
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from exgrpo.preflight.values import entries
from exgrpo.refusal import shown

GROUPS = ("custom_reward_function", "reward_model", "sandbox_fusion")
# the names that did not only get another group; migrate_legacy_reward_impl of verl says the same
RENAMED = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
}
GONE = ("reward_model.model.external_lib", "reward_model.model.trust_remote_code")


def verify(config: DictConfig) -> None:
    """ValueError with a line for each of these keys that is set."""
    groups = {each: OmegaConf.to_container(config[each]) for each in GROUPS if each in config}
    wrong = [
        f"{key}={shown(value)}: verl reads it no more; {_now(key)}"
        for key, value in entries(groups)
        if value is not None and not isinstance(value, dict)
    ]
    if wrong:
        raise ValueError("\n".join(wrong))


def _now(key: str) -> str:
    old = next((each for each in RENAMED if f"{key}.".startswith(f"{each}.")), "")
    if key in GONE:
        return "no key has taken its place"
    return f"write {RENAMED[old] + key.removeprefix(old) if old else f'reward.{key}'}"
