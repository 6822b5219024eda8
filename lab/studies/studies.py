"""The prepared studies: what each compares, in the trainer's own keys. The first setting is the baseline."""

from __future__ import annotations

from study_folders import RULES

# Below 35 % correct the paper turns the delayed start off (Llama-3.1-8B base); all bases here are below. Study 6 asks.
COMMON = ("trainer.experience_start_sratio=0", "loop.questions=8", "loop.test_every=5")

STUDIES: dict[str, dict[str, tuple[str, ...]]] = {
    "1-replay": {"ExGRPO": (), "on-policy": ("trainer.experience=False",)},
    "2-questions": {
        "normal": (),
        "uniform": ("trainer.exp_bucket_manager=False",),
        "easy, mean 7/8": ("trainer.exp_bucket_mean=0.875",),
        "hard, mean 1/8": ("trainer.exp_bucket_mean=0.125",),
        "mean 1/4": ("trainer.exp_bucket_mean=0.25",),
        "sigma 0.5": ("trainer.exp_bucket_sigma=0.5",),
        "sigma 1.5": ("trainer.exp_bucket_sigma=1.5",),
    },
    "3-trajectories": {
        "lowest entropy": (),
        "highest entropy": ("trainer.exp_select_mode=argmax",),
        "random": ("trainer.exp_metric=random",),
        "lowest perplexity": ("trainer.exp_metric=ppl",),
    },
    "4-ratio": {
        "0.5": (),
        "0.25": ("trainer.experience_ratio=0.25",),
        "0.75": ("trainer.experience_ratio=0.75",),
    },
    "5-loss": {
        "beta 0.1": (),
        "beta 0.01": ("policy_loss.off_policy_reshape=p_div_p_0.01",),
        "beta 0.5": ("policy_loss.off_policy_reshape=p_div_p_0.5",),
        "beta 1": ("policy_loss.off_policy_reshape=p_div_p_1",),
        "no shaping": ("policy_loss.off_policy_reshape=no_reshape",),
        "no correction": ("trainer.exp_is_correct=False",),
    },
    # on-policy until then, it may come to a second epoch, which was asked in full when the page was written
    "6-delayed-start": {
        "at once": (),
        "above 0.35": ("trainer.experience_start_sratio=0.35", "trainer.experience_skip_retired=False"),
    },
    "7-difficulty": {
        "successes": (),
        "question length": (f"trainer.exp_difficulty={RULES}:question_length",),
        "token count": (f"trainer.exp_difficulty={RULES}:token_count",),
        "random": (f"trainer.exp_difficulty={RULES}:by_chance",),
    },
    "8-retirement": {"retired": (), "kept": ("trainer.exp_retirement=never",)},
}
