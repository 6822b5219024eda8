#!/usr/bin/env bash
# ExGRPO on 8 GPUs, with the paper's settings: MODEL_PATH=... DATA_DIR=... SAVE_PATH=... bash run_exgrpo_qwen2.5_math_7b.sh
# Further arguments are Hydra overrides. run_grpo_baseline.sh is the same without replay.
set -euo pipefail
: "${MODEL_PATH:?the model, a folder or a hub name}" "${DATA_DIR:?has openr1.parquet and valid.parquet}" "${SAVE_PATH:?}"
exec exgrpo-train \
    data.train_files="$DATA_DIR/openr1.parquet" data.val_files="$DATA_DIR/valid.parquet" \
    data.train_batch_size=128 data.val_batch_size=512 data.seed=42 \
    data.max_prompt_length=1024 data.max_response_length=8192 \
    data.filter_overlong_prompts=True \
    actor_rollout_ref.model.path="$MODEL_PATH" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.skip_grad_bound=500 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768 \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    'actor_rollout_ref.actor.loss_scale_factor=${exgrpo.released_scale:}' \
    actor_rollout_ref.actor.policy_loss.entropy_agg=released \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.max_num_seqs=1024 \
    trainer.experience=True \
    trainer.experience_ratio=0.5 \
    trainer.default_local_dir="$SAVE_PATH" \
    trainer.n_gpus_per_node="${N_GPUS:-8}" trainer.nnodes="${N_NODES:-1}" \
    trainer.val_before_train=False trainer.max_optim_to_keep=2 \
    trainer.save_freq=50 trainer.test_freq=10 trainer.total_training_steps=701 \
    "$@"
