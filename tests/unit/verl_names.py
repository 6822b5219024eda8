"""The names of verl 0.9.1 and its stack that exgrpo uses, with their parameters; test_verl_contract.py compares.

A use without an entry fails there, and so does an entry that nothing uses. On the next verl: look at what the name of a
failing entry is used for, change that code if it must be, then the entry.
"""

# module:name -> its parameters
FUNCTIONS = {
    "transfer_queue:KVBatchMeta": "keys tags partition_id fields extra_info",
    "transfer_queue:init": "conf",
    "transfer_queue:kv_batch_get": "keys partition_id select_fields",
    "transfer_queue:kv_batch_put": "keys partition_id fields tags data_parser",
    "transfer_queue:kv_clear": "keys partition_id",
    "transfer_queue:kv_list": "partition_id",
    "verl.protocol:DataProto": "batch non_tensor_batch meta_info",
    "verl.trainer.constants_ppo:get_ppo_ray_runtime_env": "config",
    "verl.trainer.main_ppo:run_ppo": "config task_runner_class",
    "verl.trainer.ppo.core_algos:agg_loss": (
        "loss_mat loss_mask loss_agg_mode dp_size batch_num_tokens global_batch_size loss_scale_factor"
    ),
    "verl.trainer.ppo.core_algos:get_policy_loss_fn": "name",
    "verl.trainer.ppo.core_algos:register_policy_loss": "name",
    "verl.trainer.ppo.utils:need_critic": "config",
    "verl.trainer.ppo.utils:need_reference_policy": "config",
    "verl.trainer.ppo.v1.trainer_base:register_trainer": "name",
    "verl.utils.config:validate_config": "config use_reference_policy use_critic",
    "verl.utils.dataset.rl_dataset:collate_fn": "data_list",
    "verl.utils.debug.metrics:calculate_debug_metrics": "data",
    "verl.utils.metric:Metric": "aggregation value",
    "verl.utils.fsdp_utils:fsdp2_sharded_save_to_cpu": "model",
    "verl.utils.model:compute_position_id_with_mask": "mask",
    "verl.utils.seqlen_balancing:calculate_workload": "seqlen_list",
    "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions": "seqlen_list k_partitions equal_size",
    "verl.utils.tensordict_utils:assign_non_tensor_data": "tensor_dict key val",
    "verl.utils.tensordict_utils:get_tensordict": "tensor_dict non_tensor_dict",
    "verl.utils.tensordict_utils:list_of_dict_to_tensordict": "list_of_dicts",
    "verl.workers.rollout.replica:get_rollout_replica_class": "rollout disaggregation_enabled",
    "verl.workers.utils.padding:no_padding_2_padding": "tensor data",
}

# module:class -> the members that are called or overridden, each with its parameters; of data classes, their fields
CLASSES: dict[str, dict[str, str]] = {
    "verl.checkpoint_engine:CheckpointEngine": {
        "__init__": "self args kwargs",
        "prepare": "self",
        "build_topology": "actor_wg_world_size rollout_world_size metadata",
        "init_process_group": "self kwargs",
        "finalize": "self",
        "send_weights": "self weights global_steps",
        "receive_weights": "self global_steps",
    },
    "verl.checkpoint_engine:CheckpointEngineRegistry": {"register": "backend"},
    "verl.experimental.agent_loop.agent_loop:AgentLoopOutput": {"as_dict": "self"},
    "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop": {
        "run": "self sampling_params priority kwargs",
    },
    "verl.plugin.platform:PlatformRegistry": {"register": "platform", "get": "name", "registered_names": ""},
    "verl.plugin.platform.platform_base:PlatformBase": {
        "is_available": "self",
        "is_platform_available": "self use_smi_check",
        "current_device": "self",
        "device_count": "self",
        "set_device": "self device_index",
        "synchronize": "self device_index",
        "manual_seed": "self seed",
        "manual_seed_all": "self seed",
        "set_allocator_settings": "self settings",
        "empty_cache": "self",
        "get_device_capability": "self device_index",
        "communication_backend_name": "self",
        "visible_devices_envvar": "self",
        "nvtx_range": "self msg",
        "profiler_start": "self",
        "profiler_stop": "self",
        "ray_resource_name": "self",
        "ray_noset_envvars": "self",
        "is_ipc_supported": "self",
        "cudart": "self",
    },
    "verl.trainer.main_ppo:TaskRunnerV1": {},  # a Ray actor class: test_verl_contract.py looks underneath
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer": {
        "__init__": (
            "self trainer_mode trainer_config max_off_policy_threshold max_off_policy_strategy sampler_kwargs "
            "poll_interval refill_fn filter_groups_metric train_batch_size gen_batch_size max_inflight_gen_batches "
            "sync_refill_failed_groups"
        ),
        "_dapo_filtered_keys": "self partition_id",
        "_clear_groups": "self partition_id uids",
    },
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync": {},
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer": {
        "_build_replay_buffer": "self",
        "_init_dataloader": "self",
        "_next_train_batch": "self num_prompts",
        "_step_once": "self metrics timing_raw sample_batch_size",
        "_fetch_one_gen_batch": "self",
        "_balance_batch": "self batch metrics logging_prefix keep_minibatch",
        "_compute_old_log_prob": "self batch metrics",
        "_compute_advantage": "self batch metrics",
        "_update_actor": "self batch metrics",
        "_val_metrics_update": "self data_sources sample_uids reward_extra_infos_dict sample_turns expected_acc_counts",
        "_save_checkpoint": "self",
        "_load_checkpoint": "self",
        "on_step_end": "self",
    },
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync": {},
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync": {},
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync": {},
    "verl.utils.dataset.rl_dataset:RLHFDataset": {"__getitem__": "self item"},
    "verl.utils.metric:AggregationType": {},
    "verl.workers.config:FSDPOptimizerConfig": {},
    "verl.workers.config:PolicyLossConfig": {},
    "verl.workers.engine:EngineRegistry": {"register": "model_type backend device vendor"},
    "verl.workers.engine.fsdp:FSDPEngineWithLMHead": {
        "optimizer_step": "self",
        "train_batch": "self data loss_function",
        "is_mp_src_rank_with_outputs": "self",
    },
}

# module:class -> attributes of an instance that we read or set
ATTRIBUTES = {
    "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop": "rollout_config",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer": "partitions poll_interval _dapo_classification_cache",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer": (
        "actor_rollout_wg config global_steps local_trigger_step parameter_sync_step processor replay_buffer tokenizer "
        "total_training_steps train_dataloader train_dataloader_it train_dataset trainer_mode"
    ),
    "verl.utils.dataset.rl_dataset:RLHFDataset": "apply_chat_template_kwargs data_files dataframe prompt_key",
    "verl.workers.engine.fsdp:FSDPEngineWithLMHead": "module optimizer optimizer_config",
}

# Replaced on a CPU, in modules that only import beside vLLM: module:function or class -> parameters, from the source
BY_SOURCE = {
    "verl.utils.torch_functional:logprobs_from_logits_v2": "logits labels",
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:rebuild_shared_memory": "name size dtype",
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender": (
        "self zmq_handle bucket_size_mb use_shm"
    ),
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightReceiver": (
        "self zmq_handle device use_shm"
    ),
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": "layer remove_weight",
}
