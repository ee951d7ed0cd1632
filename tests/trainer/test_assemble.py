"""Assembly: each switch of the config reaches its part, observed from outside.

What a technique does is tested beside its own module; here, that it is connected.
"""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lehr_testing.assembled import assembled, begin, recorded
from lehr_testing.graphs import captured_graphs
from lehr_testing.specs import text_corpus
from lehr_testing.specs import train as train_values
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadConfig, BadData
from lehr_trainer.models.attention import AttentionCall
from lehr_trainer.models.module_map import blocks, module_map
from lehr_trainer.runtime import environment
from lehr_trainer.train import Training

QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 0}, "checkpoint": {"every": 0}}


def one_step(training: Training) -> None:
    with training.loader:
        training.wrapped.train()
        training.metrics_logger.start_at(training.progress.step, training.progress.tokens)
        training.take_step()


# --- techniques ------------------------------------------------------------------------------


def forwards(training: Training) -> dict[str, int]:
    """Count how often attention and MLP of each layer run in a step."""
    calls: Counter[str] = Counter()
    where = module_map(training.model)
    for index, block in enumerate(blocks(training.model)):
        for name in (where.attention, where.mlp):
            # Beneath the module itself, whose forward may be what recomputes.
            first = next(m for m in block.get_submodule(name).modules() if isinstance(m, nn.Linear))
            first.register_forward_hook(lambda *_, key=f"{name} {index}": calls.update([key]))
    one_step(training)
    return dict(calls)


@pytest.mark.parametrize(
    ("activation_checkpointing", "twice"),
    [
        ({"policy": "none"}, set()),
        ({"policy": "block"}, {"self_attn 0", "self_attn 1", "mlp 0", "mlp 1"}),
        ({"policy": "block", "every": 2}, {"self_attn 0", "mlp 0"}),
        ({"policy": "swiglu"}, {"mlp 0", "mlp 1"}),
        ({"policy": "attention"}, {"self_attn 0", "self_attn 1"}),
    ],
    # A set prints its members in another order in each process.
    ids=["none", "block", "every second block", "swiglu", "attention"],
)
def test_checkpointed_parts_run_twice_in_a_step(
    tmp_path: Path, corpus: Path, activation_checkpointing: dict[str, Any], twice: set[str]
) -> None:
    training = begin(
        tmp_path / "run", corpus, activation_checkpointing=activation_checkpointing, **QUIET
    )
    calls = forwards(training)
    assert set(calls) == {"self_attn 0", "self_attn 1", "mlp 0", "mlp 1"}
    assert {name for name, count in calls.items() if count == 2} == twice
    assert set(calls.values()) <= {1, 2}


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    # Whether the same model was compiled before is recorded beside inductor's cache.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with captured_graphs() as given:
        yield given


@pytest.mark.parametrize(("scope", "count"), [("none", 0), ("block", 1), ("model", 1)])
def test_model_is_compiled_before_the_first_step(
    tmp_path: Path, corpus: Path, graphs: list[torch.fx.GraphModule], scope: str, count: int
) -> None:
    training = begin(tmp_path / "run", corpus, compile={"scope": scope}, **QUIET)
    assert len(graphs) == count, "its two layers share a graph"
    messages = [r["message"] for r in recorded(training, "notice") if r["phase"] == "compile"]
    assert bool(messages) == bool(count)
    attentions = [
        node
        for graph in graphs
        for node in graph.graph.nodes
        if "scaled_dot_product_attention" in str(node.target)
    ]
    assert len(attentions) == {"none": 0, "block": 1, "model": 2}[scope]
    one_step(training)
    assert len(graphs) == count, "a step compiled what was to be compiled before"


