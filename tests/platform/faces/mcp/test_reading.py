"""What an agent reads of a run: its checkpoints, its code, and runs of a program of the user's."""

from __future__ import annotations

import io

import pytest

from lehr import Client
from lehr.code import archive
from lehr.code.archive import SourceFile
from lehr.faces.mcp.answers import text_of
from lehr.faces.mcp.reading import Reading
from lehr_testing.api import RUN_SPEC, TOKEN, begin, ingest, line, metrics, served, started

PROGRAM = {
    "kind": "run",
    "name": "program",
    "resources": {"gpus": 1},
    "trainer": {"module": "mine.train", "args": {"epochs": 3, "lr": 0.1}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("agent") / "home") as (api, address):
        yield api, Client(address, TOKEN)


def test_program_without_a_number_of_steps_is_shown_with_its_arguments(server):
    api, client = server
    run = client.submit(PROGRAM)
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, line("started", device="cpu", total_steps=0) + metrics(1, 7))
    shown = Reading(client).show_run("program")
    assert (shown["step"], shown["of"], shown["train"]) == (7, None, None)
    assert shown["trainer"]["args"] == {"epochs": 3, "lr": 0.1}
    assert '"of"' not in text_of(shown)


def test_note_is_the_one_that_people_have_edited(server):
    _, client = server
    run = client.submit({**RUN_SPEC, "name": "noted", "notes": "first"})
    client.transport.put(f"/runs/{run.id}/note", {"note": "second"})
    assert Reading(client).show_run("noted")["note"] == "second"


def test_checkpoints_are_listed_with_why_they_are_kept(server):
    api, client = server
    run = client.submit({**RUN_SPEC, "name": "saved"})
    attempt = begin(api.store, run.id)
    saved = {"size_bytes": 9, "digest": "a" * 64}
    ingest(api.store, attempt, started() + metrics(1, 30))
    for step in (10, 20, 30):
        ingest(
            api.store,
            attempt,
            line("checkpoint", step=step, path=f"attempt-1/checkpoints/step-{step:08}", **saved),
        )
    found = Reading(client).checkpoints("saved", limit=2)
    assert [one["step"] for one in found["checkpoints"]] == [20, 30]
    assert found["checkpoints"][-1]["latest"]
    assert found["earlier"] == 1


def test_code_is_compared_by_file(server, tmp_path):
    _, client = server
    for name, text in (("one", "print(1)\n"), ("two", "print(2)\n")):
        (tmp_path / "train.py").write_text(text)
        output = io.BytesIO()
        files = [SourceFile("project/train.py", str(tmp_path / "train.py"), False)]
        digest, _ = archive.write(files, output)
        size = output.tell()
        output.seek(0)
        client.transport.upload(f"/code/{digest}", output, size)
        client.submit({**PROGRAM, "name": name, "code": {"digest": digest}})
    reading = Reading(client)
    [change] = reading.code_diff("one", "two")["changes"]
    assert (change["name"], change["change"]) == ("project/train.py", "changed")
    assert "+print(2)" in change["patch"]
    assert reading.code_diff("one", "two", name="other.py")["changes"] == []
    assert reading.code_diff("one", "one")["same"] is True


def test_no_pattern_for_metrics_takes_long(server):
    api, client = server
    run = client.submit({**RUN_SPEC, "name": "named"})
    names = {"a" * 60 + "!": 1.0, "mine/a[0]": 2.0, "mine/b": 3.0}
    ingest(api.store, begin(api.store, run.id), started() + metrics(1, 2, **names))
    reading = Reading(client)

    def found(matching: str) -> set[str]:
        return {one["name"] for one in reading.metrics("named", matching)["metrics"]}

    # As a regular expression, or with a star that tries every length, these need centuries.
    assert found("(a+)+$") == set()
    assert found("*a" * 59 + "*b") == set()
    assert found("a[0]") == {"mine/a[0]"}
    assert found("mine/*") == {"mine/a[0]", "mine/b"}
    assert found("train/loss") == {"train/loss"}
