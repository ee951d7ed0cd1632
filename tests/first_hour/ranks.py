"""Two and more GPUs: the same training as on one, overlap, resume, and a rank that is killed.

On a GPU torchrun starts the ranks and gradients go by NCCL; a rehearsal forks two ranks with gloo.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from first_hour import trained
from first_hour.parts import Failed, NotHere, Part, Result, Session
from lehr_testing.overlap import communication
from lehr_testing.trainer import (
    EAGER,
    KILL,
    TERMINATE,
    different_tensors,
    losses,
    records,
    sabotage,
    series,
)
from lehr_trainer.contract import layout

GROUP = "Several GPUs"
KEPT = "ranks: like one"
"""The part whose undisturbed run with two ranks the others compare with."""
EXACT: dict[str, Any] = {
    "precision": {"compute": "fp32", "tf32": False},
    "deterministic": True,
    "steps": 10,
    "checkpoint": {"every": 4},
    "diagnostics": {
        "quality_every": 5,
        "quality_tokens": 128,
        "sample": {"every": 5, "prompt": "the lehr ", "tokens": 4},
    },
}
"""fp32 and deterministic, so that what is compared differs by the order of sums alone."""
ALONE = """
import torch.distributed as dist
from lehr_trainer.runtime.distributed import Ranks

one = Ranks.join.__func__

def join(cls, requested):
    ranks = one(cls, requested)
    cuda = ranks.device.type == "cuda"
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        device_id=ranks.device if cuda else None,
        store=dist.HashStore(),
        rank=0,
        world_size=1,
    )
    print("process group:", dist.get_backend(), flush=True)
    return cls(0, 1, ranks.device, dist.new_group(backend="gloo"))

