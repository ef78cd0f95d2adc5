"""The keys of verl 0.9.1 that a launch file may set as it likes, by the reason why. `section.*` is a whole section. What the method needs
is in tools/integrations/verl/method.py; a key in neither place is undecided.
"""

from __future__ import annotations

from collections.abc import Mapping


def under(section: str, names: str) -> tuple[str, ...]:
    """Dotted keys of a section, from names between blanks."""
    return tuple(f"{section}.{name}" for name in names.split())


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

FREE: Mapping[str, tuple[str, ...]] = {
    "read by nothing while a needed setting above it is as needed": (
        *under("algorithm", "norm_adv_by_std_in_grpo kl_penalty kl_ctrl.* pf_ppo.*"),
        *under("algorithm.filter_groups", "metric max_num_gen_batches max_inflight_gen_batches"),
        *under("algorithm.rollout_correction", "rollout_rs_threshold loss_type"),
        *under(ACTOR, "clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c tau_pos tau_neg"),
        *under(f"{ACTOR}.policy_loss", "clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio ppo_kl_coef dro_beta"),
        *under(ACTOR, "kl_loss_coef kl_loss_type loss_scale_factor shuffle data_loader_seed"),
        *under(f"{ACTOR}.qat", "mode group_size ignore_patterns activation_observer quantization_config_path"),
        *under(f"{ACTOR}.fsdp_config.qat", "mode group_size ignore_patterns activation_observer quantization_config_path"),
        *under(f"{ROLLOUT}.qat", "mode group_size ignore_patterns activation_observer quantization_config_path"),
        *under(f"{ROLLOUT}.multi_turn", "max_assistant_turns max_user_turns max_parallel_calls max_tool_response_length"),
        *under(f"{ROLLOUT}.multi_turn", "tool_response_truncate_side use_inference_chat_template"),
        *under(f"{ROLLOUT}.multi_turn", "tokenization_sanity_check_mode format num_repeat_rollouts"),
        *under(ROLLOUT, "seed agent.custom_async_server.name"),
        *under("data", "seed custom_cls.name truncation"),
        *under("trainer.v1", "colocate_async.* separate_async.*"),
        *under("trainer.v1.sampler", "max_off_policy_threshold max_off_policy_strategy sampler_kwargs custom_sampler.name"),
    ),
    "sizes of the run": under("data", "train_batch_size gen_batch_size max_prompt_length max_response_length"),
    "the optimizer, whose schedule is part of it: the launch files have AdamW at a constant rate, as the paper": under(
        f"{ACTOR}.optim",
        "optimizer optimizer_impl override_optimizer_config lr betas weight_decay clip_grad lr_scheduler_type warmup_style"
        " lr_warmup_steps lr_warmup_steps_ratio min_lr_ratio num_cycles zero_indexed_step total_training_steps",
    ),
    "which rows are read, in which columns, and how a prompt is written": (
        *under("data", "train_files val_files train_max_samples prompt_key reward_fn_key tokenizer trust_remote_code use_shm"),
        *under("data", "filter_overlong_prompts_workers dataloader_num_workers apply_chat_template_kwargs"),
        *under("data", "return_raw_input_ids return_raw_chat return_full_prompt"),
    ),
    "images, sounds and films, of which tasks have none": (
        *under("data", "image_key video_key audio_key image_patch_size return_multi_modal_inputs mm_processor_kwargs"),
        f"{ACTOR}.freeze_vision_tower",
    ),
    "validation": (f"{ROLLOUT}.val_kwargs.*", *under("data", "val_batch_size val_max_samples validation_shuffle")),
    "how the trainer computes the same thing: memory, numbers, placement": (
        *under(ACTOR, "strategy ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu"),
        *under(ACTOR, "use_prefix_grouper use_torch_compile use_fused_kernels use_remove_padding ulysses_sequence_parallel_size"),
        *under(ACTOR, "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing pad_to_length"),
        *under(f"{ACTOR}.fsdp_config", "wrap_policy.min_num_params param_offload optimizer_offload offload_policy"),
        *under(f"{ACTOR}.fsdp_config", "reshard_after_forward fsdp_size forward_prefetch model_dtype dtype use_orig_params"),
        *under(f"{ACTOR}.fsdp_config", "seed full_determinism ulysses_sequence_parallel_size use_torch_compile strategy"),
        *under(f"{ACTOR}.fsdp_config", "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing"),
        *under(f"{ACTOR}.fsdp_config", "use_no_sync_for_gradient_accumulation pad_to_length pad_to_length_bucket"),
        *under(f"{ACTOR}.fsdp_config", "forward_only turbo_config.*"),
    ),
    "how the engine samples the same thing: memory, numbers, placement": (
        *under(ROLLOUT, "name mode nnodes n_gpus_per_node dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes"),
        *under(ROLLOUT, "free_cache_engine tensor_model_parallel_size data_parallel_size expert_parallel_size"),
        *under(ROLLOUT, "pipeline_model_parallel_size max_num_batched_tokens max_num_seqs enable_chunked_prefill"),
        *under(ROLLOUT, "enable_prefix_caching scheduling_policy load_format layered_summon multi_stage_wake_up"),
        *under(ROLLOUT, "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz"),
        *under(ROLLOUT, "log_prob_max_token_len_per_gpu skip_tokenizer_init router_config_path agent.num_workers"),
        *under(ROLLOUT, "engine_kwargs.* checkpoint_engine.* disaggregation.* mtp.*"),
    ),
    "storage and logging": (
        *under(ACTOR, "checkpoint.* profiler.* calculate_entropy calculate_sum_pi_squared"),
        *under(ROLLOUT, "profiler.* prometheus.* trace.* disable_log_stats moe_load_balance_metrics_interval"),
    ),
}
