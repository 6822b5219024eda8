#!/usr/bin/env bash
# Continual training from a LUFFY checkpoint of Qwen2.5-Math-7B, 500 steps (paper: 51.4 in-distribution average).
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may point to a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-Elliott/LUFFY-Qwen-Math-7B-Zero}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_luffy_continual \
    "$@"
