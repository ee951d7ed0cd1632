"""Names of Lehr's fields in other trainers: transformers, nanoGPT, torchtitan, Lightning, W&B.

A spec with ``batch_size`` gets an error that names ``train.batch.sequences``. Nothing is renamed
silently.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from lehr.errors import nearest
from lehr_trainer.configs.fields import field_names, join, leaf_paths, models, place, step

_IN_TRAIN: dict[str, tuple[str, ...]] = {
    "batch.sequences": ("batch_size", "global_batch_size", "train_batch_size", "total_batch_size"),
    "batch.micro_batch": (
        "micro_batch_size", "device_batch_size", "local_batch_size", "per_device_train_batch_size",
        "grad_accum", "grad_accumulation_steps", "gradient_accumulation",
        "gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches",
        "accumulation_steps",
    ),
    "batch.sequence_length": (
        "seq_len", "seq_length", "seqlen", "block_size", "context_length", "ctx_len", "max_seq_len",
        "max_seq_length",
    ),
    "steps": (
        "max_steps", "num_steps", "max_iters", "iterations", "num_iterations", "train_steps",
        "training_steps", "total_steps", "epochs", "num_epochs", "max_epochs", "num_train_epochs",
    ),
    "tokens": (
        "total_tokens", "train_tokens", "training_tokens", "num_tokens", "num_train_tokens",
        "token_budget", "target_tokens",
    ),
    "tokens_per_parameter": (
        "tokens_per_param", "param_data_ratio", "target_param_data_ratio", "data_param_ratio",
    ),
    "seed": ("random_seed", "manual_seed"),
    "optimizer.lr": ("learning_rate", "max_lr", "peak_lr", "base_lr"),
    "optimizer.betas": ("adam_beta1", "adam_beta2", "beta1", "beta2"),
    "optimizer.eps": ("adam_epsilon", "adam_eps", "epsilon"),
    "optimizer.weight_decay": ("wd",),
    "optimizer.name": ("optim", "optimizer_type", "optimizer_name"),
    "schedule": ("lr_scheduler", "scheduler", "lr_schedule"),
    "schedule.name": ("lr_scheduler_type", "lr_decay_style"),
    "schedule.warmup_steps": ("warmup", "warmup_iters", "num_warmup_steps"),
    "schedule.min_lr_ratio": ("min_lr", "min_learning_rate", "final_lr", "lr_min"),
    "grad_clip": (
        "max_grad_norm", "gradient_clipping", "gradient_clip_val", "clip_grad_norm",
        "grad_clip_norm", "max_norm",
    ),
    "precision.compute": (
        "dtype", "bf16", "fp16", "torch_dtype", "mixed_precision", "amp", "autocast",
    ),
    "precision.fp8": ("fp8", "float8"),
    "checkpoint.every": (
        "save_steps", "save_every", "save_interval", "checkpoint_interval", "checkpoint_every",
        "ckpt_interval",
    ),
    "checkpoint.keep_last": ("save_total_limit", "keep_latest_k"),
    "validation.every": (
        "eval_steps", "eval_interval", "eval_every", "val_check_interval", "val_every",
        "validate_every",
    ),
    "validation.tokens": ("eval_iters", "eval_tokens", "val_tokens", "eval_batches"),
    "diagnostics.log_every": ("logging_steps", "log_interval", "log_freq", "log_every_n_steps"),
    "activation_checkpointing": (
        "gradient_checkpointing", "activation_checkpointing", "activation_checkpoint",
        "checkpoint_activations",
    ),
    "compile": ("torch_compile", "compile_model"),
    "attention.backend": ("attn_implementation", "flash_attention", "use_flash_attention"),
    "data.corpus": ("dataset", "dataset_name", "dataset_path", "data_path", "corpus"),
    "data.workers": ("num_workers", "dataloader_num_workers"),
    "model.num_hidden_layers": ("n_layers", "n_layer", "num_layers", "depth", "layers"),
    "model.hidden_size": ("d_model", "n_embd", "n_embed", "dim", "embed_dim", "hidden_dim"),
    "model.num_attention_heads": ("n_heads", "n_head", "num_heads", "heads"),
    "model.num_key_value_heads": ("n_kv_heads", "n_kv_head", "num_kv_heads", "num_query_groups"),
    "model.intermediate_size": ("ffn_dim", "d_ff", "ffn_hidden_size", "mlp_dim", "ffn_size"),
    "model.max_sequence_length": ("max_position_embeddings", "n_ctx", "n_positions"),
    "model.qk_norm": ("use_qk_norm", "qk_layernorm"),
    "model.window": ("sliding_window", "window_pattern", "attention_window"),
    "model.logit_softcap": ("final_logit_softcapping", "softcap"),
    "model.mlp": ("hidden_act", "activation", "activation_function"),
    "model.rope_scaling.original_max_sequence_length": ("original_max_position_embeddings",),
    "model.tie_embeddings": ("tie_word_embeddings", "weight_tying", "tied_embeddings"),
    "model.norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "model.vocab_size": ("n_vocab", "padded_vocab_size"),
}  # fmt: skip
_IN_RUN: dict[str, tuple[str, ...]] = {
    "resources.gpus": ("n_gpus", "num_gpus", "ngpus", "devices", "world_size", "nproc_per_node"),
    "resources.nodes": ("num_nodes", "nnodes", "n_nodes"),
    "resources.gpu_type": ("gpu", "accelerator", "instance_type"),
    "time_limit_s": ("timeout", "time_limit", "max_time", "walltime"),
    "name": ("run_name", "experiment_name", "job_name"),
    "tags": ("labels",),
    "notes": ("description", "comment"),
    "env": ("environment", "env_vars"),
    "secrets": ("secret", "secret_env", "env_from"),
}
_OF_A_SWEEP: dict[str, tuple[str, ...]] = {
    "trials": ("run_cap", "num_samples", "n_trials", "num_trials", "max_trials"),
    "max_concurrent": ("max_concurrent_trials", "n_jobs", "concurrency"),
    "pruning": ("early_terminate", "pruner", "early_stopping"),
    "method": ("search", "sampler", "strategy"),
}


_BY_NAME = {
    name: [f"{prefix}{path}" for prefix in prefixes]
    for table, prefixes in (
        (_OF_A_SWEEP, [""]),
        (_IN_RUN, ["", "run."]),
        (_IN_TRAIN, ["", "train.", "run.train."]),
    )
    for path, names in table.items()
    for name in names
}
"""The paths that a foreign name may mean, whatever the root of the spec."""


VALUES: dict[str, tuple[str, ...]] = {
    "cuda": ("gpu", "nvidia"),
    "tpe": ("bayes", "bayesian", "optuna", "hyperopt"),
    "log_uniform_values": ("log_uniform", "loguniform"),
    "minimize": ("down", "lower"),
    "maximize": ("up", "higher"),
}
"""Words of other tools for values of Lehr's fields."""


