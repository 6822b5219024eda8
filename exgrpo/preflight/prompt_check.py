"""Check before Ray starts what the model would see: the window, the chat template, the opened
thought, the lengths.

An error here would otherwise spoil a run silently: verl cuts responses at the window and drops
every question on which the template fails.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from exgrpo.data_files import is_local, paths_of, read_columns
from exgrpo.prompts import load_tokenizer, opens_thought, render, small_files, token_count
from exgrpo.refusal import shown

SAMPLE = 256  # number of prompts that are counted; beyond it the first that fits ends the search
CONTEXT_KEYS = ("max_position_embeddings", "rope_theta", "rope_parameters", "rope_scaling")
_COPY = "exgrpo-data thinking-copy {} OUTPUT"
_logger = logging.getLogger(__name__)


def verify_prompts(config: DictConfig) -> Any:
    """The tokenizer; ValueError or FileNotFoundError at the first error. A model elsewhere is left
    to verl, and there is None.
    """
    model = config.actor_rollout_ref.model
    folder = small_files(str(model.path))
    if folder is None:
        _logger.warning("exgrpo: %s is no folder here: window and prompts not checked", model.path)
        return None
    _context_keys(model)
    _window(config, folder)
    key = "path" if model.tokenizer_path is None else "tokenizer_path"
    folder = small_files(str(model[key]))
    if folder is None:
        _logger.warning("exgrpo: %s is no folder here: the prompts are not checked", model[key])
        return None
    tokenizer = load_tokenizer(folder, model.trust_remote_code)
    tokenizer.chat_template = model.custom_chat_template or tokenizer.chat_template
    if tokenizer.chat_template is None:
        raise ValueError(
            f"actor_rollout_ref.model.{key}={model[key]}: its tokenizer has no chat template, "
            f"which verl needs to render questions; {_COPY.format(model[key])} makes a copy with "
            "one"
        )
    for files in ("train_files", "val_files"):
        _prompts(config, files, tokenizer)
    return tokenizer


def _context_keys(model: DictConfig) -> None:
    overridden = OmegaConf.select(model, "override_config.model_config") or model.override_config
    for key in CONTEXT_KEYS:
        if overridden.get(key) is not None:
            raise ValueError(
                f"actor_rollout_ref.model.override_config.{key}={overridden[key]}: must not be "
                f"set, it reaches the actor but not vLLM; {_COPY.format(model.path)} makes a copy "
                "with another context"
            )


def _window(config: DictConfig, folder: Path) -> None:
    """verl's server: max_model_len defaults to max_position_embeddings and may not exceed it, and
    max_tokens of each response is clamped to max_model_len minus the prompt (vllm_async_server.py,
    _validate_configs and generate).
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"actor_rollout_ref.model.path={model.path}: no config.json in {folder}"
        )
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    window = settings.get(
        "max_position_embeddings",
        (settings.get("text_config") or {}).get("max_position_embeddings"),
    )
    if window is None:
        return  # verl reports it
    needed = config.data.max_prompt_length + config.data.max_response_length
    response = config.data.max_response_length
    lengths = f"data.max_prompt_length={config.data.max_prompt_length} + {response} of response"
    limit = rollout.max_model_len
    if limit is not None and limit > window:
        raise ValueError(
            f"actor_rollout_ref.rollout.max_model_len={limit}: must be at most {window}, the "
            f"model's max_position_embeddings; {_COPY.format(model.path)} --window {limit} makes a "
            "copy with a longer one"
        )
    if limit is not None and limit < needed:
        raise ValueError(
            f"actor_rollout_ref.rollout.max_model_len={limit}: must be at least {needed} "
            f"({lengths}), or null; verl would cut responses to the rest of the window"
        )
    if window < needed:
        raise ValueError(
            f"actor_rollout_ref.model.path={model.path}: its max_position_embeddings is {window}, "
            f"below {needed} ({lengths}), and verl would cut responses to the rest of the window; "
            f"{_COPY.format(model.path)} makes a copy with a longer window (--help)"
        )


def _prompts(config: DictConfig, files: str, tokenizer: Any) -> None:
    """Prompts open a thought if the reward requires its end; the template renders each of those
    that are looked at, and at least one is short enough.
    """
    paths = paths_of(config.data[files])
    if not all(map(is_local, paths)):
        return
    limit, filtered = config.data.max_prompt_length, config.data.filter_overlong_prompts
    options = config.data.get("apply_chat_template_kwargs") or {}
    counts: list[int] = []
    key = config.data.prompt_key
    columns = (read_columns(Path(path), [key])[key] for path in paths)
    for messages in itertools.chain.from_iterable(column.to_pylist() for column in columns):
        try:
            prompt = render(tokenizer, messages, **options)
        except Exception as error:  # a template may raise any error
            raise ValueError(
                f"data.{files}: the chat template fails on row {len(counts)} "
                f"({shown(error, 200)}), and verl would drop such rows or end at them"
            ) from error
        if not counts:
            _thought(config, prompt)
        counts.append(token_count(tokenizer, prompt))
        if len(counts) >= SAMPLE and (not filtered or min(counts) <= limit):
            break
    if counts:
        _lengths(f"data.{files}", limit, counts, filtered)


def _lengths(files: str, limit: int, counts: list[int], filtered: bool) -> None:
    if min(counts) > limit:
        drop = f"verl's length filter would drop all of its {len(counts)} questions"
        cut = f"verl would cut off the beginning of each of the first {len(counts)}"
        raise ValueError(
            f"data.max_prompt_length={limit}: must be at least {min(counts)}, the tokens of the "
            f"shortest prompt in {files}; {drop if filtered else cut}"
        )
    dropped = sum(count > limit for count in counts)
    if dropped and filtered:
        why = f"longer than data.max_prompt_length={limit}"
        _logger.warning(
            "%s: %d of the first %d prompts are %s and are dropped",
            files,
            dropped,
            len(counts),
            why,
        )


def _thought(config: DictConfig, prompt: str) -> None:
    reward = config.reward.custom_reward_function
    kwargs: Mapping[str, Any] = reward.get("reward_kwargs") or {}
    ours = reward.path == "pkg://exgrpo.math_verify_reward"
    if ours and kwargs.get("require_think", True) and not opens_thought(prompt):
        copy = _COPY.format(config.actor_rollout_ref.model.path)
        raise ValueError(
            "reward.custom_reward_function.reward_kwargs.require_think=True: the prompts end in "
            f"{prompt[-40:]!r}, not in an opened <think>; train a copy made by {copy}, or set it "
            "to False"
        )
