"""Make a thinking copy of a model folder: a chat template that opens a thought, and a longer context where it is short.

    python -m exgrpo.thinking_copy MODEL OUTPUT [--rope_theta T] [--window N] [--template KIND]

MODEL is a local folder with config.json, such as the one that `hf download` prints; OUTPUT is a new folder. Weights are
symbolic links to the files of MODEL (they work from a hub cache and across file systems, and take no space), so MODEL
must stay where it is. Everything else is written anew; folders inside MODEL are left out.

Qwen2-Math and Qwen2.5-Math (rope theta 10000, window 4096) get theta 40000 and window 16384 without being asked, as
the released Elliott/Qwen2.5-Math-7B-16k-think has them. Any other model keeps its context unless --rope_theta or
--window is given.

The template is the model's own, followed by `<think>` and a new line where the answer begins. A model that has none
gets one with ChatML turns where <|im_start|> and <|im_end|> are in its vocabulary, else plain text behind its own first
token. Llama base gets plain text: its vocabulary has header tokens, but base training never touched them.

Generation stops where it stopped: a base model of Qwen at <|endoftext|>, as in the released training.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from exgrpo.saved.durable import replace_folder
from exgrpo.thinking_copy.template import KINDS, edit_json, read_json, write_json, write_template

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
LARGE = 100 << 20  # bytes; a file of any name that is larger is linked too
PLAIN_ROPES = ("default", "llama3")  # kinds of rope whose window is max_position_embeddings itself
QWEN_MATH = {"model_type": "qwen2", "rope_theta": 10_000, "max_position_embeddings": 4096}
QWEN_MATH_THINKING = (40_000.0, 16_384)  # rope theta, window


def thinking_copy(
    model: Path, output: Path, rope_theta: float | None = None, window: int | None = None, template: str = "auto"
) -> list[str]:
    """Make the copy.

    Args:
        rope_theta, window: of the copy; None: as they are, or those of the released copy for Qwen-Math.
        template: one of KINDS; ``auto``: the model's own if it has one, else ``chatml`` or ``plain``.

    Returns:
        Lines that say what was changed.

    Raises:
        ValueError, OSError: in one line; there is no OUTPUT then.
    """
    if output.exists() or output.is_symlink():
        raise FileExistsError(f"{output}: exists already; must be a new folder")
    weights, others = _files(model)
    config = read_json(model / "config.json")
    said = _lengthen(config, rope_theta, window)
    if not said and template == "keep":
        raise ValueError(f"--template=keep: nothing to change in {model}; give --window or --rope_theta")

    def fill(folder: Path) -> None:
        for path in weights:
            os.symlink(path.resolve(), folder / path.name)
        for path in others:
            shutil.copyfile(path, folder / path.name)  # of a hub's link, what it points to
        if said:
            _raise_limits(folder, config["max_position_embeddings"])
        write_json(folder / "config.json", config)
        said.append(f"weights: {len(weights)} linked to {model.absolute()}, which must stay")
        said.extend(write_template(model, folder, template))

    replace_folder(output, fill)
    return said


def _lengthen(config: dict[str, Any], rope_theta: float | None, window: int | None) -> list[str]:
    """Set theta and window in ``config``, wherever transformers 4 or 5 would read them; what was changed."""
    old_theta, old_window = _rope_theta(config), config.get("max_position_embeddings")
    if not isinstance(old_window, int):
        raise ValueError("config.json: no max_position_embeddings; only text models are supported")
    present = {"model_type": config.get("model_type"), "rope_theta": old_theta, "max_position_embeddings": old_window}
    if present == QWEN_MATH:
        rope_theta = QWEN_MATH_THINKING[0] if rope_theta is None else rope_theta
        window = QWEN_MATH_THINKING[1] if window is None else window
    if rope_theta is None and window is None:
        return []
    if window is not None and window < old_window:
        raise ValueError(f"--window={window}: must be at least {old_window}, the present max_position_embeddings")
    if rope_theta is not None and not 0 < rope_theta < float("inf"):
        raise ValueError(f"--rope_theta={rope_theta}: must be a number above 0")
    for key in ("rope_parameters", "rope_scaling"):
        kind = _rope_kind(config.get(key))
        if kind not in PLAIN_ROPES:
            raise ValueError(f"config.json: {key} is of the kind {kind}, whose window follows from several numbers")
    said = []
    if rope_theta is not None and rope_theta != old_theta:
        _set_rope_theta(config, rope_theta)
        said.append(f"rope theta: {_number(old_theta)} -> {_number(rope_theta)}")
    if window is not None and window != old_window:
        config["max_position_embeddings"] = window
        said.append(f"window: {old_window} -> {window}")
    return said


def _rope_kind(settings: Any) -> str:
    if not settings:
        return "default"
    if any(isinstance(value, dict) for value in settings.values()):
        return "one for each type of layer"
    return str(settings.get("rope_type", settings.get("type", "default")))


def _rope_theta(config: dict[str, Any]) -> float | None:
    """As transformers 5 reads it: the dictionaries before the plain key."""
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
    """The files of a model folder to link, which are weights or large, and the others; both by name."""
    if not model.is_dir():
        raise FileNotFoundError(
            f"{model}: no such folder; of a hub name, `hf download {model}` prints the folder to give"
        )
    if not (model / "config.json").is_file():
        raise FileNotFoundError(f"{model}: no config.json in it; it is no model folder")
    paths = sorted(path for path in model.iterdir() if not path.name.startswith("."))
    if gone := [path for path in paths if not path.exists()]:
        raise FileNotFoundError(f"{gone[0]}: a link to a file that is gone; download the model again")
    files = [path for path in paths if path.is_file()]
    weights = [path for path in files if path.suffix in WEIGHTS or path.stat().st_size > LARGE]
    if not weights:
        raise FileNotFoundError(f"{model}: no weights in it ({', '.join(WEIGHTS)}); download the model again")
    return weights, [path for path in files if path not in weights]


def _raise_limits(folder: Path, window: int) -> None:
    """Raise or remove what of the other files would hold answers to the former window."""

    def tokenizer(settings: dict[str, Any]) -> None:
        if settings.get("model_max_length", window) < window:
            settings["model_max_length"] = window

    edit_json(folder / "tokenizer_config.json", tokenizer)
    edit_json(folder / "generation_config.json", lambda settings: settings.pop("max_new_tokens", None))


def _number(value: float | None) -> str:
    return "unset" if value is None else f"{value:g}" if value % 1 else str(int(value))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exgrpo.thinking_copy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a model's folder")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the folder to make")
    parser.add_argument("--rope_theta", type=float, metavar="T", help="base of the rotary embedding")
    parser.add_argument("--window", type=int, metavar="N", help="tokens of prompt and response together")
    text = "the model's own, extended; turns in ChatML; plain text; or the model's own as it is (default: see above)"
    parser.add_argument("--template", choices=KINDS, default="auto", help=text)
    return parser


def main() -> None:
    """Make the copy and say what was changed, or why not in one line."""
    options = _parser().parse_args()
    try:
        said = thinking_copy(
            options.model.expanduser(),
            options.output.expanduser(),
            options.rope_theta,
            options.window,
            options.template,
        )
    except (ValueError, OSError) as error:
        sys.exit(f"exgrpo: {error}")
    print("\n  ".join([f"{options.output}: a thinking copy of {options.model}", *said]))


if __name__ == "__main__":
    main()
