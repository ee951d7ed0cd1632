"""``lehr compare`` and the route behind it, against a real server without a cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lehr import Client
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound
from lehr.faces.cli.compare import _only_of_some, _texts, signed
from lehr.schemas.comparisons import DifferenceView
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, served
from lehr_testing.server import free_port
from lehr_testing.waiting import until

LEHR = str(Path(sys.executable).parent / "lehr")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Four runs of 200 steps: a baseline, another seed, another LR, another held-out set; and two
    that ended, after 100 and 200 steps."""
    with served(tmp_path_factory.mktemp("compare") / "home") as (api, address):
        for name, changes in {"base": {}, "reseeded": {"seed": 1}, "faster": {"lr": 9e-4}}.items():
            run = api.store.runs.create(seeding.run_spec(name, **changes))
            seeding.start(api.store, run).train(
                range(1, 201), lr=9e-4 if name == "faster" else 3e-4
            )
        for name, steps in {"short": 100, "long": 200}.items():
            ended = seeding.start(api.store, api.store.runs.create(seeding.run_spec(name)))
            ended.train(range(1, steps + 1))
            ended.end(RunState.COMPLETED, steps)
        astray = seeding.start(api.store, api.store.runs.create(seeding.run_spec("astray")))
        astray.evaluate(200, 1000.0)
        astray.flush()
        few = api.store.runs.create(seeding.run_spec("few-tokens", lr=9e-4))
        seeding.start(api.store, few, held_out="6dc60039" * 8).train(range(1, 201))
        base = api.store.runs.find("base").id
        claim = {"hypothesis": "a twin lowers val/loss", "baseline": base}
        api.store.runs.create(seeding.run_spec("twin").model_copy(update=claim))
        yield address


@pytest.fixture
def lehr(server, tmp_path):
    def call(*args: str) -> cli.CommandResult:
        return cli.call("--server", server, *args, cwd=tmp_path, LEHR_TOKEN=TOKEN)

    return call


def test_comparison_shows_deltas_speed_memory_and_differences(lehr):
    lines = [line.rstrip() for line in lehr("compare", "base", "faster").stdout.splitlines()]
    assert lines[0] == "val/loss at step 200, the last point that both runs reached"
    base, faster = lines[2].split(), lines[3].split()
    assert base[1] == "base"
    assert "baseline" in base
    assert float(faster[5]) == pytest.approx(float(faster[4]) - float(base[4]), abs=2e-3)
    assert lines[3].endswith("61.3 GB")
    assert ["*", "train.optimizer.lr", "3.0e-4", "9.0e-4"] in [line.split() for line in lines]
    assert not [line for line in lines if line.startswith("!")]


def test_values_that_differ_are_whole_and_runs_that_do_not_fit_are_counted(server, tmp_path):
    def lehr(*args, columns):
        environment = {"LEHR_TOKEN": TOKEN, "COLUMNS": columns}
        return cli.call("--server", server, *args, cwd=tmp_path, **environment).stdout

    names = ("base", "faster", "reseeded", "short", "few-tokens", "long")
    shown = lehr("compare", *names, columns="80")
    table = shown[shown.index("what differs") : shown.index("* may change")]
    assert "…" not in table
    assert table.count("3.0e-4") == 4
    assert table.count("9.0e-4") == 2
    narrow = lehr("compare", *names, columns="60")
    [head] = re.findall("what differs(.*)", narrow)
    fit = len(head.split())
    assert 2 <= fit < len(names)
    assert f"and {len(names) - fit} run" in narrow


def test_settings_of_other_trainers_are_counted_and_a_digest_is_short():
    def differs(path, *values):
        return DifferenceView(path=path, values=list(values), factor=True)

    assert _only_of_some(differs("train.loss.name", "—", "chunked", "chunked"))
    assert _only_of_some(differs("trainer.style", "equals", "—", None))
    assert not _only_of_some(differs("train.steps", "—", 100, 200))
    assert not _only_of_some(differs("train.optimizer.lr", "—", 1e-3, 1e-3))
    assert not _only_of_some(differs("trainer.args.width", 64, "—", "—"))
    assert _texts(["0123456789abcdef"], "code.digest") == ["0123456789ab"]


def test_runs_of_any_length_are_compared_at_their_ends(lehr, server):
    lines = lehr("compare", "short", "long", "--x", "end").stdout.splitlines()
    assert lines[0].rstrip() == "val/loss at the end of each run"
    with Client(server, token=TOKEN) as client:
        assert "by val/loss at the end of each run:" in repr(
            client.compare("short", "long", x="end")
        )


