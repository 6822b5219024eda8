"""Make a thinking copy of a model folder: its chat template opens a thought, and a short context is
extended.

    exgrpo-data thinking-copy MODEL OUTPUT [--rope_theta T] [--window N] [--template KIND]

MODEL is a local folder with config.json, such as the one that `hf download` prints; OUTPUT is a new
folder. Weights are symbolic links to the files of MODEL (they work from a hub cache and across file
systems, and take no space), so MODEL must not be moved. All other files are copied or rewritten;
folders inside MODEL are left out.

Qwen2-Math and Qwen2.5-Math (rope theta 10000, window 4096) get theta 40000 and window 16384 by
default, like the released Elliott/Qwen2.5-Math-7B-16k-think. Any other model keeps its context
unless you set --rope_theta or --window.

The template is the model's own, followed by `<think>` and a new line where the answer begins. A
model without a template gets ChatML turns if <|im_start|> and <|im_end|> are in its vocabulary,
otherwise plain text after its own first token. Llama base gets plain text: its vocabulary has
header tokens, but base training never used them.

--template step_by_step gives the paper's prompt for Llama-3.1-8B base instead, `User: QUESTION`, a
new line, `Answer: Let's think step by step.`, a new line, after the model's own first token. It
opens no <think>, and leaves out the system messages of the data.

Generation stops at the same tokens as before: for a base model of Qwen at <|endoftext|>, as in the
released training.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from exgrpo.console import in_one_line
from exgrpo.saved.durable import replace_folder
from exgrpo_tools.chat_template import KINDS, edit_json, read_json, write_json, write_template

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
LARGE = 100 << 20  # bytes; any larger file is linked too
PLAIN_ROPES = ("default", "llama3")  # kinds of rope whose window is max_position_embeddings
QWEN_MATH = {"model_type": "qwen2", "rope_theta": 10_000, "max_position_embeddings": 4096}
QWEN_MATH_THINKING = (40_000.0, 16_384)  # rope theta, window


def thinking_copy(
    model: Path,
    output: Path,
    rope_theta: float | None = None,
    window: int | None = None,
    template: str = "auto",
) -> list[str]:
    """Make the copy.

    Args:
        rope_theta, window: of the copy; None: unchanged, or the released copy's values for
            Qwen-Math.
        template: one of KINDS; ``auto``: the model's own if it has one, otherwise ``chatml`` or
            ``plain``.

    Returns:
        Lines that describe the changes.

    Raises:
        ValueError, OSError: in one line; OUTPUT is not created.
    """
    if output.exists() or output.is_symlink():
        raise FileExistsError(f"{output}: exists already; must be a new folder")
    weights, others = _files(model)
    config = read_json(model / "config.json")
    changes = _lengthen(config, rope_theta, window)
    if not changes and template == "keep":
        raise ValueError(
            f"--template=keep: nothing to change in {model}; give --window or --rope_theta"
        )

    def fill(folder: Path) -> None:
        for path in weights:
            os.symlink(path.resolve(), folder / path.name)
        for path in others:
            shutil.copyfile(path, folder / path.name)  # follows the links of a hub cache
        if changes:
            _raise_limits(folder, config["max_position_embeddings"])
        write_json(folder / "config.json", config)
        changes.append(f"weights: {len(weights)} linked to {model.absolute()}, which must stay")
        changes.extend(write_template(model, folder, template))

    replace_folder(output, fill)
    return changes


def _lengthen(config: dict[str, Any], rope_theta: float | None, window: int | None) -> list[str]:
    """Set theta and window in ``config``, wherever transformers 4 or 5 reads them; returns lines on
    the changes.
    """
    old_theta, old_window = _rope_theta(config), config.get("max_position_embeddings")
    if not isinstance(old_window, int):
        raise ValueError("config.json: no max_position_embeddings; only text models are supported")
    present = {
        "model_type": config.get("model_type"),
        "rope_theta": old_theta,
        "max_position_embeddings": old_window,
    }
    if present == QWEN_MATH:
        rope_theta = QWEN_MATH_THINKING[0] if rope_theta is None else rope_theta
        window = QWEN_MATH_THINKING[1] if window is None else window
    if rope_theta is None and window is None:
        return []
    if window is not None and window < old_window:
        raise ValueError(
            f"--window={window}: must be at least {old_window}, the current max_position_embeddings"
        )
    if rope_theta is not None and not 0 < rope_theta < float("inf"):
        raise ValueError(f"--rope_theta={rope_theta}: must be a number above 0")
    for key in ("rope_parameters", "rope_scaling"):
        kind = _rope_kind(config.get(key))
        if kind not in PLAIN_ROPES:
            raise ValueError(
                f"config.json: {key} has the type {kind}, whose window depends on several numbers"
            )
    changes = []
    if rope_theta is not None and rope_theta != old_theta:
        _set_rope_theta(config, rope_theta)
        changes.append(f"rope theta: {_number(old_theta)} -> {_number(rope_theta)}")
    if window is not None and window != old_window:
        config["max_position_embeddings"] = window
        changes.append(f"window: {old_window} -> {window}")
    return changes


def _rope_kind(settings: Any) -> str:
    if not settings:
        return "default"
    if any(isinstance(value, dict) for value in settings.values()):
        return "per layer type"
    return str(settings.get("rope_type", settings.get("type", "default")))


def _rope_theta(config: dict[str, Any]) -> float | None:
    """Read as in transformers 5: the dictionaries take precedence over the plain key."""
    for settings in (config.get("rope_scaling"), config.get("rope_parameters"), config):
        if settings and settings.get("rope_theta") is not None:
            return float(settings["rope_theta"])
    return None


def _set_rope_theta(config: dict[str, Any], theta: float) -> None:
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    if parameters:
        parameters["rope_theta"] = theta
    if scaling and "rope_theta" in scaling:
        scaling["rope_theta"] = theta
    if not parameters or "rope_theta" in config:
        config["rope_theta"] = theta


def _files(model: Path) -> tuple[list[Path], list[Path]]:
    """The files of a model folder to link (weights and large files) and the other files, both
    sorted by name.
    """
    if not model.is_dir():
        raise FileNotFoundError(
            f"{model}: no such folder; for a hub name, `hf download {model}` prints the "
            "folder to use"
        )
    if not (model / "config.json").is_file():
        raise FileNotFoundError(f"{model}: no config.json in it; it is not a model folder")
    paths = sorted(path for path in model.iterdir() if not path.name.startswith("."))
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise FileNotFoundError(
            f"{missing[0]}: a link to a file that is gone; download the model again"
        )
    files = [path for path in paths if path.is_file()]
    weights = [path for path in files if path.suffix in WEIGHTS or path.stat().st_size > LARGE]
    if not weights:
        raise FileNotFoundError(
            f"{model}: no weights in it ({', '.join(WEIGHTS)}); download the model again"
        )
    return weights, [path for path in files if path not in weights]


def _raise_limits(folder: Path, window: int) -> None:
    """Raise or remove the settings of other files that would limit responses to the old window."""

    def tokenizer(settings: dict[str, Any]) -> None:
        if settings.get("model_max_length", window) < window:
            settings["model_max_length"] = window

    edit_json(folder / "tokenizer_config.json", tokenizer)
    edit_json(
        folder / "generation_config.json", lambda settings: settings.pop("max_new_tokens", None)
    )


def _number(value: float | None) -> str:
    if value is None:
        return "unset"
    return f"{value:g}" if value % 1 else str(int(value))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "exgrpo-data thinking-copy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a model's folder")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the folder to make")
    parser.add_argument(
        "--rope_theta", type=float, metavar="T", help="base of the rotary embedding"
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="tokens of prompt and response together"
    )
    text = (
        "own, extended; ChatML turns; plain text; step_by_step, the paper's prompt for "
        "Llama-3.1-8B base; or keep the "
        "model's own unchanged (default: see above)"
    )
    parser.add_argument("--template", choices=KINDS, default="auto", help=text)
    return parser


def main() -> None:
    """Make the copy and print the changes, or the error in one line."""
    options = _parser().parse_args()
    try:
        changes = thinking_copy(
            options.model.expanduser(),
            options.output.expanduser(),
            options.rope_theta,
            options.window,
            options.template,
        )
    except (ValueError, OSError) as error:
        sys.exit(f"exgrpo-data thinking-copy: error: {error}")
    print("\n  ".join([f"{options.output}: a thinking copy of {options.model}", *changes]))


if __name__ == "__main__":
    with in_one_line("exgrpo-data thinking-copy", "nothing was written"):
        main()
