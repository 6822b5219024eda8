"""The console command `exgrpo-data`: the scripts of this folder by name."""

from exgrpo_tools.commands import run

SCRIPTS = {
    "train": ("exgrpo_data.prepare_train", "questions to verl's training rows"),
    "eval": ("exgrpo_data.prepare_eval", "benchmarks to evaluation files"),
    "thinking-copy": (
        "exgrpo_data.thinking_copy",
        "a copy of a model whose prompts open a thought",
    ),
}


def main() -> None:
    """`exgrpo-data NAME flags`."""
    run("exgrpo-data", SCRIPTS)


if __name__ == "__main__":
    main()
