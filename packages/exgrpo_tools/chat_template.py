"""The chat template of a thinking copy: a model's own or one of two simple ones, with a thought
opened at its end.

Or the paper's prompt for a weak base model, which opens none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exgrpo.prompts import load_tokenizer, opens_thought, render

KINDS = ("auto", "own", "chatml", "plain", "step_by_step", "keep")
_OPENING = "{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_PLAIN = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ (message['role'] | capitalize) + ':\\n' }}{% endif %}"
    "{{ message['content'] + '\\n\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"
)
_STEP_BY_STEP = (  # the paper's prompt for Llama-3.1-8B base (E.1, G.1)
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n' }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ 'Answer: ' + message['content'] + '\\n' "
    "}}{% endif %}"
    "{% endfor %}"
    '{% if add_generation_prompt %}{{ "Answer: Let\'s think step by step.\\n" }}{% endif %}'
)
_MADE = {"chatml": _CHATML + _OPENING, "plain": _PLAIN + _OPENING, "step_by_step": _STEP_BY_STEP}
_KEEPS_SYSTEM = "{# exgrpo: trained with the data's system message, so evaluation keeps it #}"
_PROBE = [
    {"role": "system", "content": "Think first."},
    {"role": "user", "content": "What is 6 times 7?"},
]


def write_template(model: Path, folder: Path, kind: str) -> list[str]:
    """Write the template to ``folder`` and render a question with it; returns lines on the template
    and the prompt.

    Args:
        kind: one of KINDS. ``step_by_step`` alone opens no thought and has no place for a system
            message.
    """
    before, own = load_tokenizer(model), _template(model)
    if kind == "auto" and own:
        kind = "own"
    elif kind == "auto":
        has_chatml = {"<|im_start|>", "<|im_end|>"} <= before.get_vocab().keys()
        kind = "chatml" if has_chatml else "plain"
    if kind == "own" and own is None:
        raise ValueError(f"--template=own: {model} has no chat template")
    if kind != "keep":
        text = _MADE.get(kind, own or "")
        if kind == "own" and not opens_thought(_render(before, "--template=own")):
            text = text.removesuffix("\n") + _OPENING
        (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
        edit_json(
            folder / "tokenizer_config.json", lambda settings: settings.pop("chat_template", None)
        )
    if kind == "keep" and own is None:
        return []
    tokenizer = load_tokenizer(folder)
    prompt = _render(tokenizer, f"--template={kind}")
    complete = opens_thought(prompt) and all(message["content"] in prompt for message in _PROBE)
    if kind not in ("step_by_step", "keep") and not complete:
        raise ValueError(
            f"--template={kind}: renders a system message, a question and <think> as {prompt!r}; "
            "--template=chatml or plain has a place for each"
        )
    if kind != "keep":
        remember_system(folder, prompt)
    return [
        f"template: {kind}; a prompt reads {prompt!r}",
        f"generation stops at {_stops(folder, tokenizer)}, as before",
    ]


def remember_system(folder: Path, prompt: str) -> None:
    """Note in a copy's chat template that it is trained with a system message, if its ``prompt``
    has the probe's.

    A comment of the template, which renders to nothing: unlike a file of its own it comes along
    into checkpoints.
    """
    path = folder / "chat_template.jinja"
    if _PROBE[0]["content"] in prompt and not keeps_system(folder):
        text = path.read_text(encoding="utf-8").removesuffix(
            "\n"
        )  # which is not rendered at the end
        path.write_text(text + _KEEPS_SYSTEM, encoding="utf-8")


def keeps_system(model: Path) -> bool:
    """Whether a model folder is a thinking copy, or trained from one, that is asked with its data's
    system message.
    """
    return _KEEPS_SYSTEM in (_template(model) or "")


def _template(model: Path) -> str | None:
    """The chat template of a model folder; the default one if there are several."""
    if (path := model / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    path = model / "tokenizer_config.json"
    template = read_json(path).get("chat_template") if path.is_file() else None
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _render(tokenizer: Any, name: str) -> str:
    try:
        return render(tokenizer, _PROBE)
    except Exception as error:  # a template may raise any error, for instance at a system message
        raise ValueError(
            f"{name}: the template fails on a system message and a question ({error})"
        ) from error


def _stops(folder: Path, tokenizer: Any) -> str:
    """The tokens at which vLLM ends a response: the tokenizer's EOS and those of
    generation_config.json.
    """
    path = folder / "generation_config.json"
    ids = read_json(path).get("eos_token_id") if path.is_file() else None
    ids = [ids] if isinstance(ids, int) else list(ids or [])
    tokens = [tokenizer.eos_token, *tokenizer.convert_ids_to_tokens(ids)]
    return " and ".join(dict.fromkeys(str(token) for token in tokens))


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a file's JSON object in place; does nothing if there is no such file."""
    if path.is_file():
        settings = read_json(path)
        change(settings)
        write_json(path, settings)


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object; ValueError if it has none."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: is not a JSON object")
    return settings


def write_json(path: Path, settings: dict[str, Any]) -> None:
    """Write an object as a JSON file."""
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