def test_runs_are_shown_in_groups(lehr):
    output = lehr("compare", "base", "reseeded", "faster", "--by", "lr").stdout
    table = [line.split() for line in output.splitlines()]
    head = table.index(["group", "runs", "val/loss", "±", "delta"])
    first, second = table[head + 1], table[head + 2]
    assert first[:3] == ["lr", "3.0e-4", "2"]
    assert first[-2:] == ["first", "group"]
    assert second[:3] == ["lr", "9.0e-4", "1"]
    assert float(second[-1]) == pytest.approx(float(second[3]) - float(first[3]), abs=2e-3)
    far = lehr("compare", "base", "reseeded", "long", "astray", "--by", "lr").stdout
    assert "lr 3.0e-4 3 of 4" in " ".join(far.split())
    assert "lr 3.0e-4: without astray, far off" in far
    refused = lehr("compare", "base", "faster", "--by", "learning")
    assert refused.returncode == 2
    assert "no" not in refused.stdout
    assert "by: none of these runs has a config path or a metric 'learning'." in refused.stderr


def test_runs_of_different_held_out_sets_are_announced_first_and_have_no_delta(lehr):
    lines = [line.rstrip() for line in lehr("compare", "base", "few-tokens").stdout.splitlines()]
    note = (
        "! val/loss cannot be compared: these runs were evaluated on 2 different held-out sets "
        "(5e7a5e7a: base; 6dc60039: few-tokens)."
    )
    text = " ".join(lines)
    assert text.startswith(note)
    assert text.count("cannot be compared") == 1
    [row] = [line for line in lines if line.split()[1:2] == ["few-tokens"]]
    assert "another held-out set" in row
    assert not [word for word in row.split() if word.startswith(("+0", "-0", "+1", "-1"))]
    view = json.loads(lehr("compare", "base", "few-tokens", "--json").stdout)["comparison"]
    assert view["held_out"] == "different"
    assert view["results"][1]["delta"] is None
    assert view["results"][1]["incomparable"] == "another held-out set"
    assert view["notes"][0].startswith("val/loss cannot be compared")
    train = lehr("compare", "base", "few-tokens", "-m", "train/loss").stdout
    assert train.startswith("train/loss at step 200")
    assert "held-out" not in train


def test_a_frozen_server_is_reported_within_seconds(tmp_path):
    port = free_port()
    script = (
        "import http.server\n"
        f"http.server.ThreadingHTTPServer(('127.0.0.1', {port}), "
        "http.server.BaseHTTPRequestHandler).serve_forever()\n"
    )
    stopped = subprocess.Popen([sys.executable, "-c", script])
    waiting = None
    try:
        address = f"http://127.0.0.1:{port}"
        with Client(address, TOKEN) as client:
            until(lambda: _answers(client), within_s=30, what="the server to answer")
        stopped.send_signal(signal.SIGSTOP)
        waiting = subprocess.Popen(
            [LEHR, "--server", address, "ls"],
            env={**os.environ, "LEHR_TOKEN": TOKEN},
            stderr=subprocess.PIPE,
            text=True,
        )
        line = waiting.stderr.readline()
        assert (
            line
            == f"Lehr's server at 127.0.0.1:{port} has not answered for 3 s; the limit is 30 s.\n"
        )
        assert waiting.poll() is None
    finally:
        for process in filter(None, (waiting, stopped)):
            process.kill()
            process.wait()


def _answers(client: Client) -> bool:
    from lehr.errors import InternalError, ServerUnavailable

    try:
        client.health()
    except ServerUnavailable:
        return False
    except InternalError:  # It is no Lehr server, but it answers.
        return True
    return True


@pytest.mark.parametrize(
    ("delta", "shown"),
    [
        (0.0123, "+0.012"),
        (-1.5, "-1.500"),
        (0.0, "+0.000"),
        (1.23e-6, "+1.2e-6"),
        (-4e-5, "-4.0e-5"),
        (None, "—"),
        (float("nan"), "+nan"),
    ],
)
def test_small_difference_is_not_shown_as_zero(delta, shown):
    assert signed(delta) == shown


def test_claims_are_listed_and_judged(lehr, server):
    assert "claim      a twin lowers val/loss" in lehr("show", "twin").stdout
    listed = lehr("judge").stdout.split()
    assert listed[0] == "1"
    assert " ".join(listed[2:]).startswith("undecided a twin lowers val/loss (than")
    assert "makes no claim" in lehr("judge", "base").stderr
    with Client(server, TOKEN) as client:
        assert [one.model_dump(mode="json") for one in client.claims()] == json.loads(
            lehr("judge", "--json").stdout
        )["claims"]


def test_invalid_comparison_is_rejected_with_the_reason(lehr, server):
    alone = lehr("compare", "base")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "needs at least two runs" in alone.stderr
    misspelt = lehr("compare", "base", "faster", "-m", "val/los")
    assert misspelt.returncode == 2
    assert "Did you mean val/loss?" in misspelt.stderr
    with Client(server, TOKEN) as client, pytest.raises(NotFound):
        client.compare("base", "nobody")
