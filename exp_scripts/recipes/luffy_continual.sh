#!/usr/bin/env bash
# Continual training from a LUFFY checkpoint of Qwen2.5-Math-7B-16k-think, 500 steps (paper: 51.4 in-distribution
# average). It has that model's window and chat template.
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may name a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-Elliott/LUFFY-Qwen-Math-7B-Zero}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_luffy_continual \
    trainer.total_training_steps=500 \
    "$@"
