"""The model's folder: the files it must have, and a hash that identifies it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
WEIGHTS = ("*.safetensors", "*.bin")
SAMPLE = 1 << 20  # bytes


def find(model_path: str) -> Path:
    """The complete folder of a model; a hub name is fetched from the hub or its cache.

    Raises:
        ValueError: there is none, or a file is missing.
    """
    folder = Path(model_path).expanduser()
    if not folder.is_dir():
        folder = _from_hub(model_path)
    lacks = _lacks(folder)
    if lacks:
        raise ValueError(
            f"--model_path={model_path}: has no {lacks}; must be a model in the Hugging Face format"
        )
    return folder


def _from_hub(name: str) -> Path:
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise ValueError(f"--model_path={name}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, ignore_patterns=["*.pth", "*.gguf", "original/*"]))
    except Exception as error:  # the hub, a proxy or the cache may raise any error
        raise ValueError(
            f"--model_path={name}: no such folder, and not available from the hub"
        ) from error


def _lacks(folder: Path) -> str | None:
    """What is missing in a model folder; None if it is complete."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return "tokenizer (" + ", ".join(TOKENIZERS[:2]) + ", ...)"
    if not _weights(folder):
        return "weights (*.safetensors)"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        parts = set(json.loads(index.read_text())["weight_map"].values())
        return next((part for part in sorted(parts) if not (folder / part).is_file()), None)
    return None


def _weights(folder: Path) -> list[Path]:
    return sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))


def weight_bytes(folder: Path) -> int:
    """Size of the weights on disk."""
    return sum(path.stat().st_size for path in _weights(folder))


def sha256(folder: Path) -> str:
    """Hash of the model: small files completely; for weights their names, sizes, and a MiB at
    start, middle and end.

    Checkpoints of one run differ only in the numbers, so names and sizes would not distinguish
    them.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jinja", ".model", ".txt") and path.is_file():
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
    for path in _weights(folder):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for start in (0, size // 2, max(0, size - SAMPLE)):
                file.seek(start)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Hash of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
