#!/usr/bin/env bash
# Qwen2.5-7B-Instruct, 500 steps (paper: 35.2 on-policy, 39.3 ExGRPO, in-distribution average).
# Its chat template must open <think>. One command makes a copy that does, here where MODEL_PATH looks for it:
#   exgrpo-data thinking-copy "$(hf download Qwen/Qwen2.5-7B-Instruct)" models/Qwen2.5-7B-Instruct-think
# Evaluation (eval/eval.sh) keeps the training's system message for it, since the copy's chat template says so.
# DATA_DIR and SAVE_PATH from the environment, see ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-$PWD/models/Qwen2.5-7B-Instruct-think}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_qwen2.5_7b_instruct \
    trainer.total_training_steps=500 \
    "$@"
