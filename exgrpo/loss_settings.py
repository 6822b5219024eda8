"""The settings of the mixed loss, checked; no torch, so that a wrong one is refused before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_NAMED_RESHAPES = ("no_reshape", "logp", "p_logp", "square_root", "pow")
_P_DIV_P = "p_div_p_"


@dataclass(frozen=True)
class LossSettings:
    """Which variant of the loss; names and values of the released code, -1 standing for "off".

    Attributes:
        cliprange_low, cliprange_high: PPO's clip range of fresh tokens, 1 - low to 1 + high.
        clip_upper_bound: the upper end of that range where it is the greater of the two.
        off_policy_reshape: f of replayed tokens: ``no_reshape`` w; ``p_div_p_<beta>`` w/(w+beta); ``square_root``
            w^.5; ``pow`` w^off_policy_reshape_pow_exp; ``logp`` weight * log pi; ``p_logp`` w + weight * log pi.
        on_policy_reshape: of fresh tokens: ``p_div_p_<beta>`` g(pi)/g(pi_old) with g(p) = p/(p+beta); ``logp`` log w;
            ``p_logp`` w + weight * log w; the others as above.
        off_policy_max_clip, off_policy_min_clip: bounds of f(w) of replayed tokens.
        all_max_clip: tokens to which the current policy gives a higher probability than this add nothing.
        loss_remove_clip: no PPO clipping of fresh tokens (Appendix D, once mixing has begun).

    Raises:
        ValueError: one line with key, value and what is allowed.
    """

    cliprange_low: float = 0.2
    cliprange_high: float = 0.2
    off_policy_reshape: str = "p_div_p_0.1"
    off_policy_reshape_weight: float = 1.0
    off_policy_reshape_pow_exp: float = 0.5
    on_policy_reshape: str = "no_reshape"
    on_policy_reshape_weight: float = 1.0
    on_policy_reshape_pow_exp: float = 0.5
    off_policy_max_clip: float = -1.0
    off_policy_min_clip: float = -1.0
    all_max_clip: float = -1.0
    loss_remove_clip: bool = True
    clip_upper_bound: float = 1.0

    def __post_init__(self) -> None:
        for key in ("off_policy_reshape", "on_policy_reshape"):
            beta_of(getattr(self, key), key)
        for key in ("off_policy_max_clip", "off_policy_min_clip", "all_max_clip"):
            if getattr(self, key) != -1 and not getattr(self, key) > 0:
                raise ValueError(f"policy_loss.{key}={getattr(self, key)}: must be a positive number, or -1 for off")
        for key in ("cliprange_low", "cliprange_high", "clip_upper_bound"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key}={getattr(self, key)}: must be a number of 0 or more")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> LossSettings:
        """Settings by name; values may be strings, as a command line gives them.

        Raises:
            ValueError: no such setting, or a value that is not allowed.
        """
        kinds = {field.name: type(field.default) for field in fields(cls)}
        return cls(**{name: _typed(name, value, kinds) for name, value in settings.items()})

    @property
    def reads_log_prob(self) -> bool:
        """Whether a reshape needs log pi, not only the log-ratio."""
        return self.off_policy_reshape in ("logp", "p_logp") or self.on_policy_reshape.startswith(_P_DIV_P)


def _typed(name: str, value: Any, kinds: Mapping[str, type]) -> Any:
    if name not in kinds:
        raise ValueError(f"policy_loss.{name}={value}: no such key; known keys are {', '.join(kinds)}")
    words = {"true": True, "false": False}
    try:
        return words[str(value).lower()] if kinds[name] is bool else kinds[name](value)
    except (KeyError, ValueError):
        allowed = "true or false" if kinds[name] is bool else "a number"
        raise ValueError(f"policy_loss.{name}={value}: must be {allowed}") from None


def beta_of(name: str, key: str) -> float | None:
    """beta of the reshape ``p_div_p_<beta>``, None for those that have a name; ValueError for what is neither."""
    if name in _NAMED_RESHAPES:
        return None
    try:
        beta = float(name.removeprefix(_P_DIV_P)) if name.startswith(_P_DIV_P) else math.nan
    except ValueError:
        beta = math.nan
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(
            f"policy_loss.{key}={name}: must be {', '.join(_NAMED_RESHAPES)} or p_div_p_<beta> with beta above 0, "
            "such as p_div_p_0.1"
        )
    return beta
