"""What a model is shown: its tokenizer, a rendered prompt, and whether that prompt opens a thought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

THINK = "<think>"
Messages = Sequence[Mapping[str, Any]]
_TO_RENDER = ["*.json", "*.jinja", "*.txt", "*.model"]  # of a repository, what configuration and tokenizer need


def small_files(path: str) -> Path | None:
    """The folder with a model's configuration and tokenizer; None where they cannot be had.

    A local folder, or a hub name's newest snapshot: from the local cache, else those files alone are downloaded, since
    verl is about to download all of it.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if "://" in path:
        return None
    for cached in (True, False):
        try:
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(path, allow_patterns=_TO_RENDER, local_files_only=cached))
        except Exception:  # no such name, no access, no network: which, verl says
            continue
        if all((folder / name).is_file() for name in ("config.json", "tokenizer_config.json")):
            return folder
    return None


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer as verl loads it, by transformers' AutoTokenizer; needs no torch.

    Raises:
        ValueError: in one line, where there is none or it cannot be read.
    """
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except Exception as error:  # of the libraries below, any
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{folder}: its tokenizer cannot be loaded ({why})") from error


def render(tokenizer: Any, messages: Messages, **options: Any) -> str:
    """The prompt as text, special tokens and all, with the generation prompt at its end."""
    turns = [dict(message) for message in messages]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options))


def token_count(tokenizer: Any, prompt: str) -> int:
    """Tokens of a rendered prompt, as verl's length filter and its rollouts count them: what it says and no more."""
    return len(tokenizer(prompt, add_special_tokens=False)["input_ids"])


def opens_thought(prompt: str) -> bool:
    """Whether the prompt ends in ``<think>``, white space aside, so that the response begins inside a thought."""
    return prompt.rstrip().endswith(THINK)
