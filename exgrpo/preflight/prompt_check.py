"""What a run would show its model, checked before Ray starts: the window, the chat template, the thought, the lengths.

Each of these would otherwise train on nothing without a word: verl cuts responses at the window and drops every
question that the template fails on. The tokenizer is loaded as verl loads it; its libraries are verl's, so a run that
starts pays nothing for them here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from exgrpo.preflight.train_files import is_local
from exgrpo.prompts import Messages, load_tokenizer, opens_thought, render, small_files, token_count

SAMPLE = 256  # prompts that are counted; beyond them the first that fits ends the search
CONTEXT_KEYS = ("max_position_embeddings", "rope_theta", "rope_parameters", "rope_scaling")
_COPY = "python -m exgrpo.thinking_copy {} OUTPUT"
_logger = logging.getLogger(__name__)


def verify_prompts(config: DictConfig) -> None:
    """Raise ValueError or FileNotFoundError at the first thing wrong; a model that cannot be had is left to verl."""
    model = config.actor_rollout_ref.model
    if (folder := small_files(str(model.path))) is None:
        _logger.warning("exgrpo: %s cannot be looked at here: its window and its prompts are not checked", model.path)
        return
    _context_keys(model)
    _window(config, folder)
    key = "path" if model.tokenizer_path is None else "tokenizer_path"
    if (folder := small_files(str(model[key]))) is None:
        _logger.warning("exgrpo: %s cannot be looked at here: the prompts are not checked", model[key])
        return
    tokenizer = load_tokenizer(folder, model.trust_remote_code)
    tokenizer.chat_template = model.custom_chat_template or tokenizer.chat_template
    if tokenizer.chat_template is None:
        raise ValueError(
            f"actor_rollout_ref.model.{key}={model[key]}: its tokenizer has no chat template, by which verl renders "
            f"every question; {_COPY.format(model[key])} makes a copy with one"
        )
    for files in ("train_files", "val_files"):
        _prompts(config, files, tokenizer)


def _context_keys(model: DictConfig) -> None:
    overridden = OmegaConf.select(model, "override_config.model_config") or model.override_config
    for key in CONTEXT_KEYS:
        if overridden.get(key) is not None:
            raise ValueError(
                f"actor_rollout_ref.model.override_config.{key}={overridden[key]}: must not be set, it reaches the "
                f"actor but not vLLM; {_COPY.format(model.path)} makes a copy with another context"
            )


def _window(config: DictConfig, folder: Path) -> None:
    """verl's server: max_model_len defaults to max_position_embeddings and may not exceed it, and max_tokens of each
    response is clamped to what the prompt leaves of it (vllm_async_server.py, _validate_configs and generate).
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"actor_rollout_ref.model.path={model.path}: no config.json in {folder}")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    window = settings.get("max_position_embeddings", (settings.get("text_config") or {}).get("max_position_embeddings"))
    if window is None:
        return  # verl says so
    needed = config.data.max_prompt_length + config.data.max_response_length
    lengths = f"data.max_prompt_length={config.data.max_prompt_length} + {config.data.max_response_length} of response"
    limit = rollout.max_model_len
    if limit is not None and limit > window:
        raise ValueError(
            f"actor_rollout_ref.rollout.max_model_len={limit}: must be at most {window}, the model's "
            f"max_position_embeddings; {_COPY.format(model.path)} --window {limit} makes a copy with a longer one"
        )
    if limit is not None and limit < needed:
        raise ValueError(
            f"actor_rollout_ref.rollout.max_model_len={limit}: must be at least {needed} ({lengths}), or null; "
            "verl would cut responses to what is left of it"
        )
    if window < needed:
        raise ValueError(
            f"actor_rollout_ref.model.path={model.path}: its max_position_embeddings is {window}, below {needed} "
            f"({lengths}), and verl would cut responses to what is left of it; {_COPY.format(model.path)} "
            "makes a copy with a longer window (--help)"
        )


def _prompts(config: DictConfig, files: str, tokenizer: Any) -> None:
    """A prompt must open a thought where the reward wants one closed, and some prompt must be short enough."""
    names = config.data[files] if isinstance(config.data[files], list | ListConfig) else [config.data[files]]
    if not all(is_local(str(name)) for name in names):
        return
    limit, filtered = config.data.max_prompt_length, config.data.filter_overlong_prompts
    options = config.data.get("apply_chat_template_kwargs") or {}
    counts: list[int] = []
    failures: list[str] = []
    for messages in _rows([str(name) for name in names], config.data.prompt_key):
        try:
            prompt = render(tokenizer, messages, **options)
        except Exception as error:  # a template raises what it likes
            failures.append(str(error))
            continue
        if not counts:
            _thought(config, prompt)
        counts.append(token_count(tokenizer, prompt))
        if not filtered or (len(counts) + len(failures) >= SAMPLE and min(counts) <= limit):
            break
    if failures and not counts:
        raise ValueError(
            f"data.{files}: the chat template fails on each of its {len(failures)} prompts "
            f"({failures[0].splitlines()[0]}), and verl would drop them all"
        )
    if filtered and counts:
        _lengths(f"data.{files}", limit, counts, failures)


def _lengths(files: str, limit: int, counts: list[int], failures: list[str]) -> None:
    if min(counts) > limit:
        raise ValueError(
            f"data.max_prompt_length={limit}: must be at least {min(counts)}, the tokens of the shortest prompt in "
            f"{files}; verl's length filter would drop all of its {len(counts)} questions"
        )
    if dropped := len(failures) + sum(count > limit for count in counts):
        among = len(counts) + len(failures)
        _logger.warning(
            "%s: %d of the first %d prompts are longer than data.max_prompt_length=%d (or cannot be rendered) and are "
            "dropped",
            *(files, dropped, among, limit),
        )


def _thought(config: DictConfig, prompt: str) -> None:
    reward = config.reward.custom_reward_function
    kwargs: Mapping[str, Any] = reward.get("reward_kwargs") or {}
    wanted = reward.path == "pkg://exgrpo.math_verify_reward" and kwargs.get("require_think", True)
    if wanted and not opens_thought(prompt):
        copy = _COPY.format(config.actor_rollout_ref.model.path)
        raise ValueError(
            "reward.custom_reward_function.reward_kwargs.require_think=True: the prompts end in "
            f"{prompt[-40:]!r}, not in an opened <think>; train a copy that {copy} makes, or set it to False"
        )


def _rows(paths: list[str], prompt_key: str) -> Iterator[Messages]:
    """The prompts of the files, in their order, read as they are needed."""
    import pyarrow.json
    import pyarrow.parquet

    for path in (Path(name).expanduser() for name in paths):
        if path.suffix == ".parquet":
            file = pyarrow.parquet.ParquetFile(path)
            names, batches = file.schema_arrow.names, file.iter_batches(SAMPLE, columns=[prompt_key])
        else:
            table = pyarrow.json.read_json(path)
            names, batches = table.column_names, table.to_batches(SAMPLE)
        if prompt_key not in names:
            raise ValueError(f"{path}: no column {prompt_key!r} (data.prompt_key); it has {', '.join(names)}")
        for batch in batches:
            yield from batch.column(prompt_key).to_pylist()
