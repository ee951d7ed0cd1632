"""A sweep's live table and its headline, from a view."""

import io

from rich.console import Console

from lehr.faces.cli.group_table import trials_table
from lehr.schemas.runs import GpuRef, Latest, RunView
from lehr.schemas.sweeps import SweepDetail, TrialView
from lehr_testing.sweep_views import progress_fields

NOW = 1_000_000.0


def trial(number, lr, state, *, step=None, value=None, rank=None, node="n1", **more) -> TrialView:
    latest = {} if value is None else {"val/loss": Latest(value=value, step=400)}
    if state == "running" and step:
        latest |= {
            "tokens_per_s": Latest(value=31_234.0, step=step),
            "mfu": Latest(value=0.487, step=step),
        }
    run = RunView(
        id=f"run{number}",
        name=f"lr-grid-{number}",
        project="omk",
        state=state,
        placement=[GpuRef(node=node, gpu=number - 1)] if state == "running" else [],
        step=step,
        total_steps=1000,
        tokens_per_step=65_536,
        latest=latest,
        created_at=NOW,
        **more,
    )
    return TrialView(
        number=number,
        parameters={"train.optimizer.lr": lr},
        run=run,
        value=value,
        rank=rank,
        best=rank == 1,
    )


def sweep(*trials: TrialView) -> SweepDetail:
    counts: dict[str, int] = {}
    for one in trials:
        counts[one.run.state] = counts.get(one.run.state, 0) + 1
    return SweepDetail(
        id="s1",
        name="lr-grid",
        project="omk",
        method="grid",
        metric="val/loss",
        goal="minimize",
        parameters=["train.optimizer.lr"],
        counts=counts,
        state="running",
        created_at=NOW,
        spec={},
        trials=list(trials),
        **progress_fields([one.run for one in trials]),
    )


def text(renderable) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(renderable)
    return [line.rstrip() for line in out.getvalue().splitlines()]


TREND = [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
TRIALS = (
    trial(
        1, 1e-4, "running", step=412, value=5.912, rank=2, trend=TREND, eta_s=1260, started_at=NOW
    ),
    trial(
        2, 3e-4, "running", step=412, value=5.204, rank=1, trend=TREND, eta_s=1230, started_at=NOW
    ),
    trial(
        3, 2.4e-3, "failed", step=188, value=float("nan"), reason="loss became NaN (LR too high)"
    ),
    trial(4, 1e-2, "queued", pending_reason="waits for 1 x A100; next in line"),
)


def test_table_has_the_best_first_the_unranked_last_and_names_each_run():
    lines = text(trials_table(sweep(*TRIALS)))
    assert lines[0].split() == [
        "#", "run", "lr", "val/loss", "trend", "tok/s", "MFU", "GPU", "state",
    ]  # fmt: skip
    assert lines[1].split()[:5] == ["1", "lr-grid-2", "3.0e-4", "5.204", "best"]
    assert lines[2].split() == [
        "2", "lr-grid-1", "1.0e-4", "5.912", "█▇▆▅▄▃▂▁", "31.2k", "49", "%", "0", "running", "412",
    ]  # fmt: skip
    assert lines[3].split()[:4] == ["—", "lr-grid-3", "2.4e-3", "nan"]
    assert lines[3].endswith("failed: loss became NaN (LR too high)")
    assert lines[4].split()[:3] == ["—", "lr-grid-4", "1.0e-2"]
    assert lines[4].endswith("queued: waits for 1 x A100; next in line")


def test_user_text_is_not_markup_and_has_no_terminal_codes():
    odd = trial(1, "[/]", "failed", reason="\x1b[2J\x1b]0;title\x07gone [/dim] C:\\temp")
    view = sweep(odd).model_copy(update={"metric": "[/val]"})
    lines = text(trials_table(view))
    assert "[/val]" in lines[0]
    assert lines[1].split()[2] == "[/]"
    assert lines[1].endswith("failed: gone [/dim] C:\\temp")
    assert "\x1b" not in "".join(lines)
