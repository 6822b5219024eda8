"""The settings of the mixed loss, checked without torch: before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from exgrpo.open_table import REFERENCES, is_reference, load_reference
from exgrpo.refusal import refuse

NAMED_RESHAPES = ("no_reshape", "logp", "p_logp", "square_root", "pow")
RESHAPE_PARAMETERS = ("log_ratio", "log_prob", "weight", "pow_exp")
SHAPED = "shaped"  # the loss of replayed tokens that is made of a reshape
LIKELIHOOD = "likelihood"  # the loss of rehearsal, aggregated by itself
REPLAY_LOSS_NAMES = (SHAPED, "clip", "topr", LIKELIHOOD)
REPLAY_LOSS_PARAMETERS = ("log_ratio", "log_prob", "advantages", "replayed", "settings")
REPLAY_LOSS_ROWS = ("rows",)  # what such a loss may take besides
_P_DIV_P = "p_div_p_"  # p / (p + beta); beta follows in the name
_FINITE = [
    f"{side}_policy_reshape_{name}" for side in ("off", "on") for name in ("weight", "pow_exp")
]


def _key(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class LossSettings:
    """The variant of the loss; names and values are the released code's, -1 means "off".

    A reshape is ``no_reshape`` w, ``p_div_p_<beta>`` w / (w + beta), ``square_root`` w^.5, ``pow``
    w^pow_exp, ``logp`` or ``p_logp``, or a rule of your own (:mod:`exgrpo.mix_core_alg`). For fresh
    tokens ``p_div_p_<beta>`` is g(pi) / g(pi_old) with g(p) = p / (p + beta), and ``logp`` is log
    w.

    Raises:
        ValueError: one line with key, value and what is allowed.
    """

    cliprange_low: float = _key(0.2, "PPO's clip range of fresh tokens, below 1")
    cliprange_high: float = _key(0.2, "PPO's clip range of fresh tokens, above 1")
    off_policy_loss: str = _key(
        SHAPED,
        "loss of replayed tokens: shaped, -f(w) A with off_policy_reshape (as published); clip, "
        "topr; likelihood, for trainer.exp_place=beside; or your own rule",
    )
    likelihood_weight: float = _key(
        1.0,
        "of likelihood: weight of a row's mean -log pi",
    )
    off_policy_reshape: str = _key(
        "p_div_p_0.1",
        "f(w) of replayed tokens: p_div_p_<beta>, no_reshape, logp, p_logp, square_root, pow, or "
        "your own rule",
    )
    off_policy_reshape_weight: float = _key(1.0, "of logp and p_logp: weight of the log-prob")
    off_policy_reshape_pow_exp: float = _key(0.5, "of pow: the exponent")
    on_policy_reshape: str = _key(
        "no_reshape", "reshape of the ratio of fresh tokens; the same choices"
    )
    on_policy_reshape_weight: float = _key(1.0, "of p_logp: weight of the log-ratio")
    on_policy_reshape_pow_exp: float = _key(0.5, "of pow: the exponent")
    off_policy_max_clip: float = _key(-1.0, "upper bound of f(w) of replayed tokens; -1: off")
    off_policy_min_clip: float = _key(-1.0, "lower bound of f(w) of replayed tokens; -1: off")
    all_max_clip: float = _key(
        -1.0,
        "tokens with a higher probability than this under the current policy have no loss; -1: off",
    )
    loss_remove_clip: bool = _key(
        True, "no PPO clipping of fresh tokens either, once mixing has begun (Appendix D)"
    )
    clip_upper_bound: float = _key(
        1.0, "upper clip bound of fresh tokens, if above 1 + clip_ratio_high"
    )

    def __post_init__(self) -> None:
        check_replay_loss(self.off_policy_loss)
        for key in ("off_policy_reshape", "on_policy_reshape"):
            check_reshape(getattr(self, key), key)
        for key in _FINITE:
            if not math.isfinite(getattr(self, key)):
                refuse(f"policy_loss.{key}", getattr(self, key), "a finite number")
        for key in ("off_policy_max_clip", "off_policy_min_clip", "all_max_clip"):
            bound = getattr(self, key)
            if bound != -1 and not 0 < bound < math.inf:
                refuse(f"policy_loss.{key}", bound, "a finite number above 0, or -1 for off")
        if not 0 <= self.likelihood_weight < math.inf:
            refuse("policy_loss.likelihood_weight", self.likelihood_weight, "a number of 0 or more")
        low, high = self.off_policy_min_clip, self.off_policy_max_clip
        if 0 < high <= low:
            raise ValueError(
                f"policy_loss.off_policy_max_clip={high}: must be above "
                f"policy_loss.off_policy_min_clip={low}, or -1 for off"
            )
        if low >= 1 and self.off_policy_reshape.startswith(_P_DIV_P):
            refuse("policy_loss.off_policy_min_clip", low, "below 1, as all f(w) of p_div_p are")
        for key in ("cliprange_low", "cliprange_high", "clip_upper_bound"):
            bound = getattr(self, key)
            if not 0 <= bound < math.inf:
                refuse(key, bound, "a number of 0 or more")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> LossSettings:
        """Settings by name; values may be strings, as from a command line.

        Raises:
            ValueError: no such setting, or a value that is not allowed.
        """
        kinds = {setting.name: type(setting.default) for setting in fields(cls)}
        return cls(**{name: _typed(name, value, kinds) for name, value in settings.items()})

    @property
    def reads_log_prob(self) -> bool:
        """Whether a reshape needs log pi, not only the log-ratio."""
        reshapes = self.off_policy_reshape, self.on_policy_reshape
        return (
            self.off_policy_loss != SHAPED
            or self.off_policy_reshape in ("logp", "p_logp")
            or self.on_policy_reshape.startswith(_P_DIV_P)
            or any(map(is_reference, reshapes))
        )


def _typed(name: str, value: Any, kinds: Mapping[str, type]) -> Any:
    if name not in kinds:
        known = f"known keys are {', '.join(kinds)}"
        raise ValueError(f"policy_loss.{name}={value}: no such key; {known}")
    words = {"true": True, "false": False}
    try:
        return words[str(value).lower()] if kinds[name] is bool else kinds[name](value)
    except (KeyError, ValueError, TypeError, OverflowError):
        allowed = "true or false" if kinds[name] is bool else "a number"
        raise ValueError(f"policy_loss.{name}={value}: must be {allowed}") from None


def beta_of(name: str) -> float | None:
    """beta of the reshape ``p_div_p_<beta>``; None for any other name."""
    if not name.startswith(_P_DIV_P):
        return None
    try:
        return float(name.removeprefix(_P_DIV_P))
    except ValueError:
        return math.nan


def check_reshape(name: str, key: str) -> None:
    """ValueError unless `name` is a reshape, or a reference to a function with its signature."""
    beta = beta_of(name)
    if is_reference(name):
        load_reference(f"policy_loss.{key}", name, RESHAPE_PARAMETERS)
    elif name not in NAMED_RESHAPES and not (beta is not None and 0 < beta < math.inf):
        raise ValueError(
            f"policy_loss.{key}={name}: must be {', '.join(NAMED_RESHAPES)} or p_div_p_<beta> with "
            f"beta above 0, such as p_div_p_0.1, or {REFERENCES}"
        )


def check_replay_loss(name: str) -> None:
    """ValueError unless `name` is a loss of replayed rows, or refers to one with its signature."""
    key = "policy_loss.off_policy_loss"
    if is_reference(name):
        load_reference(key, name, REPLAY_LOSS_PARAMETERS, REPLAY_LOSS_ROWS)
    elif name not in REPLAY_LOSS_NAMES:
        refuse(key, name, f"one of {', '.join(REPLAY_LOSS_NAMES)}, or {REFERENCES}")
