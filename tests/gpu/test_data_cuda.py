"""Batches on a GPU: the same as on the CPU, copied without making the host wait."""

import pytest
import torch

from lehr_testing.corpora import documents, prepare_texts
from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.loader import Loader
from lehr_trainer.evaluate import ValidationSet

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = BatchConfig(sequences=8, sequence_length=32, micro_batch=4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare_texts(tmp_path_factory.mktemp("corpus"), documents(400))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batch_is_equal_on_gpu_and_cpu(prepared, workers):
    with (
        Loader(prepared, SHAPE, seed=1, device="cuda", workers=workers) as gpu,
        Loader(prepared, SHAPE, seed=1, workers=0) as cpu,
    ):
        for step in range(50):
            for micro_step in range(2):
                ours = gpu.batch(step, micro_step)
                theirs = cpu.batch(step, micro_step)
                for mine, other in zip(ours, theirs, strict=True):
                    assert mine.is_cuda
                    assert mine.is_contiguous()
                    assert torch.equal(mine.cpu(), other)


def test_loading_a_batch_never_waits_for_the_gpu(prepared):
    with Loader(prepared, SHAPE, seed=1, device="cuda", workers=1) as loader:
        loader.batch(0)
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(1, 20):
                loader.batch(step)
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def test_prefetched_batches_are_pinned(prepared):
    with Loader(prepared, SHAPE, seed=1, device="cuda", workers=1) as loader:
        loader.batch(0)
        assert all(future.result()[0].is_pinned() for _, future in loader._ready)


def test_the_held_out_set_is_the_same_on_the_gpu(prepared):
    on_cpu = ValidationSet(prepared, 32, 5000)
    on_gpu = ValidationSet(prepared, 32, 5000, device="cuda")
    for ours, theirs in zip(on_gpu.batches(), on_cpu.batches(), strict=True):
        assert torch.equal(ours[0].cpu(), theirs[0])
        assert torch.equal(ours[1].cpu(), theirs[1])
