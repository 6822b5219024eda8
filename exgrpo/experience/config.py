"""The `trainer.*` keys: default, check and meaning of each in one place.

Everything is checked here, once; code that receives an ExperienceConfig does not check it again.
The yaml file and docs/keys.md repeat defaults and meanings; a test compares them with this file.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from exgrpo.experience import key_checks as check
from exgrpo.experience import rules

_ROLLOUT_N = "actor_rollout_ref.rollout.n"
_OUR_PREFIXES = ("exp_", "experience_")


def _key(default: Any, checked: Callable[[str, object], object], meaning: str) -> Any:
    return field(default=default, metadata={"check": checked, "meaning": meaning})


def _check_all(config: Any) -> None:
    """Put each field in its proper type; ValueError in one line."""
    for setting in fields(config):
        key = _ROLLOUT_N if setting.name == "rollout_n" else f"trainer.{setting.name}"
        value = setting.metadata["check"](key, getattr(config, setting.name))
        object.__setattr__(config, setting.name, value)


@dataclass(frozen=True)
class TrainerKeys:
    """Keys below `trainer.` that are not of replay. ValueError as of `ExperienceConfig`."""

    max_optim_to_keep: int | None = _key(
        None,
        check.optional(check.integer(1)),
        "this many checkpoints, the latest, keep their optimizer states, two thirds of their size; "
        "null: all do",
    )
    rollout_seeded: bool = _key(
        False,
        check.boolean,
        "each rollout has its own sampling seed, which follows from rollout.seed, step and "
        "position",
    )
    rollout_poll_interval: float = _key(
        2.0,
        check.seconds,
        "seconds between two looks at the queue while generation runs; use 0.05 for small runs",
    )
    rollout_patience_s: float | None = _key(
        None,
        check.optional(check.positive),
        "the run ends if it waits so long without a finished rollout, in s; null: ten times the "
        "longest wait so far, at least 1800, 7200 before the first",
    )
    rollout_ledger_bytes: int = _key(
        0,
        check.integer(0),
        "groups that finish between two saves are kept on disk, in so many bytes at most (about 32 "
        "a token): a run that is killed does not generate them again; 0: off",
    )

    rehearse_reward: bool = _key(
        True,
        check.boolean,
        "before Ray starts a reward function of yours is tried on an answer that is right and on "
        "three that are not; False: for one that cannot tell them apart, or asks a server",
    )

    def __post_init__(self) -> None:
        _check_all(self)

    @classmethod
    def from_mapping(cls, trainer: Mapping[str, Any]) -> TrainerKeys:
        """Pick these keys out of verl's `trainer` node; other keys are ignored."""
        return cls(**{key.name: trainer[key.name] for key in fields(cls) if key.name in trainer})