class MostRows(TorchDispatchMode):
    """Watch every operation, and record the most rows of logits in one tensor."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.rows, self._head = 0, tuple(training.model.head_weight.shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.shape[-1:] == self._head[:1]:
                self.rows = max(self.rows, leaf.numel() // self._head[0])
        return out


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        # In 1 MiB there are 512 rows of 512 fp32 logits.
        ({"name": "chunked", "chunk_mb": 1}, 512),
        ({"name": "chunked"}, 1024),
        ({"name": "standard"}, 1024),
        # In one operation of torch, which cuts them itself.
        ({"name": "torch_chunked"}, 0),
    ],
    ids=str,
)
def test_loss_holds_as_many_logits_as_configured(
    tmp_path: Path, corpus: Path, loss: dict[str, Any], rows: int
) -> None:
    batch = {"sequences": 16, "sequence_length": 64}
    training = begin(tmp_path / "run", corpus, loss=loss, batch=batch, **QUIET)
    with MostRows(training) as watch:
        one_step(training)
    assert watch.rows == rows


def test_math_kernel_causes_one_warning(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[AttentionCall] = []

    def fallback(call: AttentionCall) -> str:
        calls.append(call)
        return "attention runs on the math kernel"

    # Only a GPU shows which kernel runs; this test checks the reaction to it.
    monkeypatch.setattr("lehr_trainer.dry_run.math_fallback", fallback)
    batch = {
        "sequences": 4,
        "sequence_length": 64,
        "micro_batch": 2,
        "stages": [{"after": 0.5, "sequence_length": 128}],
    }
    training = begin(tmp_path / "run", corpus, batch=batch, **QUIET)
    training.loader.close()
    (warning,) = recorded(training, "warning")
    assert warning["code"] == "math_attention"
    assert warning["message"] == "attention runs on the math kernel"
    (call,) = calls
    assert (call.batch, call.heads, call.kv_heads) == (2, 2, 1)
    assert (call.length, call.head_size, call.dtype) == (64, 16, torch.float32)


def test_documents_see_only_themselves_if_masked(tmp_path: Path, corpus: Path) -> None:
    masked, plain = (
        begin(tmp_path / str(on), corpus, attention={"document_masking": on}, **QUIET)
        for on in (True, False)
    )
    tokens = torch.arange(64)[None] % 97
    other = tokens.clone()
    end = masked.stage.data.eos_id
    tokens[0, 20] = other[0, 20] = end
    other[0, :20] += 1
    for training, same in ((masked, True), (plain, False)):
        with torch.no_grad():
            after = [training.model(*training.make_input(t))[0, 21:] for t in (tokens, other)]
        assert torch.equal(*after) == same
        training.loader.close()


# --- data ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 4), (2, 3)])
def test_batches_are_made_ahead_by_the_configured_threads(
    tmp_path: Path, corpus: Path, workers: int, prefetch: int
) -> None:
    data = {"corpus": {"kind": "text", "paths": [str(corpus)]}, "tokenizer": "byte"}
    ahead = {"workers": workers, "prefetch": prefetch}
    before = set(threading.enumerate())
    training = begin(tmp_path / "run", corpus, data={**data, **ahead}, **QUIET)
    with training.loader:
        made = [t for t in threading.enumerate() if t not in before and "loader" in t.name]
        assert len(made) == workers
        assert len(training.loader._ready) == workers * prefetch


def test_seed_determines_weights_order_and_generators(tmp_path: Path, corpus: Path) -> None:
    first, again, other = (
        begin(tmp_path / name, corpus, seed=seed, **QUIET)
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    assert torch.initial_seed() == 4 * 1_000_003
    assert np.random.get_state()[1][0] == 4 * 1_000_003  # noqa: NPY002 - the one that is saved
    weights = [training.model.head_weight for training in (first, again, other)]
    batches = []
    for training in (first, again, other):
        with training.loader:
            batches.append(training.loader.batch(0)[0])
    for values in (weights, batches):
        assert torch.equal(values[0], values[1])
        assert not torch.equal(values[0], values[2])


# --- going on --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, corpus: Path) -> Path:
    """Make a run of one step, saved."""
    training = begin(tmp_path / "run", corpus, **QUIET)
    one_step(training)
    training.save("order", None, final=True)
    training.checkpointer.end()
    return tmp_path / "run"


def test_run_resumes_only_with_its_own_data(saved: Path, tmp_path: Path, corpus: Path) -> None:
    other = text_corpus(tmp_path / "others", documents=61)
    with pytest.raises(BadData, match="the training data changed"):
        begin(saved, other, **QUIET)
    again = begin(saved, corpus, **QUIET)
    again.loader.close()
    assert again.progress.step == 1


@pytest.mark.parametrize("name", ["torch", "torchao", "bitsandbytes"])
def test_run_resumes_in_another_environment_only_if_it_is_not_deterministic(
    name: str, saved: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = environment.versions()
    monkeypatch.setattr(environment, "versions", lambda: {**now, name: "9.9"})
    change = f"{name} {now[name]} -> 9.9"
    with pytest.raises(BadConfig, match=rf"saved in another environment: {name} .* or fork it"):
        begin(saved, corpus, **QUIET)
    lines: list[str] = []
    again = begin(saved, corpus, log=lines.append, **{**QUIET, "deterministic": False})
    again.loader.close()
    (resumed,) = recorded(again, "resumed")
    assert resumed["changed"] == [change]
    assert f"warning: the checkpoint was saved in another environment: {change}" in lines


def test_fork_says_how_many_tokens_its_longer_sequences_leave_out(
    saved: Path, tmp_path: Path, corpus: Path
) -> None:
    checkpoint = saved / "attempt-1" / "checkpoints" / "step-00000001"
    note = LaunchNote(resume="pinned", resume_from=str(checkpoint))
    shape = {"sequences": 2, "sequence_length": 128}
    training = begin(tmp_path / "fork", corpus, note=note, **{**QUIET, "batch": shape})
    training.loader.close()
    (warning,) = recorded(training, "warning")
    assert (warning["code"], warning["step"]) == ("tokens_left_out", 1)
    assert "in pieces shorter than a sequence of 128" in warning["message"]


def test_best_loss_on_another_held_out_set_does_not_count_in_a_fork(
    tmp_path: Path, corpus: Path
) -> None:
    def scored(tokens: int) -> dict[str, Any]:
        return {**QUIET, "validation": {"tokens": tokens, "share": 0.3, "every": 0}}

    first = begin(tmp_path / "run", corpus, **scored(512))
    one_step(first)
    first.progress.best_val_loss = 1.5
    first.save("order", None, final=True)
    first.checkpointer.end()
    (saved,) = (tmp_path / "run" / "attempt-1" / "checkpoints").iterdir()
    note = LaunchNote(resume="pinned", resume_from=str(saved))
    for tokens, best in ((512, 1.5), (256, None)):
        fork = begin(tmp_path / f"fork-{tokens}", corpus, note=note, **scored(tokens))
        fork.loader.close()
        assert fork.progress.best_val_loss == best
    assert "its best val/loss does not count here" in recorded(fork, "notice")[-1]["message"]


HERE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"precision": {"fp8": {"recipe": "rowwise"}}}, "rowwise needs a GPU with FP8"),
        ({"attention": {"backend": "fa3"}}, "attention.backend: fa3"),
        ({"loss": {"name": "cce"}, "precision": {"compute": "bf16"}}, "loss.name: cce"),
        (
            {"parallel": {"static_graph": True}, "batch": {"sequences": 4, "sequence_length": 64, "micro_batch": 1}},
            "parallel.static_graph cannot be combined with gradient accumulation",
        ),
        (
            {"optimizer": {"name": "adamw8bit", "library": "bitsandbytes"}},
            "bitsandbytes",
        ),
    ],
    ids=["fp8", "fa3", "cce", "static-graph", "bitsandbytes"],
)  # fmt: skip
def test_config_that_cannot_train_is_refused_before_data_is_prepared(
    changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if HERE == "cuda" and not {"parallel", "batch", "optimizer"} & changes.keys():
        pytest.skip("this machine has what is asked for")
    whole = importlib.import_module

    def without_bitsandbytes(name: str, package: str | None = None) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError("No module named 'bitsandbytes'")
        return whole(name, package)

    monkeypatch.setattr(importlib, "import_module", without_bitsandbytes)
    monkeypatch.setattr(
        "lehr_trainer.course.prepare_dataset",
        lambda *_, **__: pytest.fail("it prepared the corpus"),
    )
    values = train_values(text_corpus(tmp_path / "texts"), device=HERE, **changes)
    (tmp_path / "run").mkdir()
    with pytest.raises(BadConfig, match=says):
        assembled(tmp_path / "run", values)
