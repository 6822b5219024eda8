"""The settings of one evaluation: the values of its flags, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from exgrpo_eval import benchmark_files
from exgrpo_eval.generate.templates import TEMPLATES

MANY = {
    name: benchmark.samples for name, benchmark in benchmark_files.known().items()
}  # per question, without --n
DEBUG_QUESTIONS = 10  # per benchmark, with --debug


@dataclass(frozen=True)
class Settings:
    """All flags of one run. `n` maps a benchmark to its samples per question; "" is for all others.

    `remove_system` is None where the model decides (generate_vllm.evaluate).
    """

    model_path: str | None
    input_file: list[str]
    output_file: Path
    template: str
    remove_system: bool | None
    temperature: float
    top_p: float
    max_tokens: int
    n: dict[str, int]
    add_oat_evaluate: bool
    any_true: bool
    force_generate: bool
    add_think_before_answer: bool
    no_split_think: bool
    skip_scoring: bool
    debug: bool
    seed: int
    limit: int | None
    restart: bool
    max_num_seqs: int | None
    tensor_parallel_size: int | None
    data_parallel_size: int | None
    gpu_memory_utilization: float
    dtype: str
    grade_only: Path | None
    base_url: str | None
    served_model: str | None
    api_key_env: str | None
    reward: str | None = None
    reward_kwargs: list[str] | None = None

    def __post_init__(self) -> None:
        """ValueError, naming the flag and its value, at the first wrong one."""
        self._check_source()
        need(
            self.template in TEMPLATES,
            "template",
            self.template,
            f"must be one of {', '.join(TEMPLATES)}",
        )
        need(
            0 <= self.temperature < math.inf,
            "temperature",
            self.temperature,
            "must be 0 (greedy) or more",
        )
        need(0 < self.top_p <= 1, "top_p", self.top_p, "must be above 0 and at most 1")
        need(
            0 < self.gpu_memory_utilization <= 1,
            "gpu_memory_utilization",
            self.gpu_memory_utilization,
            "0 to 1",
        )
        for name in (
            "max_tokens",
            "limit",
            "max_num_seqs",
            "tensor_parallel_size",
            "data_parallel_size",
        ):
            value = getattr(self, name)
            need(value is None or value >= 1, name, value, "must be 1 or more")
        for benchmark, samples in self.n.items():
            value = f"{benchmark}={samples}" if benchmark else str(samples)
            need(samples >= 1, "n", value, "must be 1 or more samples per question")
            need(
                samples == 1 or self.temperature > 0,
                "n",
                value,
                "must be 1 at --temperature 0: all would be alike",
            )
        need(
            not self.any_true or self.add_oat_evaluate, "any_true", True, "needs --add_oat_evaluate"
        )
        need(
            not (self.reward and self.add_oat_evaluate) or Path(self.reward).is_dir(),
            "reward",
            self.reward,
            "not with --add_oat_evaluate, whose verdict then counts",
        )
        need(self.seed >= 0, "seed", self.seed, "must be 0 or more")
        suffix = self.output_file.suffix
        need(suffix == ".jsonl", "output_file", self.output_file, "must end in .jsonl")

    def _check_source(self) -> None:
        """Check where responses come from: a model and question files, a server, or a file of
        responses.
        """
        for name in ("served_model", "api_key_env"):
            need(
                self.base_url or not getattr(self, name),
                name,
                getattr(self, name),
                "needs --base_url",
            )
        if self.grade_only:
            need(
                not self.base_url,
                "base_url",
                self.base_url,
                "not with --grade_only, which generates nothing",
            )
            need(
                not self.skip_scoring,
                "skip_scoring",
                True,
                "leaves nothing to do with --grade_only",
            )
            need(
                self.limit is None,
                "limit",
                self.limit,
                "not with --grade_only, which grades the whole file",
            )
            need(not self.n, "n", self.n_text, "not with --grade_only, which generates nothing")
            other = (
                self.output_file.resolve() != self.grade_only.resolve()
            )  # one file has many paths
            need(other, "output_file", self.output_file, "is the file of --grade_only")
            return
        need(self.input_file, "input_file", None, "must be given, or --grade_only FILE")
        if self.base_url:
            need(
                self.base_url.startswith(("http://", "https://")),
                "base_url",
                self.base_url,
                "must begin with http",
            )
            for name in ("model_path", "tensor_parallel_size", "data_parallel_size"):
                need(
                    not getattr(self, name),
                    name,
                    getattr(self, name),
                    "not with --base_url, whose server has the model",
                )
            return
        need(
            self.model_path,
            "model_path",
            self.model_path,
            "must be given, or --base_url URL, or --grade_only FILE",
        )

    @property
    def question_limit(self) -> int | None:
        """Number of questions of each benchmark; None for all."""
        return self.limit or (DEBUG_QUESTIONS if self.debug else None)

    @property
    def n_text(self) -> str:
        """--n in the form of a command line."""
        parts = [f"{name}={count}" if name else str(count) for name, count in self.n.items()]
        return ",".join(parts) or "auto"

    def samples(self, benchmark: str, repeats: int) -> int:
        """Samples per distinct question of a benchmark whose file repeats it `repeats` times."""
        chosen = self.n.get(benchmark, self.n.get(""))
        if chosen is not None:
            return chosen
        if self.temperature == 0:
            return 1
        return repeats if repeats > 1 else MANY.get(benchmark, 1)


def need(holds: object, name: str, value: object, rule: str) -> None:
    """ValueError ``--name=value: rule`` unless it holds."""
    if not holds:
        raise ValueError(f"--{name}={value}: {rule}")
