"""Prompts as the model sees them: tokenizer, rendered prompt, whether it opens a thought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

THINK = "<think>"
Messages = Sequence[Mapping[str, Any]]
# files of a repository for configuration and tokenizer
_TO_RENDER = ["*.json", "*.jinja", "*.txt", "*.model"]


def small_files(path: str) -> Path | None:
    """The folder with a model's configuration and tokenizer; None if they are not available.

    For a local folder the folder itself; for a hub name its newest snapshot from the local cache,
    or a download of these files only, since verl is about to download the rest.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if "://" in path:
        return None
    for cached in (True, False):
        try:
            from huggingface_hub import snapshot_download as download

            folder = Path(download(path, allow_patterns=_TO_RENDER, local_files_only=cached))
        except Exception:  # no such name, no access, no network: verl reports which
            continue
        if all((folder / name).is_file() for name in ("config.json", "tokenizer_config.json")):
            return folder
    return None


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer as verl loads it, with transformers' AutoTokenizer; does not need torch.

    Raises:
        ValueError: in one line, if there is none or it cannot be read.
    """
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except Exception as error:  # the libraries may raise any error
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{folder}: its tokenizer cannot be loaded ({why})") from error


def render(tokenizer: Any, messages: Messages, **options: Any) -> str:
    """The prompt as text, including special tokens, with the generation prompt at its end."""
    turns = [dict(message) for message in messages]
    return str(
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
    )


def token_count(tokenizer: Any, prompt: str) -> int:
    """Number of tokens of a rendered prompt, counted as by verl's filter: nothing is added."""
    return len(tokenizer(prompt, add_special_tokens=False)["input_ids"])


def opens_thought(prompt: str) -> bool:
    """Whether the prompt ends in ``<think>`` and white space: the response begins in a thought."""
    return prompt.rstrip().endswith(THINK)
