"""Export of a trained model to a folder that ``transformers`` loads: safetensors and config.json.

``python -m lehr_trainer export RUN_DIR OUT_DIR [--step N]``
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.configs.gpt2 import GPT2Config
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadCheckpoint, BadConfig, TrainerError
from lehr_trainer.runtime import launch


def export(run_dir: Path, out_dir: Path, step: int | None = None) -> Path:
    """Write the checkpoint of ``step`` (the newest that verifies if None) to ``out_dir``.

    Returns:
        The checkpoint that it was taken from.

    Raises:
        BadConfig: there is no such run, or ``out_dir`` holds something already.
        BadCheckpoint: there is no such checkpoint, or it is damaged.
    """
    if not (run_dir / layout.CONFIG).is_file():
        raise BadConfig(f"{run_dir} is not a run directory: it has no {layout.CONFIG}")
    config = launch.read_config(run_dir / layout.CONFIG)
    if out_dir.exists() and any(out_dir.iterdir()):
        raise BadConfig(f"{out_dir} is not empty; choose a new folder")
    directory, manifest = _choose(run_dir, step)
    tensors = checkpoint.read_tensors(directory, manifest, "model")
    write_model(config.model, tensors, out_dir)
    return directory


def write_model(
    model: LlamaConfig | GPT2Config, tensors: Mapping[str, Tensor], out_dir: Path
) -> None:
    """Convert the weights and the config to the names that ``transformers`` uses."""
    from safetensors.torch import save_file

    strange = [name for name in tensors if name.startswith(("embed_tokens.norm", "wte.norm"))]
    if strange:
        raise BadConfig(
            "a model with model.stable_embedding has a LayerNorm after its embedding, which "
            "transformers' models lack; it cannot be exported"
        )
    if isinstance(model, LlamaConfig):
        named, described = _llama(model, tensors)
    else:
        from lehr_trainer.models.gpt2 import to_transformers, transformers_config

        named, described = to_transformers(tensors), transformers_config(model)
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    contiguous = {name: tensor.contiguous() for name, tensor in named.items()}
    save_file(contiguous, out_dir / "model.safetensors", metadata={"format": "pt"})


def _llama(
    model: LlamaConfig, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    named = {
        name if name.startswith("lm_head.") else f"model.{name}": tensor
        for name, tensor in tensors.items()
    }
    described = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.hidden_size // model.num_attention_heads,
        "hidden_act": "silu",
        "max_position_embeddings": model.max_sequence_length,
        "rms_norm_eps": model.norm_eps,
        # transformers 5 reads the first key, earlier releases read the second.
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "rope_theta": model.rope_theta,
        "attention_bias": model.attention_bias,
        "mlp_bias": model.mlp_bias,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": "float32",
    }
    return named, described


def _choose(run_dir: Path, step: int | None) -> tuple[Path, checkpoint.Manifest]:
    """Choose the checkpoint; where two attempts saved a step, the newer one's."""
    found = [
        directory
        for attempt in reversed(layout.attempts(run_dir))
        for directory in layout.checkpoints(attempt)
    ]
    found.sort(key=lambda directory: layout.checkpoint_step(directory) or 0, reverse=True)
    if step is not None:
        saved_steps = sorted({layout.checkpoint_step(d) or 0 for d in found})
        found = [d for d in found if layout.checkpoint_step(d) == step]
        if not found:
            steps = ", ".join(map(str, saved_steps)) or "none"
            raise BadCheckpoint(f"{run_dir} has no checkpoint of step {step}; there are: {steps}")
    damaged: list[str] = []
    for directory in found:
        try:
            return directory, checkpoint.verify(directory)
        except BadCheckpoint as error:
            damaged.append(str(error))
    raise BadCheckpoint("; ".join(damaged) or f"{run_dir} has no checkpoint yet")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer export",
        description="Write a trained model as a folder that transformers loads.",
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--step", type=int, help="the newest checkpoint if not given")
    given = parser.parse_args(arguments)
    try:
        source = export(given.run_dir, given.out_dir, given.step)
    except TrainerError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    print(f"{source} -> {given.out_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
