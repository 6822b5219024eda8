"""The `trainer.*` keys of experience replay as one frozen, validated dataclass.

Everything is checked here, once; code that holds an ExperienceConfig never doubts it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn

Metric = Literal["ent", "ppl", "random"]
SelectMode = Literal["argmin", "argmax"]
SampleRange = Literal["all", "first_half", "last_half"]
MissingLogProbs = Literal["current", "one"]
BucketMethod = Literal["normal", "linear", "sqrt", "linear_clip", False]

_ROLLOUT_N = "actor_rollout_ref.rollout.n"
_OUR_PREFIXES = ("exp_", "experience_")


@dataclass(frozen=True)
class ExperienceConfig:
    """Settings of experience replay; names and defaults as in the released script where it has the key.

    Values may be given as strings, as a command line gives them; after construction each field has its proper type.

    Attributes:
        rollout_n: K, rollouts per question (`actor_rollout_ref.rollout.n`), at least 2.
        experience: whether replay is on.
        experience_ratio: rho of the objective, the share of a batch's questions that are replayed, 0 to 1.
        experience_start_sratio: mixing begins once a batch's share of correct fresh rollouts exceeds this, and never
            ends (delayed start); 0 means from the first step.
        experience_lbound, experience_rbound: a question is collected and drawn while lbound < successes <= rbound
            (counts out of K). None for rbound becomes K - 1.
        exp_metric: what the trajectory is selected by: mean token entropy, perplexity, or nothing.
        exp_select_mode: whether the lowest or the highest value of the metric wins.
        exp_sample_range: which half of the eligible questions, in their order of entry to the pool, may be drawn.
        exp_bucket_manager: how bucket probabilities follow from success counts; False draws uniformly over questions.
        exp_is_correct: use the recorded log-probs as the denominator of the importance ratio.
        exp_bucket_mean: mean of the normal weights, as a fraction of K.
        exp_bucket_sigma: standard deviation of the normal weights, in success counts (the paper prints a fraction; over
            fractions a sigma of 1 would be almost uniform, which does not give its Table 3).
        exp_seed: seed of the generators of replay.
        exp_min_ess: a candidate is passed over if the effective sample size of its importance ratios, as a share of its
            tokens, is below this; 0: none is.
        exp_max_candidates: of a question's candidates only so many are scored under the current policy: those with the
            lowest recorded value of the metric (with `argmax` the highest; unknown ones before any). 1: the recorded
            value decides and no model is asked; None: all are scored. What exp_min_ess passes over is among them.
        exp_missing_log_probs: what a trajectory without recorded log-probs is weighed against: `current`, this step's
            policy, or `one`, an author who was certain of each token (LUFFY).
        experience_import: a pool made by `python -m exgrpo.inspect --import`, which a new run starts with; or None.
        experience_max_per_question, experience_max_trajectories: bounds of the pool, in trajectories.
        experience_max_bytes: bound of the pool's memory, 8 bytes a token and 200 a trajectory.
        experience_max_age: bound of a trajectory's age when it is replayed, in steps; None for none.
        experience_skip_retired: an epoch of fresh questions leaves out those that were retired when it began (released
            code); False: a retired question is asked again.

    Raises:
        ValueError: one line with the key, the value and what is allowed.
    """

    rollout_n: int
    experience: bool = True
    experience_ratio: float = 0.5
    experience_start_sratio: float = 0.35
    experience_lbound: int = 0
    experience_rbound: int | None = None
    exp_metric: Metric = "ent"
    exp_select_mode: SelectMode = "argmin"
    exp_sample_range: SampleRange = "all"
    exp_bucket_manager: BucketMethod = "normal"
    exp_is_correct: bool = True
    exp_bucket_mean: float = 0.5
    exp_bucket_sigma: float = 1.0
    exp_seed: int = 0
    exp_min_ess: float = 0.0
    exp_max_candidates: int | None = None
    exp_missing_log_probs: MissingLogProbs = "current"
    experience_import: str | None = None
    experience_max_per_question: int = 8
    experience_max_trajectories: int = 200_000
    experience_max_bytes: int = 8_000_000_000
    experience_max_age: int | None = None
    experience_skip_retired: bool = True

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            key = _ROLLOUT_N if name == "rollout_n" else f"trainer.{name}"
            object.__setattr__(self, name, check(key, getattr(self, name)))
        if self.experience_rbound is None:
            object.__setattr__(self, "experience_rbound", self.rollout_n - 1)
        lbound, rbound = self.experience_lbound, self.eligible_buckets.stop - 1
        if rbound > self.rollout_n:
            _refuse("trainer.experience_rbound", rbound, f"at most {_ROLLOUT_N}={self.rollout_n}")
        if lbound >= rbound:
            _refuse("trainer.experience_lbound", lbound, f"less than trainer.experience_rbound={rbound}")

    @classmethod
    def from_mapping(cls, trainer: Mapping[str, Any], rollout_n: int) -> ExperienceConfig:
        """Pick our keys out of verl's `trainer` node (a dict or an OmegaConf DictConfig); other keys are ignored.

        Raises:
            ValueError: a value is not allowed, or a key looks like one of ours but is not.
        """
        known = [field.name for field in fields(cls) if field.name != "rollout_n"]
        for key in trainer:
            if str(key).startswith(_OUR_PREFIXES) and key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean trainer.{close[0]}?" if close else f"known keys are {', '.join(known)}"
                raise ValueError(f"trainer.{key}: no such key; {hint}")
        return cls(rollout_n=rollout_n, **{key: trainer[key] for key in known if key in trainer})

    @property
    def eligible_buckets(self) -> range:
        """The success counts whose questions are collected and drawn: lbound < k <= rbound."""
        assert self.experience_rbound is not None  # __post_init__ has put the default in its place
        return range(self.experience_lbound + 1, self.experience_rbound + 1)


def _refuse(key: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f"{key}={value}: must be {allowed}")


def _is_null(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))


def _boolean(key: str, value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word is True or word == "true":
        return True
    if word is False or word == "false":
        return False
    _refuse(key, value, "true or false")


def _as_float(value: Any) -> float:
    """The number in `value`; NaN, which no range contains, where there is none."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _fraction(key: str, value: object) -> float:
    number = _as_float(value)
    if not 0.0 <= number <= 1.0:
        _refuse(key, value, "a number between 0 and 1")
    return number


