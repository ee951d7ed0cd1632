"""A real training whose loss spikes: rewound, killed, finished, and past the data that spiked."""

from __future__ import annotations

import os
import signal

import pytest

from lehr_testing.fakes import paced
from lehr_testing.server import events
from lehr_testing.specs import run as run_spec
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
STEPS, SPIKES = 80, (24, 32, 40)


def digests(run) -> dict[int, float]:
    history = run.history("data/digest")
    return dict(zip(history["step"], history["data/digest"], strict=True))


def test_rewound_run_skips_exactly_the_data_since_its_checkpoint(own_server, corpus):
    client = own_server.client()
    never = {
        "checkpoint": {"every": 1000},
        "validation": {"tokens": 512, "share": 0.1, "every": 1000},
    }
    undisturbed = client.submit(run_spec(corpus, "undisturbed", steps=3 * STEPS, **never))
    undisturbed.wait(timeout_s=400)
    assert undisturbed.state == "completed", undisturbed.reason
    plain = digests(undisturbed)

    spec = paced(run_spec(corpus, "spiky", steps=STEPS, **never), 0.3)
    spec["alerts"] = {"actions": {"spikes": "rewind"}}
    spec["env"] |= {
        "PACE_ATTEMPTS": "attempt-1,attempt-2",
        "SEEDED_BUG": "spikes",
        "SPIKES": ",".join(str(plain[step]) for step in SPIKES),
    }
    run = client.submit(spec)
    until(lambda: (run.refresh().step or 0) >= 4, within_s=200, what="the first steps")
    run.checkpoint()

    def resumed(number: int) -> dict | None:
        found = events(own_server.home, f"{run.id}-{number}")
        return next((one for one in found if one["kind"] == "resumed"), None)

    until(lambda: run.refresh().view.attempt == 2, within_s=300, what="the rewind")
    until(
        lambda: run.refresh().state == "running" and resumed(2),
        within_s=200,
        what="the second attempt",
    )
    # It has saved nothing: the next one must resume there, too, and skip the same data.
    os.kill(events(own_server.home, f"{run.id}-2")[0]["host"]["pid"], signal.SIGKILL)
    run.wait(timeout_s=400)
    assert (run.state, run.view.attempt) == ("completed", 3), run.reason

    [first, again] = [resumed(2), resumed(3)]
    step, through = first["step"], first["skipped_through"]
    assert (again["step"], again["skipped_through"]) == (step, through)
    assert 4 <= step < SPIKES[0] < SPIKES[-1] <= through
    expected = {s: plain[s if s <= step else s + through - step] for s in range(1, STEPS + 1)}
    assert digests(run) == expected
    [curve] = run.series("train/loss", x="tokens", exact=True, superseded=True)
    assert curve.x[-1] == STEPS * 256
    assert max(part.step[-1] for part in curve.superseded) >= through, "given up, and still shown"
    words = (
        f"rewound from step {through} to {step}, skipped the data of steps {step + 1} to {through}"
    )
    assert any(words in event.message for event in run.events())
    assert words in (own_server.home / "runs" / run.id / "attempt-3/rank-0.log").read_text()
    codes = {event.data["code"] for event in run.events() if event.kind == "alert"}
    assert "spikes" in codes
    assert "other_data" not in codes, "other data on purpose"