@dataclass(frozen=True)
class ExperienceConfig:
    """Settings of experience replay; names and defaults are the released script's where it has one.

    Values may be strings, as from a command line; after construction each field has its proper
    type. `meanings()` describes each key.

    Raises:
        ValueError: one line with the key, the value and what is allowed.
    """

    rollout_n: int = field(
        metadata={"check": check.integer(2), "meaning": "K, rollouts per question"}
    )
    experience: bool = _key(
        True, check.boolean, "False: plain GRPO with verl's own loss, through the same program"
    )
    experience_ratio: float = _key(
        0.5,
        check.fraction,
        "rho, the share of a step's questions that are replayed, if that many are eligible",
    )
    exp_unit: str = _key(
        "trajectory",
        check.one_of("trajectory", "group", "prefix", "prompt"),
        "what is replayed: trajectory, one success that joins K - 1 fresh rollouts (as "
        "published); group, a whole past group with its failures, for which nothing is generated, "
        "drawn by exp_group_choice (rules of questions have no effect, exp_metric on exp_rescue "
        "alone); prefix, the beginning of a rollout of such a group, which K fresh ones continue; "
        "prompt, the question alone with K fresh rollouts, a control",
    )
    exp_place: str = _key(
        "share",
        check.one_of("share", "dead", "beside"),
        "where replay stands: share, in a share rho of the questions (past groups instead of them);"
        " dead, past groups in place of fresh ones whose rewards are all equal, at most that many; "
        "beside, K successes instead of each question of that share (off_policy_loss=likelihood)",
    )
    experience_start_sratio: float = _key(
        0.35,
        check.fraction,
        "mixing and collecting begin with the step after a batch whose share of correct rollouts "
        "exceeds this, and never end; 0: with the first step",
    )
    experience_lbound: int = _key(
        0,
        check.integer(0),
        "a group is collected, and its question filed, while lbound < successes <= rbound",
    )
    experience_rbound: int | None = _key(
        None,
        check.optional(check.integer(1)),
        "see experience_lbound; null: rollout.n - 1, or rollout.n with exp_difficulty=reward_std",
    )
    exp_metric: str = _key(
        "ent",
        check.rule(rules.METRICS, rules.RANDOM),
        "score of a question's trajectories: ent, their mean token entropy under the current "
        "policy; ppl, perplexity; random; or your own rule",
    )
    exp_select_mode: str = _key(
        "argmin",
        check.one_of("argmin", "argmax"),
        "argmin, argmax: the trajectory with the lowest or the highest score is replayed",
    )
    exp_sample_range: str = _key(
        "all",
        check.one_of("all", "first_half", "last_half"),
        "first_half, last_half: only that half of the eligible questions, in their order of "
        "entry; the middle one of an odd number is in the last",
    )
    exp_bucket_manager: str | Literal[False] = _key(
        "normal",
        check.bucket_manager,
        "probabilities of success counts: normal, linear, sqrt, linear_clip, or your own rule; "
        "False: uniform over questions",
    )
    exp_is_correct: bool = _key(
        True,
        check.boolean,
        "importance ratios against the recorded log-probs; False: against this step's",
    )
    exp_bucket_mean: float = _key(0.5, check.fraction, "centre of normal, as a share of rollout.n")
    exp_bucket_sigma: float = _key(1.0, check.positive, "width of normal, in successes")
    exp_seed: int = _key(0, check.integer(0), "seed of all draws of replay")
    exp_difficulty: str = _key(
        "released",
        check.rule(rules.DIFFICULTIES),
        "what a question is filed under: released, the successes of its latest collected group, "
        "the replayed one counted; mean_reward, the mean reward of its fresh rollouts, for rewards "
        "between 0 and 1; reward_std, how much its group's rewards vary, for any rewards; or your "
        "own rule",
    )
    exp_retirement: str = _key(
        "all_solved",
        check.rule(rules.RETIREMENTS),
        "when a question is retired: all_solved, never, or your own rule; its past groups are "
        "replayed on",
    )
    exp_eviction: str = _key(
        "highest_entropy",
        check.rule(rules.EVICTIONS),
        "which trajectory of a full question is dropped first: highest_entropy (unknown before "
        "any), lowest_entropy (for exp_select_mode=argmax), oldest, newest, or your own rule",
    )
    exp_same: str = _key(
        "tokens",
        check.rule(rules.SAME),
        "which of a question's trajectories are one success, of which the newest is kept: equal "
        "tokens; bag, in any order; or your own rule",
    )
    exp_question_choice: str = _key(
        rules.BUCKET,
        check.rule(rules.QUESTION_CHOICES, rules.BUCKET),
        "how questions are drawn: bucket, by exp_bucket_manager; longest_ago; or your own rule",
    )
    exp_group_choice: str = _key(
        "uniform",
        check.rule(rules.GROUP_CHOICES),
        "how past groups are drawn: uniform; headroom, by 1 minus the newest success rate of their "
        "question; age; advantage; or your own rule; with any but uniform others are drawn for "
        "those that exp_max_drift drops",
    )
    exp_success_threshold: float = _key(
        0.5,
        check.finite,
        "a rollout is a success if its reward exceeds this; at least 0 and below 1 where rewards "
        "are between 0 and 1",
    )
    exp_max_drift: float | None = _key(
        None,
        check.optional(check.positive),
        "candidates whose mean squared log-ratio, current policy to author, exceeds this are "
        "skipped; a stored group is then also dropped; null: never",
    )
    exp_rescue: bool = _key(
        False,
        check.boolean,
        "a stored success joins a group whose fresh rollouts all failed: instead of one of them "
        "in the trainer; in your own loop as an extra row",
    )
    exp_missing_log_probs: str = _key(
        "current",
        check.one_of("current", "one"),
        "imported trajectories without log-probs are weighted against this step's policy; one: as "
        "if their author gave each token probability 1 (LUFFY)",
    )
    experience_import: str | None = _key(
        None,
        check.optional(check.path),
        "a pool with which a new run starts: of exgrpo-inspect --import, or another run's folder "
        "experience/, whose trajectories then count as of step 0",
    )
    experience_other_judge: str = _key(
        "keep",
        check.one_of("keep", "drop"),
        "what becomes of a checkpoint's pool that another reward or grader, or other golds, have "
        "judged: keep, with a line; drop, replay begins with an empty pool",
    )
    experience_max_per_question: int = _key(
        8,
        check.integer(1),
        "trajectories kept for a question; exp_eviction says which is dropped first",
    )
    experience_max_trajectories: int = _key(
        200_000, check.integer(1), "trajectories kept in all; the oldest is dropped first"
    )
    experience_max_bytes: int = _key(
        8_000_000_000,
        check.integer(1),
        "memory of the pool, 8 bytes a token and 200 a trajectory; the oldest is dropped first",
    )
    experience_max_groups: int = _key(
        256,
        check.integer(1),
        "groups kept with exp_unit=group or prefix, the newest, 8 bytes a token; those whose "
        "rewards are all equal are not stored",
    )
    experience_max_age: int | None = _key(
        None,
        check.optional(check.integer(1)),
        "a trajectory or group older than this many steps leaves the pool; null: never",
    )
    experience_skip_retired: bool = _key(
        True,
        check.boolean,
        "an epoch of fresh questions leaves out the questions that were retired when it began",
    )

    def __post_init__(self) -> None:
        _check_all(self)
        if self.experience_rbound is None:
            highest = self.rollout_n - (not self._has("collects_all"))
            object.__setattr__(self, "experience_rbound", highest)
        if self.bounded_rewards and not 0 <= self.exp_success_threshold < 1:
            key = "trainer.exp_success_threshold"
            check.refuse(key, self.exp_success_threshold, "a number of at least 0 and below 1")
        if self.exp_place == "dead" and (not self.whole_groups or self.exp_rescue):
            allowed = "share, unless trainer.exp_unit=group and trainer.exp_rescue=False"
            check.refuse("trainer.exp_place", self.exp_place, allowed)
        if self.rehearses and (
            self.exp_unit != "trajectory" or self.exp_rescue or self.exp_max_drift is not None
        ):
            allowed = "share, unless exp_unit=trajectory exp_rescue=False exp_max_drift=null"
            check.refuse("trainer.exp_place", self.exp_place, allowed)
        if self.exp_unit == "prefix" and self.exp_rescue:
            check.refuse("trainer.exp_rescue", True, "False with trainer.exp_unit=prefix")
        if (self.keeps_groups or self.rehearses) and self.experience_ratio == 1:
            what = "exp_place=beside" if self.rehearses else f"exp_unit={self.exp_unit}"
            allowed = f"below 1 with trainer.{what}: new groups must come in"
            check.refuse("trainer.experience_ratio", 1, allowed)
        lbound, rbound = self.experience_lbound, self.collected_buckets.stop - 1
        if rbound > self.rollout_n:
            allowed = f"at most {_ROLLOUT_N}={self.rollout_n}"
            check.refuse("trainer.experience_rbound", rbound, allowed)
        if lbound >= rbound:
            allowed = f"less than trainer.experience_rbound={rbound}"
            check.refuse("trainer.experience_lbound", lbound, allowed)

    @classmethod
    def from_mapping(cls, trainer: Mapping[str, Any], rollout_n: int) -> ExperienceConfig:
        """Pick our keys out of verl's `trainer` node (dict or DictConfig); others are ignored.

        Raises:
            ValueError: a value is not allowed, or a key looks like one of ours but is not.
        """
        known = list(cls.meanings())
        for key in trainer:
            if str(key).startswith(_OUR_PREFIXES) and key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"known keys are {', '.join(known)}"
                if close:
                    hint = f"did you mean trainer.{close[0]}?"
                raise ValueError(f"trainer.{key}: no such key; {hint}")
        return cls(rollout_n=rollout_n, **{key: trainer[key] for key in known if key in trainer})

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Key, without `trainer.` -> what it means."""
        return {key.name: key.metadata["meaning"] for key in fields(cls) if key.name != "rollout_n"}

    @property
    def collected_buckets(self) -> range:
        """The buckets that are collected: lbound < k <= rbound."""
        assert self.experience_rbound is not None  # __post_init__ has put the default in its place
        return range(self.experience_lbound + 1, self.experience_rbound + 1)

    @property
    def bounded_rewards(self) -> bool:
        """Whether rewards must be between 0 and 1."""
        return self._has("bounded_rewards")

    def _has(self, trait: str) -> bool:
        """A trait that the difficulty rule states (`rules.difficulty`)."""
        rule = rules.DIFFICULTIES.load("trainer.exp_difficulty", self.exp_difficulty)
        return bool(getattr(rule, trait, False))

    @property
    def remembers(self) -> bool:
        """Whether a rule looks at what is remembered of questions (QuestionMemory)."""
        rules_look = self.exp_question_choice != rules.BUCKET or self.exp_group_choice != "uniform"
        return rules_look or self.exp_unit == "prefix"

    @property
    def rehearses(self) -> bool:
        """Whether stored successes stand beside the groups, not in them."""
        return self.exp_place == "beside"

    @property
    def keeps_groups(self) -> bool:
        """Whether whole groups are stored, failures too."""
        return self.exp_unit in ("group", "prefix")

    @property
    def whole_groups(self) -> bool:
        """Whether whole past groups are replayed, in place of trajectories."""
        return self.exp_unit == "group"