def _positive(key: str, value: object) -> float:
    number = _as_float(value)
    if not 0.0 < number < math.inf:
        _refuse(key, value, "a finite number above 0")
    return number


def _integer(low: int) -> Callable[[str, object], int]:
    def check(key: str, value: object) -> int:
        number = _as_float(value)
        if not (low <= number < 2**53 and number.is_integer()):
            _refuse(key, value, f"an integer of at least {low}")
        return int(number)

    return check


def _optional_integer(low: int) -> Callable[[str, object], int | None]:
    check = _integer(low)
    return lambda key, value: None if _is_null(value) else check(key, value)


def _optional_path(key: str, value: object) -> str | None:
    if _is_null(value):
        return None
    if not isinstance(value, str) or not value.strip():
        _refuse(key, value, "the path of a saved pool, or null")
    return value


def _one_of(*allowed: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            _refuse(key, value, f"one of {', '.join(allowed)}")
        return value

    return check


def _bucket_method(key: str, value: object) -> str | Literal[False]:
    if _is_null(value) or value is False or (isinstance(value, str) and value.strip().lower() == "false"):
        return False
    methods = ("normal", "linear", "sqrt", "linear_clip")
    if not isinstance(value, str) or value not in methods:
        _refuse(key, value, f"one of {', '.join(methods)}, False")
    return value


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "rollout_n": _integer(2),
    "experience": _boolean,
    "experience_ratio": _fraction,
    "experience_start_sratio": _fraction,
    "experience_lbound": _integer(0),
    "experience_rbound": _optional_integer(1),
    "exp_metric": _one_of("ent", "ppl", "random"),
    "exp_select_mode": _one_of("argmin", "argmax"),
    "exp_sample_range": _one_of("all", "first_half", "last_half"),
    "exp_bucket_manager": _bucket_method,
    "exp_is_correct": _boolean,
    "exp_bucket_mean": _fraction,
    "exp_bucket_sigma": _positive,
    "exp_seed": _integer(0),
    "exp_min_ess": _fraction,
    "exp_max_candidates": _optional_integer(1),
    "exp_missing_log_probs": _one_of("current", "one"),
    "experience_import": _optional_path,
    "experience_max_per_question": _integer(1),
    "experience_max_trajectories": _integer(1),
    "experience_max_bytes": _integer(1),
    "experience_max_age": _optional_integer(1),
    "experience_skip_retired": _boolean,
}
