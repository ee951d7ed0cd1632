"""The tests in ``tests/gpu`` run here with a CPU in the place of the GPU, as far as one can take it.

It shows that their own code works: names, arguments, bounds. What only a GPU has is replaced by calls
that do nothing, so nothing is shown about a GPU.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from lehr_testing import fake_transformer_engine
from lehr_testing.paths import ROOT
from lehr_testing.specs import text_corpus

FOLDER = ROOT / "tests" / "gpu"
DRIVER = SimpleNamespace(
    is_available=lambda: True,
    synchronize=lambda: None,
    get_sync_debug_mode=lambda: 0,
    set_sync_debug_mode=lambda _mode: None,
)
"""Stands for ``torch.cuda``."""
MODES = ("default", "reduce-overhead", "max-autotune")
KERNELS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("test_each_loss_on_bf16_operands_is_near_float64", {"name": name})
        for name in ("chunked", "standard", "torch_chunked")
    ),
    ("test_each_attention_kernel_matches_the_math_kernel", {"backend": "flash"}),
    ("test_documents_are_kept_apart_as_by_the_math_kernel_in_backward_too", {"backend": "auto"}),
    ("test_attend_never_falls_back_to_math_in_fp32", {}),
    *(
        ("test_accumulation_matches_one_large_batch_in_each_compile_mode", {"mode": mode})
        for mode in MODES
    ),
    ("test_fp8_trains_on_the_device", {"recipe": "te_delayed"}),
    *(
        ("test_updates_and_diagnostics_never_wait_for_the_device", {"name": name})
        for name in ("adamw", "muon")
    ),
    ("test_model_runs_flash_attention", {}),
]
STEPS: list[dict[str, Any]] = [
    {"precision": {"compute": "bf16"}},
    {"precision": {"compute": "fp16"}},
    {"precision": {"compute": "bf16"}, "optimizer": {"name": "muon"}},
    {"precision": {"compute": "bf16"}, "skip_step": {"enabled": True}},
]
RUN_HERE = {
    *(name for name, _ in KERNELS),
    "test_batch_is_equal_on_gpu_and_cpu",
    "test_loading_a_batch_never_waits_for_the_gpu",
    "test_the_held_out_set_is_the_same_on_the_gpu",
    "test_steps_with_all_their_metrics_never_wait_for_the_device",
    "test_run_resumed_on_cuda_is_bitwise_equal_to_an_undisturbed_one",
    "test_nan_on_cuda_stops_the_run_although_it_is_read_a_step_late",
}
NOT_HERE = {
    "test_math_fallback_alone_causes_a_warning": "a CPU has one choice of kernel",
    "test_diagnostics_of_masked_documents_agree_and_hold_no_scores_of_all_heads": "the memory is the "
    "CUDA allocator's",
    "test_prefetched_batches_are_pinned": "a CPU build of torch pins nothing",
    "test_copy_of_the_state_is_complete_and_pinned": "a CPU build of torch pins nothing",
    "test_mfu_and_memory_are_logged_for_a_known_device": "the memory is the CUDA allocator's",
}


def on_cpu(name: str) -> ModuleType:
    """Load a file of ``tests/gpu`` with a CPU for its device."""
    source = (FOLDER / f"{name}.py").read_text()
    for old, new in (('"cuda"', '"cpu"'), ("torch.cuda", "DRIVER"), (".is_cuda", ".is_cpu")):
        source = source.replace(old, new)
    module = ModuleType(name)
    module.__dict__.update(DRIVER=DRIVER)
    exec(compile(source, FOLDER / f"{name}.py", "exec"), module.__dict__)
    return module


@pytest.fixture
def eager() -> Iterator[None]:
    """Run what would be compiled as it is: compiling takes minutes on a CPU."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def test_every_test_of_the_gpu_runs_here_or_has_a_reason() -> None:
    found = {
        node.name
        for file in FOLDER.glob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert found == RUN_HERE | NOT_HERE.keys()
    assert not RUN_HERE & NOT_HERE.keys()


# Together they take a minute; the test above sees a test that is missing here.
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "given"), KERNELS, ids=str)
@pytest.mark.usefixtures("eager")
def test_kernels(name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = on_cpu("test_kernels")
    monkeypatch.setattr(module, "need", lambda _name: None)
    fake_transformer_engine.install(monkeypatch)
    getattr(module, name)(**given)


@pytest.mark.nightly
def test_data(tmp_path: Path) -> None:
    module = on_cpu("test_data_cuda")
    prepared = module.prepare_texts(tmp_path, module.documents(400))
    for workers in (0, 1, 3):
        module.test_batch_is_equal_on_gpu_and_cpu(prepared, workers)
    module.test_loading_a_batch_never_waits_for_the_gpu(prepared)
    module.test_the_held_out_set_is_the_same_on_the_gpu(prepared)


@pytest.mark.nightly
@pytest.mark.parametrize("changes", STEPS, ids=str)
def test_steps_of_the_whole_loop(tmp_path: Path, changes: dict[str, Any]) -> None:
    module = on_cpu("test_no_waiting_cuda")
    module.test_steps_with_all_their_metrics_never_wait_for_the_device(changes, tmp_path)


@pytest.mark.nightly
def test_runs(tmp_path: Path) -> None:
    module = on_cpu("test_trainer_cuda")
    corpus = text_corpus(tmp_path / "texts")
    for name, given in (
        ("test_run_resumed_on_cuda_is_bitwise_equal_to_an_undisturbed_one", {"compute": "fp32"}),
        ("test_nan_on_cuda_stops_the_run_although_it_is_read_a_step_late", {}),
    ):
        act = getattr(module, name)
        folder = tmp_path / name
        folder.mkdir()
        act(**{"tmp_path": folder, "corpus": corpus, **given})
