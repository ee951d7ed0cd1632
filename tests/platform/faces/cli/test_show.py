"""What ``lehr show`` prints of a run's history, and of its alerts."""

from __future__ import annotations

import json
import unicodedata

import pytest

from lehr.errors import LehrError
from lehr.faces.cli import output
from lehr.faces.cli.show import relevant_events
from lehr.schemas.streams import EventView
from lehr.specs import load_spec
from lehr_testing import cli, seeding, stores
from lehr_testing.api import TOKEN, served


def event(at: int, kind: str, message: str = "", **data: str | None) -> EventView:
    return EventView(at=float(at), kind=kind, message=message, attempt=1, data=data)


def test_history_keeps_a_lost_attempt_and_a_resumption_despite_many_checkpoints():
    lost = event(
        0,
        "transition",
        "running -> queued: its training was lost: its launcher was killed",
        **{"from": "running"},
        to="queued",
    )
    later = [event(0, "resumed")]
    for step in range(1, 31):
        later += [event(step, "checkpoint"), event(step, "checkpoint_removed")]
    shown = relevant_events([lost, *later])
    assert shown[:2] == [lost, later[0]]
    assert [e.at for e in shown[2:]] == [float(step) for step in range(21, 31)]
    assert {e.kind for e in shown[2:]} == {"checkpoint"}


def test_alert_is_shown_with_how_sure_it_is_its_cause_what_to_try_and_its_source(tmp_path):
    with served(tmp_path / "home") as (api, address):
        run = api.store.runs.create(seeding.run_spec("steep", steps=400, lr=2e-2))
        attempt = seeding.start(api.store, run)
        attempt.train(range(1, 101), logs=False)
        attempt.warn("loss_spike", "the loss jumped", 90)
        attempt.flush()

        def lehr(*args: str) -> str:
            done = cli.call("--server", address, *args, cwd=tmp_path, LEHR_TOKEN=TOKEN)
            assert done.returncode == 0, done.stderr
            return done.stdout

        text = lehr("show", "steep")
        diagnosed = lehr("diagnose", "steep")
        [alert] = json.loads(lehr("show", "steep", "--json"))["run"]["diagnosis"]
    assert (alert["code"], alert["sure"]) == ("nan", "certain")
    assert "! the loss jumped" in text
    heading = f"! nan, since step {alert['step']}"
    assert heading in text
    assert heading in diagnosed
    for line in alert["explanation"]:
        assert line["text"] in " ".join(text.split())
        assert line["text"] in " ".join(diagnosed.split())
    assert [line["name"] for line in alert["explanation"]] == ["seen", "sure", "cause", "try"]


def test_note_and_logged_config_are_shown_without_control_characters(tmp_path):
    with served(tmp_path / "home") as (api, address):
        run = api.store.runs.create(seeding.run_spec("plain"))
        attempt = stores.begin(api.store, run.id)
        config = stores.line("config", values={"depth": 4, "path": "a\x1b[2J"})
        stores.ingest(api.store, attempt.id, config)
        spec = seeding.lr_sweep("grid", [1e-3, 1e-2])
        pruning = {"pruning": {"name": "median", "min_steps": 50}}
        sweep, _ = seeding.create_sweep(api.store, load_spec({**spec.model_dump(), **pruning}))

        def lehr(*args: str) -> str:
            done = cli.call("--server", address, *args, cwd=tmp_path, LEHR_TOKEN=TOKEN)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "  note  " not in lehr("show", run.id)
        # What a program does not declare is not said.
        program = {"kind": "run", "name": "script", "trainer": {"script": "train.py"}}
        made = api.store.runs.create(load_spec(program))
        shown = [line.split()[:1] for line in lehr("show", made.id).splitlines()]
        assert [word for word in ("tokens", "seed") if [word] in shown] == []
        assert "val/loss, minimize   pruned by median from step 50" in lehr("show", sweep.id)
        for name, begin in ((run.id, ["note"]), (sweep.id, [])):
            lehr("note", name, "try [bold]4e-3[/]\nthen \x1b]0;title\x07 stop")
            shown = lehr("show", name)
            lines = [line.split() for line in shown.splitlines()]
            assert [*begin, "try", "[bold]4e-3[/]"] in lines
            assert (["config", "depth=4,", "path=a"] in [line[:3] for line in lines]) == bool(begin)
            assert any(line[:1] == ["then"] and line[-1:] == ["stop"] for line in lines)
            assert not {"\x1b", "\x07"} & set(shown)


@pytest.mark.parametrize("hostile", ["\x1b[2Jx", "\x1b]0;title\x07x", "\x9b2Jx", "\x08x", "\x7fx"])
def test_no_text_reaches_the_terminal_with_control_characters(hostile, capsys):
    """Also where a command prints a text as it is: a node's reason, a path, an error."""
    output.console.cache_clear()
    output.console().print(f"a\n\t{hostile}", markup=False)
    cells = output.table(f"head {hostile}")
    cells.add_row(hostile)
    output.console().print(cells)
    output.print_json({f"key {hostile}": hostile})
    output.print_error(LehrError(f"a\n\t{hostile}"))
    shown, errors = capsys.readouterr()
    output.console.cache_clear()
    for text in (shown, errors):
        assert not {c for c in text if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
        assert "x" in text
