"""Every error that can be seen before Ray starts, in one line with key, value and remedy."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from exgrpo import verl_contract
from exgrpo.config import kernels
from exgrpo.data_files import column_names, is_local, paths_of, read_question_ids
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.question_id import fingerprint, tokenizer_fingerprint
from exgrpo.loss_settings import LossSettings
from exgrpo.on_verl import checkpoints, old_checkpoints
from exgrpo.on_verl.checkpoints import POOL
from exgrpo.preflight import (
    data_files,
    legacy_reward,
    machine,
    modes,
    other_defaults,
    released,
    resume,
    sizes,
    unknown_keys,
    user_rules,
    values,
)
from exgrpo.preflight.absolute_paths import make_absolute, name_log_folders
from exgrpo.preflight.prompt_check import verify_prompts
from exgrpo.preflight.reward_rehearsal import rehearse
from exgrpo.saved.pool_files import MANIFEST, compare, read_manifest

_logger = logging.getLogger(__name__)
SEEDED, PREFIX = "exgrpo_seeded", "exgrpo_prefix"
AGENT_LOOPS = Path(__file__).parents[1] / "config" / "agent_loops.yaml"


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What a check within it raises ends the program, with a line for each error."""
    try:
        yield
    except (ValueError, OSError, OmegaConfBaseException) as error:
        sys.exit("\n".join(f"exgrpo: {line}" for line in str(error).splitlines()))


def check(config: DictConfig) -> None:
    """Everything that exgrpo checks before Ray starts; completes the configuration in place.

    Raises:
        ValueError, OSError, OmegaConfBaseException: a line for each error.
    """
    verify(config)
    machine.verify(config, os.environ)
    print(other_defaults.line(config), flush=True)
    resolve(config)
    if config.trainer.device != "cpu":
        print(kernels.line(config), flush=True)


def verify(config: DictConfig) -> None:
    """Raise ValueError or FileNotFoundError with a line for each error; well under a second per
    file.

    A stage's errors are reported together. Its checks rely on what the stages before it checked.
    """
    verl_contract.verify()
    values.verify(config)
    make_absolute(config)  # from here on ~ is a folder
    trainer, actor = config.trainer, config.actor_rollout_ref.actor
    experience = ExperienceConfig.from_mapping(trainer, config.actor_rollout_ref.rollout.n)
    with_replay = experience.experience
    _all(
        lambda: values.verify_together(config),
        lambda: released.verify(config),
        lambda: unknown_keys.verify_added(config),
        lambda: _platform(config),
        lambda: _files(config),
        lambda: resume.verify_path(trainer),
        lambda: legacy_reward.verify(config),
        lambda: user_rules.verify_reward(config.reward.custom_reward_function),
        *([lambda: modes.verify_names(config)] if with_replay else []),
        *([lambda: user_rules.verify_rules(experience, _loss(actor))] if with_replay else []),
    )
    has_states = old_checkpoints.check_if_loaded(actor.checkpoint.load_contents)
    checkpoints.mark_checkpoint_to_resume(
        trainer, with_replay, has_states, actor.checkpoint.load_contents
    )
    resumed = resume.resumed_folder(trainer)
    _all(
        lambda: data_files.verify_rows(config),
        lambda: sizes.verify(config, resumed),
        lambda: resume.verify_loader(config.data.dataloader_num_workers, resumed),
        lambda: _attention(config),
        lambda: _log_probs(config),
    )
    _truncated(config.actor_rollout_ref.rollout)
    rehearse(config)
    if with_replay:
        _text_alone(config)
        _data_and_checkpoint(config, resumed)
    elif resumed is not None and (resumed / POOL).is_dir():
        # a baseline that goes on from weights that replay has trained is none
        _logger.warning(
            "exgrpo: trainer.experience=False: resuming %s, which was trained with replay; a "
            "baseline needs another trainer.default_local_dir",
            resumed,
        )
    tokenizer = verify_prompts(config)
    experience_folder = _experience_to_read(config, resumed) if with_replay and tokenizer else None
    if experience_folder is not None:
        recorded = read_manifest(experience_folder)["identity"] or {}
        compare(experience_folder, recorded, {"tokenizer": tokenizer_fingerprint(tokenizer)})


def _all(*checks: Callable[[], None]) -> None:
    """Run every check; raise their errors as one."""
    errors: list[ValueError | OSError] = []
    for check in checks:
        try:
            check()
        except (ValueError, OSError) as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ValueError("\n".join(map(str, errors)))


