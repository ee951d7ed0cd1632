"""Communication of ranks, in a process group of one."""

# No postponed annotations: DDP looks at those of a hook.

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lehr_trainer.configs.execution import ParallelConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.errors import BadConfig, DiskFull
from lehr_trainer.models import build_model
from lehr_trainer.runtime.distributed import Ranks


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """A single process with a process group, so that the code for many ranks runs."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Ranks(0, 1, torch.device("cpu"), dist.new_group(backend="gloo"))
    if dist.is_initialized():
        dist.destroy_process_group()


def test_accumulating_micro_batches_send_nothing_and_the_last_sends_all(ranks: Ranks) -> None:
    model = build_model(
        LlamaConfig.model_validate(MODEL_PRESETS["tiny"].values), device="cpu", seed=0
    )
    wrapped = ranks.wrap(model, ParallelConfig(bucket_mb=1.0))
    sent: list[int] = []

    def count(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.buffer().numel())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped.register_comm_hook(None, count)
    tokens = torch.randint(0, 512, (2, 16))
    # DDP cuts its buckets after the first step, when it has seen in which order gradients come.
    for step in range(2):
        sent.clear()
        for _ in range(2):
            with ranks.no_sync_while(wrapped, keep=True):
                wrapped(tokens).sum().backward()
        assert sent == []
        with ranks.no_sync_while(wrapped, keep=False):
            wrapped(tokens).sum().backward()
        assert sum(sent) == sum(parameter.numel() for parameter in model.parameters())
        assert step == 0 or len(sent) > 2, "1 MB buckets go one after another"


@pytest.mark.parametrize(
    ("local", "asked", "mb"), [(None, None, 25), (16, None, 25), (8, None, 100), (8, 5, 5)]
)
def test_buckets_are_larger_across_nodes(local: int | None, asked: float | None, mb: float) -> None:
    ranks = Ranks(0, 16, torch.device("cpu"), local_size=local)
    assert ranks.bucket_mb(ParallelConfig(bucket_mb=asked)) == mb


def test_single_process_does_not_wrap_the_model() -> None:
    model = torch.nn.Linear(2, 2)
    alone = Ranks(0, 1, torch.device("cpu"))
    assert alone.wrap(model, ParallelConfig()) is model


def test_text_of_every_rank_is_gathered_unchanged(ranks: Ranks) -> None:
    assert ranks.on_rank0(lambda: {"a": [1, None, "π"]}) == {"a": [1, None, "π"]}
    assert ranks.gather_text("π ≠ 3") == ["π ≠ 3"]
    assert ranks.all_reduce_max([3, -1]) == [3, -1]
    assert ranks.begin_sum(2**52 - 1, 3)() == [2**52 - 1, 3]


def test_error_of_rank_0_is_raised_on_every_rank(ranks: Ranks) -> None:
    def fail() -> None:
        raise DiskFull("no space left")

    with pytest.raises(DiskFull, match="no space left"):
        ranks.on_rank0(fail)


def test_destroy_waits_for_other_ranks_and_releases_the_group(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(dist, "barrier", lambda group: asked.append(group is ranks.cpu_group))
    ranks.destroy()
    assert asked == [True]
    assert ranks.cpu_group is None
    assert not dist.is_initialized()


def test_rank_that_has_ended_does_not_make_destroy_fail(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(**_: object) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")

    monkeypatch.setattr(dist, "barrier", gone)
    ranks.destroy()
    assert "another rank had already ended" in capsys.readouterr().err
    assert not dist.is_initialized()


def test_interrupted_ranks_do_not_wait_for_each_other(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "barrier", lambda **_: pytest.fail("it would wait for ever"))
    ranks.destroy(together=False)
    assert not dist.is_initialized()


def test_missing_device_is_a_bad_config(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(BadConfig, match="torch sees no CUDA GPU"):
        Ranks.join("cuda")
    assert Ranks.join("auto").device.type == "cpu"