def meant_value(word: str, valid: Collection[str]) -> str | None:
    """Return the valid value that another tool's word means; None for an unknown word."""
    found = (value for value, words in VALUES.items() if word.lower() in words)
    return next((value for value in found if value in valid), None)


def synonym(root: type[BaseModel], name: str) -> str | None:
    """Return the path under ``root`` of the field that other tools call ``name``, if any."""
    paths = _BY_NAME.get(name.lower().replace("-", "_"), [])
    return next((path for path in paths if place(root, path)), None)


def nearest_path(root: type[BaseModel], path: str) -> str | None:
    """Return the path under ``root`` that was probably meant."""
    known = leaf_paths(root)
    # The end is right, the beginning is missing: optimizer.lr, lr.
    ends = [candidate for candidate in known if candidate.endswith(f".{path}")]
    if ends:
        # Of two equally near, the field of Lehr's trainer: few runs train with a program.
        return min(ends, key=lambda found: (found.count("."), found.startswith("trainer.")))
    other = synonym(root, path.rpartition(".")[2])
    if other is not None:
        return other
    # The beginning is right, up to one wrong name.
    annotations: tuple[Any, ...] = (root,)
    done = ""
    names = path.split(".")
    for index, name in enumerate(names):
        further = step(annotations, name)
        if further is None:
            close = nearest(name, field_names(models(annotations)))
            if close is not None:
                guess = ".".join(filter(None, [done, close, *names[index + 1 :]]))
                return guess if place(root, guess) else join(done, close)
            break
        annotations, done = further, join(done, name)
    # The last name, or a similar one, exists elsewhere; prefer the shallowest.
    by_name: dict[str, str] = {}
    for candidate in sorted(known, key=lambda candidate: candidate.count(".")):
        by_name.setdefault(candidate.rpartition(".")[2], candidate)
    close = nearest(names[-1], by_name)
    if close is not None:
        return by_name[close]
    return nearest(path, known)
