"""A user's functions, each called once on a toy step: an error in one of them would otherwise end a
run that has loaded its models, or teach it nonsense.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig

from exgrpo import full_grader
from exgrpo.experience import rules
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.loss_settings import LossSettings
from exgrpo.math_verify_reward import FULL
from exgrpo.open_table import is_reference, load_function
from exgrpo.refusal import shown

REWARD_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")


class _Call(NamedTuple):
    """A call of a rule, what it must return in words, and the test of it."""

    key: str
    reference: str
    arguments: tuple[Any, ...]
    must: str
    right: Callable[[Any], bool]


def verify_rules(experience: ExperienceConfig, losses: LossSettings) -> None:
    """ValueError with a line for each rule that raises or returns what it must not."""
    calls = [call for call in _of_replay(experience) if is_reference(call.reference)]
    names = ("off_policy_reshape", "on_policy_reshape", "off_policy_loss")
    calls += [_of_loss(name, losses) for name in names if is_reference(getattr(losses, name))]
    wrong = dict.fromkeys(line for call in calls if (line := _wrong(call)))
    if wrong:
        raise ValueError("\n".join(wrong))


def verify_reward(settings: DictConfig) -> None:
    """ValueError for a reward that cannot be loaded, or that does not take what verl hands it.

    Args:
        settings: ``reward.custom_reward_function``.
    """
    if not settings.path:
        return  # verl then judges by data_source
    kwargs = dict(settings.get("reward_kwargs") or {})
    ours = settings.path == "pkg://exgrpo.math_verify_reward"
    if ours and importlib.util.find_spec("math_verify") is None:  # every answer would be wrong
        raise ValueError("reward.custom_reward_function: the package math-verify is not installed")
    if ours and kwargs.get("grader") == FULL:
        full_grader.package()
    key, path = "reward.custom_reward_function.path", str(settings.path).removeprefix("file://")
    if path.startswith("pkg://"):
        path = "pkg://" + path.removeprefix("pkg://").replace("/", ".")
    reward = load_function(key, f"{path}:{settings.name}")
    signature = inspect.signature(reward)
    unknown = kwargs.keys() - signature.parameters.keys()
    # ours takes any name, for what verl adds
    if unknown and ours:
        known = ", ".join(sorted(signature.parameters.keys() - {*REWARD_PARAMETERS, "_"}))
        given = f"reward.custom_reward_function.reward_kwargs.{min(unknown)}"
        raise ValueError(f"{given}={kwargs[min(unknown)]}: no such key; known keys are {known}")
    limit = kwargs.get("timeout_s", 1) if ours else 1
    if not (isinstance(limit, int | float) and 0 < limit < math.inf):
        given = f"reward.custom_reward_function.reward_kwargs.timeout_s={limit}"
        raise ValueError(f"{given}: must be a number of seconds above 0")
    try:
        signature.bind(**dict.fromkeys(REWARD_PARAMETERS) | kwargs)
    except TypeError as error:
        raise ValueError(
            f"{key}={settings.path}: {settings.name} must take the arguments "
            f"{', '.join(REWARD_PARAMETERS)} by these names, and those of reward_kwargs "
            f"({', '.join(kwargs)}; **settings takes any): {error}"
        ) from None


def _wrong(call: _Call) -> str | None:
    # the settings have checked what it takes
    rule = load_function(call.key, call.reference)
    try:
        made: Any = rule() if inspect.isclass(rule) else rule
        given = made(*call.arguments)
    except Exception as error:  # a user's rule may raise any error
        why = " ".join(str(error).split())[:200]
        said = f"raises {type(error).__name__} ({why})"
    else:
        # raised where it is nothing that could be compared
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if call.right(given):
                return None
        shape = f" of shape {list(given.shape)}" if hasattr(given, "shape") else ""
        said = f"returns {shown(repr(given), 80)}{shape}"
    return f"{call.key}={call.reference}: {said} for a toy step: must return {call.must}"


def _of_replay(config: ExperienceConfig) -> Iterator[_Call]:
    """The rules of replay, on three groups: partly, never and always solved."""
    k = config.rollout_n
    success = Trajectory([5, 6, 7], [-0.5, -0.1, -1.0], step=1, entropy=0.6, grader="strict")
    entropies_T, log_probs_T = np.array([0.7, 0.4, 0.6]), np.array([-0.4, -0.2, -0.9])
    groups = [
        RolloutGroup("a", k - 1, (success,), 1, rewards=(1.0,) + (0.0,) * (k - 2)),
        RolloutGroup("b", k, (), rewards=(0.0,) * k),
        RolloutGroup("c", k, (success,) * k, rewards=(1.0,) * k),
    ]

    def call(key: str, *how: Any) -> _Call:
        return _Call(f"trainer.{key}", getattr(config, key), *how)

    yield call(
        "exp_bucket_manager",
        (np.arange(1, k + 1, dtype=np.float64), k, config.exp_bucket_mean, config.exp_bucket_sigma),
        f"{k} log-weights, one for each count from 1 to {k}, finite or -inf, and not -inf for all",
        lambda given: _are_log_weights(given, k),
    )
    scored = (entropies_T, log_probs_T, success)
    yield call("exp_metric", scored, "a number", lambda given: not math.isnan(float(given)))
    yield call(
        "exp_difficulty",
        (groups, k),
        f"an integer from 0 to {k} for each of the {len(groups)} groups",
        lambda given: _are_buckets(given, len(groups), k),
    )
    both = (True, False)
    for group in groups:
        yield call("exp_retirement", (group, k), "true or false", lambda given: given in both)
    yield call("exp_eviction", (success,), "a number", lambda given: not math.isnan(float(given)))
    yield call("exp_same", (success,), "a key that can be hashed", lambda given: bool({given}))
    three = np.array([1, 2, 3])
    of_questions = rules.QuestionFacts(np.minimum(three, k), three, three - 2, three - 2)
    of_groups = rules.GroupFacts(three - 1, three / 3, three / 8)
    weights = "3 finite weights of 0 or more"
    yield call("exp_question_choice", (of_questions, 3), weights, lambda given: _are_weights(given))
    yield call("exp_group_choice", (of_groups, 3), weights, lambda given: _are_weights(given))


def _are_weights(given: Any) -> bool:
    weights = np.asarray(given, dtype=np.float64)
    return weights.shape == (3,) and bool((np.isfinite(weights) & (weights >= 0)).all())


def _are_log_weights(given: Any, rollout_n: int) -> bool:
    weights = np.asarray(given, dtype=np.float64)
    known = not np.isnan(weights).any() and weights.max() < math.inf
    return weights.shape == (rollout_n,) and bool(known) and bool(weights.max() > -math.inf)


def _are_buckets(given: Any, count: int, rollout_n: int) -> bool:
    listed = isinstance(given, Sequence | np.ndarray) and len(given) == count
    return listed and all(bucket in range(rollout_n + 1) for bucket in given)


def _of_loss(name: str, settings: LossSettings) -> _Call:
    """A rule of the loss, on two rows of three tokens; needs torch, which is imported now alone."""
    import torch

    from exgrpo.replay_losses import ReplayRows, takes_rows

    log_prob = torch.tensor([[-0.4, -0.2, -0.9], [-1.0, -0.3, -0.1]], requires_grad=True)
    log_ratio = log_prob - torch.tensor([[-0.5, -0.1, -1.0], [-0.8, -0.4, -0.1]])
    advantages = torch.tensor([[0.5], [-0.5]]).expand(2, 3)
    if name == "off_policy_loss":
        more: tuple[Any, ...] = (advantages, torch.ones(2, 3, dtype=torch.bool), settings)
        if takes_rows(settings.off_policy_loss):
            more += (ReplayRows(torch.tensor([[0], [3]]), torch.tensor([[0], [1]])),)
    else:
        side = name.removesuffix("_reshape")
        more = tuple(getattr(settings, f"{side}_reshape_{each}") for each in ("weight", "pow_exp"))

    def right(given: Any) -> bool:
        is_tensor = isinstance(given, torch.Tensor) and given.shape == log_prob.shape
        return is_tensor and given.requires_grad and bool(given.isfinite().all())

    must = "a tensor of finite numbers with a gradient, in the shape of log_ratio, here [2, 3]"
    arguments = (log_ratio, log_prob, *more)
    return _Call(f"policy_loss.{name}", getattr(settings, name), arguments, must, right)