def resolve(config: DictConfig) -> None:
    """Set what follows from other settings: trainer and policy loss by verl's names, the agent loop
    of seeded rollouts.
    """
    with open_dict(config):
        actor = config.actor_rollout_ref.actor
        # resolved now: other processes lack our resolver
        actor.loss_scale_factor = actor.loss_scale_factor
        kernels.write_choices(config)
        name_log_folders(config, os.environ)
        config.trainer.v1.trainer_mode = modes.TRAINERS[config.trainer.v1.trainer_mode]
        modes.watch_rewards(config)
        seeded = config.trainer.rollout_seeded  # which goes on from prefixes, too
        if seeded or (config.trainer.experience and config.trainer.exp_unit == "prefix"):
            agent = config.actor_rollout_ref.rollout.agent
            agent.default_agent_loop = SEEDED if seeded else PREFIX
            agent.agent_loop_config_path = str(AGENT_LOOPS)
        losses = actor.policy_loss
        if config.trainer.experience:
            losses.fresh_loss_mode, losses.loss_mode = losses.loss_mode, modes.OURS
            settings = _loss(actor)  # the text "False" would count as true
            losses.update({name: getattr(settings, name) for name in _given(actor)})
            modes.use_group_filter(config)
        elif losses.loss_mode == modes.OURS:
            losses.loss_mode = "vanilla"


def _platform(config: DictConfig) -> None:
    platform = os.environ.get("VERL_PLATFORM", "")
    if (config.trainer.device == "cpu") != (platform == "cpu"):
        raise ValueError(
            f"trainer.device={config.trainer.device} with VERL_PLATFORM={platform or '(unset)'} in "
            "the environment: stack=cpu and VERL_PLATFORM=cpu go together"
        )


def _attention(config: DictConfig) -> None:
    """The package of the actor's attention is there, and it fits card and settings."""
    value = kernels.given(config) or kernels.VERLS
    if value not in kernels.ATTENTIONS and "/" not in value:
        raise ValueError(
            f"{kernels.ATTENTION}={value}: must be one of {', '.join(kernels.ATTENTIONS)}, or a "
            "kernel of the hub, OWNER/NAME"
        )
    if config.trainer.device != "cpu" and (why := _unfit(config, value)):
        if kernels.given(config):
            raise ValueError(f"{kernels.ATTENTION}={value}: {why}; {_instead(config)}")
        key = f"+{kernels.ATTENTION}"  # verl does not list it
        works = f"{key}={kernels.attention(_root_=config)} works"
        raise ValueError(f"{key}: not given, which means {value} to verl: {why}; {works}")
    ranks = kernels.sequence_parallel(config.actor_rollout_ref.actor)
    if ranks > 1 and not value.startswith("flash_attention"):
        raise ValueError(
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={ranks}: must be 1 with "
            f"attn_implementation={value}"
        )


def _log_probs(config: DictConfig) -> None:
    """The kernels of the actor's log-probs run here, if it takes any."""
    model = config.actor_rollout_ref.model
    backend = model.fused_kernel_options.impl_backend
    if model.use_fused_kernels and backend == "triton" and (why := kernels.why_no_triton(config)):
        raise ValueError(
            f"{kernels.MODEL}.fused_kernel_options.impl_backend=triton: {why}; torch works"
        )


def _unfit(config: DictConfig, attention: str) -> str:
    """Why this machine cannot use the attention; empty if it can."""
    package = kernels.ATTENTIONS.get(attention, "torch")
    if not kernels.installed(package):
        return f"the package {package} is not installed"
    if attention == kernels.VARLEN:
        return kernels.why_no_varlen(config)
    return kernels.too_old(attention) or ""


def _instead(config: DictConfig) -> str:
    chosen = kernels.attention(_root_=config)
    if chosen == "sdpa":  # its mask is dense over the whole packed row
        return (
            "sdpa works, best with actor_rollout_ref.model.use_fused_kernels=True and a smaller "
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu: memory grows by its square"
        )
    return f"{chosen} works, which is taken where nothing is given"


def _files(config: DictConfig) -> None:
    for key in ("data.train_files", "data.val_files"):
        for path in paths_of(OmegaConf.select(config, key)):
            if is_local(path) and not Path(path).is_file():
                raise FileNotFoundError(f"{key}={path}: no such file; exgrpo-data train makes one")
    for key in ("default_local_dir", "rollout_data_dir", "validation_data_dir"):
        if (folder := config.trainer.get(key)) and is_local(folder):
            _can_be_made(f"trainer.{key}", Path(folder), machine.starts_ray(config, os.environ))
    timeline = config.ray_kwargs.get("timeline_json_file")
    if timeline and not Path(timeline).expanduser().absolute().parent.is_dir():
        raise FileNotFoundError(
            f"ray_kwargs.timeline_json_file={timeline}: its folder must be there"
        )
    model = str(config.actor_rollout_ref.model.path)
    is_path = model.startswith(("/", ".", "~")) or (model.count("/") > 1 and is_local(model))
    if is_path and not Path(model).is_dir():
        raise FileNotFoundError(f"actor_rollout_ref.model.path={model}: no such folder")