Ranks.join = classmethod(join)
"""
"""Code that gives a single process the group, and so the DDP, of several."""
AFTER = 6
"""The step in which a run is disturbed: between the checkpoints of steps 4 and 8."""


def like_one(session: Session, *, count: int) -> Result:
    """Compare a run on ``count`` GPUs with the same on one: losses and gradient norms."""
    folder = session.work(KEPT if count == 2 else f"ranks: like one, {count}")
    one = trained.train(session, folder / "one", **_exact(session, count))
    several = trained.train(session, folder / "several", ranks=count, **_exact(session, count))
    world = records(several, "started")[0]["world_size"]
    if world != count:
        raise Failed(f"it ran on {world} ranks instead of {count}")
    gap = trained.gap_between(losses(several), losses(one))
    on_cuda = session.machine.on_cuda
    trained.require_near(gap, 2e-3 if on_cuda else 5e-5, f"losses on {count} GPUs and on one")
    norms, wanted = (series("train/grad_norm", attempt) for attempt in (several, one))
    off = max(abs(norms[step] / wanted[step] - 1) for step in wanted)
    trained.require_near(off, 2e-2 if on_cuda else 1e-3, "gradient norms, relatively,")
    return Result({**trained.figures(several), "gap to one GPU (nats)": gap})


def alone(session: Session) -> Result:
    """Train one rank with DDP and a group of its own: bitwise the run without, and fast ways near it.

    So a machine with one GPU runs NCCL, the hooks of gradients and what compiles beside them.
    """
    folder = session.work("ranks: alone")
    plain = trained.train(session, folder / "plain", **_exact(session, 1))
    grouped = trained.train(session, folder / "grouped", code=ALONE, **_exact(session, 1))
    backend = "nccl" if session.machine.on_cuda else "gloo"
    if f"process group: {backend}" not in layout.rank_log(grouped, 0).read_text():
        raise Failed(f"it did not train with {backend}; see {layout.rank_log(grouped, 0)}")
    if losses(grouped) != losses(plain):
        gap = trained.gap_between(losses(grouped), losses(plain))
        raise Failed(f"its losses differ from those without a group by up to {gap:.3g} nats")
    different = different_tensors(grouped, plain)
    if different:
        raise Failed(f"{len(different)} tensors differ bitwise, among them {different[0]}")
    changes: dict[str, Any] = {**_exact(session, 1), "parallel": {"compression": "bf16"}}
    if session.machine.on_cuda:
        changes |= {
            "precision": {"compute": "bf16"},
            "compile": {"scope": "block"},
            "deterministic": False,
        }
    figures: dict[str, Any] = {"bitwise": "equal"}
    for optimizer, more in {
        "AdamW": {},
        "Muon": {"optimizer": {"name": "muon", "lr": 0.01, "embedding_lr": 1e-3}},
    }.items():
        attempt = trained.train(session, folder / optimizer, code=ALONE, **changes, **more)
        trained.require_sound(attempt)
        if not more:
            gap = trained.gap_between(losses(attempt), losses(plain))
            trained.require_near(gap, 0.05, "losses with compressed gradients and in fp32")
            figures |= {**trained.figures(attempt), "gap to fp32 (nats)": gap}
    return Result(figures)


def fast(session: Session, *, count: int) -> Result:
    """Train as users do: bf16, compiled blocks, compressed gradients; near the same in fp32.

    Once with AdamW and once with Muon, whose ranks send each other their updates, too. Muon
    compiles into an empty cache, since ranks wait for each other only there.
    """
    changes: dict[str, Any] = {**_exact(session, count), "parallel": {"compression": "bf16"}}
    if session.machine.on_cuda:
        changes |= {
            "precision": {"compute": "bf16"},
            "compile": {"scope": "block"},
            "deterministic": False,
        }
    folder = session.work(f"ranks: fast, {count}")
    attempt = trained.train(session, folder / "adamw", ranks=count, **changes)
    trained.require_sound(attempt)
    gap = trained.gap_between(losses(attempt), losses(_undisturbed(session, count)))
    trained.require_near(gap, 0.05, "losses in bf16 and in fp32")
    muon = {"optimizer": {"name": "muon", "lr": 0.01, "embedding_lr": 1e-3}}
    one = trained.train(session, folder / "muon, one", **_exact(session, count), **muon)
    cache = f"import os; os.environ['TORCHINDUCTOR_CACHE_DIR'] = {str(folder / 'cache')!r}\n"
    if not session.machine.on_cuda:
        changes |= {"compile": {"scope": "block"}}
        cache += EAGER
    several = trained.train(session, folder / "muon", ranks=count, code=cache, **changes, **muon)
    trained.require_sound(several)
    muon_gap = trained.gap_between(losses(several), losses(one))
    trained.require_near(muon_gap, 0.05, f"Muon's losses on {count} GPUs and on one")
    figures = {**trained.figures(attempt), "gap to fp32 (nats)": gap}
    return Result({**figures, "Muon's gap to one GPU (nats)": muon_gap})


def overlap(session: Session) -> Result:
    """Require, in a trace, that gradients leave while the backward pass still computes."""
    profile = {"tool": "torch", "wait": 2, "warmup": 1, "active": 2}
    # Small buckets: the first of them is full long before the backward pass ends.
    changes = {**_exact(session, 2), "profile": profile, "parallel": {"bucket_mb": 0.05}}
    folder = session.work("ranks: overlap")
    attempt = trained.train(session, folder, ranks=2, **changes)
    trace = attempt / layout.PROFILES / "trace-rank-0.json.gz"
    found = communication(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    if not found.sent:
        raise Failed(f"the trace has no gradients that are sent: {trace}")
    if not found.before_the_end:
        raise Failed(f"no gradient leaves before the backward pass has ended: {trace}")
    figures: dict[str, Any] = {
        "buckets sent": found.sent,
        "before the end of backward": found.before_the_end,
    }
    if found.hidden is not None:
        figures["behind other work (%)"] = 100 * found.hidden
    return Result(figures)


def resume(session: Session) -> Result:
    """Stop two ranks by SIGTERM, resume on two: bitwise the undisturbed run."""
    folder = session.work("ranks: resume")
    stop = sabotage(at_step=AFTER, act=TERMINATE)
    first = trained.train(session, folder, ranks=2, code=stop, **_exact(session, 2))
    if records(first, "finished")[0]["outcome"] != "stopped":
        raise Failed(f"SIGTERM did not stop it: {records(first, 'finished')}")
    return _require_equal(session, folder, ranks=2)


def killed(session: Session) -> Result:
    """Kill one of two ranks: the other ends by itself, and the run resumes from its checkpoint."""
    folder = session.work("ranks: killed")
    saved = layout.checkpoint_dir(layout.attempt_dir(folder, 1), EXACT["checkpoint"]["every"])
    harm = sabotage(at_step=AFTER, act=KILL, ranks=(1,), after=saved)
    trained.train(session, folder, ranks=2, code=harm, fails=True, **_exact(session, 2))
    return _require_equal(session, folder, ranks=2)


def on_one(session: Session) -> Result:
    """Resume on one GPU what two began."""
    folder = session.work("ranks: on one")
    stop = sabotage(at_step=AFTER, act=TERMINATE)
    first = trained.train(session, folder, ranks=2, code=stop, **_exact(session, 2))
    second = trained.train(session, folder, ranks=1)
    curve = losses(first, second)
    gap = trained.gap_between(curve, losses(_undisturbed(session, 2)))
    trained.require_near(gap, 2e-3 if session.machine.on_cuda else 1e-4, "losses")
    return Result({"gap to two GPUs (nats)": gap})


def _require_equal(session: Session, folder: Path, *, ranks: int) -> Result:
    """Finish the run and require that losses, weights and optimizer are those of the undisturbed."""
    second = trained.train(session, folder, ranks=ranks)
    resumed = records(second, "resumed")
    if not resumed or not 0 < resumed[0]["step"] <= AFTER:
        raise Failed(f"it did not resume from before step {AFTER}: {resumed}")
    want = _undisturbed(session, ranks)
    first = layout.attempt_dir(folder, 1)
    if losses(first, second) != losses(want):
        gap = trained.gap_between(losses(first, second), losses(want))
        raise Failed(f"its losses differ from the undisturbed run's, by up to {gap:.3g} nats")
    different = different_tensors(second, want)
    if different:
        raise Failed(f"{len(different)} tensors differ bitwise, among them {different[0]}")
    return Result({"resumed at step": resumed[0]["step"], "bitwise": "equal"})


def _undisturbed(session: Session, count: int) -> Path:
    folder = session.work(KEPT if count == 2 else f"ranks: like one, {count}", fresh=False)
    attempts = layout.attempts(folder / "several") if (folder / "several").exists() else []
    if not attempts:
        raise Failed(f"there is nothing to compare with: {KEPT!r} did not run")
    return attempts[-1]


def _exact(session: Session, count: int) -> dict[str, Any]:
    """Return the changes of an exact run, with the same batch for any number of ranks."""
    length = 256 if session.machine.on_cuda else 64
    batch = {"sequences": 4 * count, "sequence_length": length, "micro_batch": 2}
    return {**EXACT, "batch": batch}


def _need(session: Session, count: int) -> None:
    if session.machine.ranks < count:
        raise NotHere(f"needs {count} GPUs; this machine has {session.machine.ranks}")


def _on(count: int, act: Callable[[Session], Result]) -> Callable[[Session], Result]:
    def checked(session: Session) -> Result:
        _need(session, count)
        return act(session)

    return checked


def parts(session: Session) -> list[Part]:
    """List the parts; those on 4 and on 8 GPUs only if there are so many."""
    more = [count for count in (4, 8) if count <= session.machine.ranks]
    found = [
        ("ranks: alone", 1, alone),
        (KEPT, 2, partial(like_one, count=2)),
        ("ranks: fast", 2, partial(fast, count=2)),
        ("ranks: overlap", 2, overlap),
        ("ranks: resume", 2, resume),
        ("ranks: killed", 2, killed),
        ("ranks: on one", 2, on_one),
    ]
    for count in more:
        found += [
            (f"ranks: like one, {count}", count, partial(like_one, count=count)),
            (f"ranks: fast, {count}", count, partial(fast, count=count)),
        ]
    return [Part(name, GROUP, _on(count, act)) for name, count, act in found]
