#!/usr/bin/env bash
# Not the paper's method: half of a step's groups are whole past groups, failures included, for which nothing is
# generated, with TOPR's loss. docs/experiments.md has the evidence, from models of 150,000 parameters where success is
# rare; nobody has seen these keys at this size. There every past group was kept: 2,048 of them are those of some 40
# steps, at most 1.1 GB of memory and of each checkpoint. With trainer.exp_place=dead trainer.experience_ratio=0.9 all
# questions are asked, and past groups stand in for those without an advantage.
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may name another model. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-Elliott/Qwen2.5-Math-7B-16k-think}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_group_replay \
    trainer.exp_unit=group \
    actor_rollout_ref.actor.policy_loss.off_policy_loss=topr \
    trainer.experience_start_sratio=0 \
    trainer.exp_retirement=never \
    trainer.experience_max_groups=2048 \
    "$@"
