"""The console command `exgrpo-eval`: the scripts of this folder by name."""

from exgrpo_tools.commands import run

SCRIPTS = {
    "generate": ("exgrpo_eval.generate.command", "sample answers with vLLM, judge them, report"),
    "report": ("exgrpo_eval.reports.command", "make a run's report again"),
    "compare": ("exgrpo_eval.compare", "compare runs, paired by question"),
    "sample-size": (
        "exgrpo_eval.estimate.sample_size",
        "how many questions and samples a difference needs",
    ),
    "export": (
        "exgrpo_eval.export.__main__",
        "a run for lighteval, Hugging Face, inspect, EveryEvalEver",
    ),
}


def main() -> None:
    """`exgrpo-eval NAME flags`."""
    run("exgrpo-eval", SCRIPTS)


if __name__ == "__main__":
    main()
