"""The training step compared with the Trainer of ``transformers`` on its Llama of the same shape.

Both train the same weights on the same tokens in the same order with fused AdamW, clipping at 1
and bf16 autocast (``--compute fp32`` for neither), logging nothing. Each is a process of its own;
the two take turns of a few steps, in pairs, and the ratio is the median over the pairs. Prints
JSON; exits with 1 if ours is below ``--required``.

    python tests/bench/hf_trainer.py [--compute bf16] [--pairs 7] [--steps 3]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SHAPE = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rope_theta": 500_000.0,
    "tie_embeddings": True,
    "max_sequence_length": 2048,
}


def tokens_of(step: int, sequences: int, length: int) -> Any:
    import torch

    draw = torch.Generator().manual_seed(step)
    return torch.randint(0, SHAPE["vocab_size"], (sequences, length + 1), generator=draw)


def inputs_of(rows: Any) -> dict[str, Any]:
    """For ``transformers``: shifted already, so that both see as many tokens."""
    inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    return {"input_ids": inputs, "labels": targets, "shift_labels": targets}


class Ours:
    """The trainer's own loop, by ``Training.take_step``, over the tokens of the bench."""

    def __init__(self, given: argparse.Namespace) -> None:
        from lehr_testing.assembled import assembled

        values = {
            "model": SHAPE,
            "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 500_000},
            "batch": {"sequences": given.sequences, "sequence_length": given.length},
            "steps": 10**6,
            "optimizer": {"lr": 3e-4, "weight_decay": 0.1},
            "schedule": {"name": "constant", "warmup_steps": 0},
            "precision": {"compute": given.compute},
            "validation": {"tokens": 4096, "every": 0},
            "checkpoint": {"every": 0},
            "compile": {"scope": given.compile},
            "device": given.device,
        }
        self.training = assembled(Path(tempfile.mkdtemp(prefix="lehr-bench-")), values)
        # The same tokens as the other; making them costs each the same.
        self.training.loader.batch = self.batch
        self.training.wrapped.train()
        self.training.metrics_logger.start_at(0, 0)
        self.given = given

    def batch(self, step: int, _micro_step: int = 0) -> Any:
        rows = tokens_of(step, self.given.sequences, self.given.length)
        rows = rows.to(self.training.ranks.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.training.take_step()
            self.training.step_control.agree(self.training.ranks)

    def loss(self) -> float:
        inputs, targets = self.batch(10**6)
        return float(self.training.unwrapped_loss(inputs, targets).detach())


class Theirs:
    """``transformers.Trainer``, paused and resumed by a callback between steps."""

    def __init__(self, given: argparse.Namespace) -> None:
        import torch
        import transformers

        from lehr_trainer.configs.train import LlamaConfig
        from lehr_trainer.models import build_model

        transformers.logging.set_verbosity_error()
        shape = transformers.LlamaConfig(
            vocab_size=SHAPE["vocab_size"],
            hidden_size=SHAPE["hidden_size"],
            intermediate_size=SHAPE["intermediate_size"],
            num_hidden_layers=SHAPE["num_hidden_layers"],
            num_attention_heads=SHAPE["num_attention_heads"],
            num_key_value_heads=SHAPE["num_key_value_heads"],
            max_position_embeddings=SHAPE["max_sequence_length"],
            rope_parameters={"rope_type": "default", "rope_theta": SHAPE["rope_theta"]},
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            use_cache=False,
        )
        model = transformers.LlamaForCausalLM(shape)
        ours = build_model(LlamaConfig(**SHAPE), device="cpu", seed=0)
        missing = model.model.load_state_dict(ours.state_dict(), strict=False)
        assert not missing.missing_keys, missing
        self.model, self.given = model, given
        folder = tempfile.mkdtemp(prefix="hf-bench-")
        self.arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=10**6,
            per_device_train_batch_size=given.sequences,
            learning_rate=3e-4,
            weight_decay=0.1,
            adam_beta1=0.9,
            adam_beta2=0.95,
            max_grad_norm=1.0,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            bf16=given.compute == "bf16",
            use_cpu=given.device == "cpu",
            torch_compile=given.compile != "none",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        given_length = given.length

        class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
            def __len__(self) -> int:
                return 10**6 * given.sequences

            def __getitem__(self, index: int) -> Any:
                return index

        def together(indices: list[int]) -> dict[str, Any]:
            rows = tokens_of(indices[0] // given.sequences, given.sequences, given_length)
            return inputs_of(rows)

        class InOrder(transformers.Trainer):
            def _get_train_sampler(self, *_: Any) -> Any:
                return torch.utils.data.SequentialSampler(Rows())

        self.trainer = InOrder(
            model=model, args=self.arguments, train_dataset=Rows(), data_collator=together
        )

    def serve(self, between: Any) -> None:
        """Train, calling ``between`` after each step."""
        import transformers

        class Between(transformers.TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                between()

        self.trainer.add_callback(Between())
        self.trainer.train()

    def loss(self) -> float:
        import torch

        rows = tokens_of(10**6, self.given.sequences, self.given.length)
        rows = rows.to(self.model.device)
        with torch.no_grad():
            return float(self.model(**inputs_of(rows)).loss)


def run(which: str, pipe: Any, given: argparse.Namespace) -> None:
    """Wait for a number of steps, run them, return the seconds; ``None`` requests the loss."""
    import torch

    torch.set_num_threads(given.threads)
    subject: Any = Ours(given) if which == "ours" else Theirs(given)
    state = {"left": 0, "began": (0.0, 0.0)}

    def synchronize() -> None:
        if given.device == "cuda":
            torch.cuda.synchronize()

    def wait_for_order() -> None:
        while True:
            order = pipe.recv()
            if order is None:
                pipe.send(subject.loss())
                continue
            if order == "end":
                os._exit(0)
            state["left"], state["began"] = order, (time.perf_counter(), time.process_time())
            return

    def step_done() -> None:
        state["left"] -= 1
        if state["left"] == 0:
            synchronize()
            began = state["began"]
            pipe.send((time.perf_counter() - began[0], time.process_time() - began[1]))
            wait_for_order()

    wait_for_order()
    if which == "ours":
        while True:
            subject.steps(1)
            step_done()
    subject.serve(step_done)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compute", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--compile", default="none", choices=["none", "block"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1, help="of a turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--required", type=float, default=1.2)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for which in ("ours", "theirs"):
        pipes[which], other = context.Pipe()
        processes.append(context.Process(target=run, args=(which, other, given), daemon=True))
        processes[-1].start()
    pairs: list[dict[str, tuple[float, float]]] = []
    for turn in range(given.pairs + 1):
        order = ("ours", "theirs") if turn % 2 else ("theirs", "ours")
        taken = {}
        for which in order:
            pipes[which].send(2 if turn == 0 else given.steps)
            taken[which] = pipes[which].recv()
        if turn:  # the first warms up
            pairs.append(taken)
    losses = {}
    for which, pipe in pipes.items():
        pipe.send(None)
        losses[which] = pipe.recv()
        pipe.send("end")
    for process in processes:
        process.join(10)
        process.kill()
    ratios = [[pair["theirs"][k] / pair["ours"][k] for pair in pairs] for k in (0, 1)]
    import torch
    import transformers

    processor = statistics.median(ratios[1])
    report = {
        "bench": "ours over transformers' Trainer, tokens/s",
        "ratio_of_processor_time": round(processor, 3),
        "range_of_processor_time": [round(min(ratios[1]), 3), round(max(ratios[1]), 3)],
        "ratio_by_clock": round(statistics.median(ratios[0]), 3),
        "ours_cpu_s_per_step": statistics.median(p["ours"][1] for p in pairs) / given.steps,
        "theirs_cpu_s_per_step": statistics.median(p["theirs"][1] for p in pairs) / given.steps,
        "loss_on_the_same_tokens_after": losses,
        "pairs": given.pairs,
        "batch": [given.sequences, given.length],
        "compute": given.compute,
        "compile": given.compile,
        "threads": given.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load": os.getloadavg()[0],
        "required": given.required,
        "holds": processor >= given.required,
    }
    print(json.dumps(report, indent=1))
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
