#!/usr/bin/env bash
# Qwen2.5-Math-1.5B, 500 steps (paper: 30.0 on-policy, 35.3 ExGRPO, in-distribution average; a re-run by others at 1.5B,
# arXiv 2609.03941: Mean@32 .3356 on-policy, .3139 ExGRPO; Best@32 .5494 and .5896).
# Its window, 4,096, is too short and its chat template opens no <think>. One command makes a copy that MODEL_PATH names:
#   exgrpo-data thinking-copy "$(hf download Qwen/Qwen2.5-Math-1.5B)" models/Qwen2.5-Math-1.5B-16k-think
# Evaluation (eval/eval.sh) keeps the training's system message for it, since the copy's chat template says so.
# DATA_DIR and SAVE_PATH from the environment, see ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-$PWD/models/Qwen2.5-Math-1.5B-16k-think}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_qwen2.5_math_1.5b \
    trainer.total_training_steps=500 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    "$@"
