#!/usr/bin/env bash
# A real language model on a CPU: ten steps of ExGRPO on SmolLM2-135M-Instruct; a call after a kill resumes from the last
# checkpoint (every second step).
#
#   bash exp_scripts/run_smollm2_cpu.sh [key=value ...]                              one-digit sums from reasoning-gym
#   TRAIN_FILE=gsm8k_train.parquet bash exp_scripts/run_smollm2_cpu.sh [...]         any file of verl's schema
#
# OUTPUT (default outputs/smollm2) is the folder of model, questions and checkpoints. On two cores a step takes a little
# over a minute with the sums and five with GSM8K, of which this model solves almost nothing. Ten steps show that the
# stack works with a real model; they are too few to teach it much.
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
. exp_scripts/quoted.sh
bash exp_scripts/setup_cpu.sh requirements/smollm2.txt
output=$(realpath -m "${OUTPUT:-outputs/smollm2}")
export VERL_PLATFORM=cpu HF_HUB_OFFLINE=1
export VERL_FILE_LOGGER_PATH=$output/metrics-$(date +%s).jsonl # one line per step, one file per call
mkdir -p "$output"

[ -f "$output/model/config.json" ] || "$python" exp_scripts/smollm2/make_model.py --output_dir "$output/model"
if [ -n "${TRAIN_FILE:-}" ]; then
    [ -f "$TRAIN_FILE" ] || { echo "exgrpo: TRAIN_FILE=$TRAIN_FILE: no such file" >&2; exit 2; }
    train=$(realpath "$TRAIN_FILE") test=$train prompt=384 response=160
else
    train=$output/data/train.parquet test=$output/data/test.parquet prompt=96 response=48
    [ -f "$test" ] || "$python" data/make_tasks.py --task chain_sum --param max_terms=2 --param max_digits=1 \
        --count 128 --test_count 32 --output_dir "$output/data"
fi

exec "$python" exp_scripts/guarded "$output" "$python" -m exgrpo.main_mix_ppo stack=cpu \
    data.train_files="$(quoted "$train")" \
    data.val_files="$(quoted "$test")" \
    data.val_max_samples=16 \
    data.train_batch_size=8 \
    data.max_prompt_length="$prompt" \
    data.max_response_length="$response" \
    data.filter_overlong_prompts=True \
    data.seed=1 \
    actor_rollout_ref.model.path="$(quoted "$output/model")" \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.rollout.dtype=bfloat16 \
    actor_rollout_ref.rollout.max_model_len=1024 \
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=256 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048 \
    actor_rollout_ref.actor.optim.lr=1e-5 \
    reward.custom_reward_function.reward_kwargs.require_think=False \
    trainer.rollout_poll_interval=0.1 \
    trainer.experience_start_sratio=0 \
    trainer.logger='[console,file]' \
    trainer.project_name=exgrpo \
    trainer.experiment_name=smollm2 \
    trainer.default_local_dir="$(quoted "$output/checkpoints")" \
    trainer.total_training_steps=10 \
    trainer.val_before_train=False \
    trainer.save_freq=2 \
    trainer.max_actor_ckpt_to_keep=2 \
    "$@"