def _can_be_made(key: str, root: Path, here: bool) -> None:
    """NotADirectoryError unless it is a folder or, where this node has the disk, can be made."""
    there = next(each for each in (root, *root.parents) if each.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there) if here else os.scandir(there):
            return
    except OSError as error:
        raise NotADirectoryError(
            f"{key}={root}: must be a folder, or a new one that can be made; {error.strerror}"
        ) from None


def _truncated(rollout: DictConfig) -> None:
    """Warn where rollouts are not drawn from all that the actor's log-probs are about."""
    if rollout.top_p < 1 or rollout.top_k > 0:
        _logger.warning(
            "exgrpo: actor_rollout_ref.rollout.top_p=%s top_k=%s: rollouts lack the less likely "
            "tokens, but the actor's log-probs are of all: each importance ratio is too large, by "
            "1 / the probability of the tokens that were kept; full are top_p=1 top_k=-1",
            rollout.top_p,
            rollout.top_k,
        )


def _text_alone(config: DictConfig) -> None:
    """Replayed rows are text only: token ids, a mask of ones, positions counted from 0."""
    keys = ("image_key", "video_key", "audio_key")
    refused = {f"data.{key}": config.data.get(key) for key in keys}
    for path in filter(is_local, paths_of(config.data.train_files)):
        names = column_names(Path(path))
        for key, column in refused.items():
            if column in names:
                raise ValueError(
                    f"{key}={column}: {path} has that column; a replayed trajectory is text only"
                )
        if "agent_name" in names:
            raise ValueError(
                f"data.train_files: {path} has a column agent_name; all rows must use one agent "
                "loop, that of actor_rollout_ref.rollout.agent.default_agent_loop"
            )
    model = Path(str(config.actor_rollout_ref.model.path))
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (model / name).is_file():
            raise ValueError(
                f"actor_rollout_ref.model.path={model}: has a {name}; a replayed trajectory is "
                "text only"
            )


def _loss(actor: DictConfig) -> LossSettings:
    """The settings of the loss; ValueError for a wrong one."""
    return LossSettings.from_mapping({name: actor.policy_loss[name] for name in _given(actor)})


def _given(actor: DictConfig) -> set[str]:
    return LossSettings.__dataclass_fields__.keys() & actor.policy_loss.keys()


def _data_and_checkpoint(config: DictConfig, resumed: Path | None) -> None:
    """Questions must be unique, enough, and those of the checkpoint to resume from."""
    files = paths_of(config.data.train_files)
    if not all(map(is_local, files)):
        return
    questions = read_question_ids(files, config.data.prompt_key)
    size, mode = config.data.train_batch_size, config.trainer.v1.trainer_mode
    # whose questions are in flight while a step draws others
    ahead = OmegaConf.select(config, f"trainer.v1.{mode}.num_warmup_batches") or 0
    if len(questions) < (needed := size + math.floor(ahead * size)):
        why = f" with trainer.v1.{mode}.num_warmup_batches={ahead}" if ahead else ""
        raise ValueError(
            f"data.train_batch_size={size}: data.train_files has {len(questions)} questions, must "
            f"have at least {needed}{why}"
        )
    experience = _experience_to_read(config, resumed)
    if experience is None:
        return
    manifest = read_manifest(experience)
    compare(experience, manifest, {"rollout_n": config.actor_rollout_ref.rollout.n})
    recorded = str((manifest["identity"] or {}).get("data_fingerprint"))
    if recorded != fingerprint(questions):
        raise ValueError(
            f"{experience}: experience of another data set (fingerprint {recorded[:12]}, "
            f"data.train_files has {fingerprint(questions)[:12]}); give its data set, another "
            "trainer.default_local_dir, or trainer.resume_mode=disable"
        )


def _experience_to_read(config: DictConfig, resumed: Path | None) -> Path | None:
    """The saved pool that this run would start with; None if it starts without one."""
    imported = config.trainer.experience_import
    if resumed is not None:
        return resumed / POOL
    if imported is None:
        return None
    if not (Path(imported) / MANIFEST).is_file():
        raise FileNotFoundError(
            f"trainer.experience_import={imported}: no saved pool there; exgrpo-inspect --import "
            "makes one"
        )
    return Path(imported)
