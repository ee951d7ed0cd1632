"""``lehr report`` over a real server: the file, its place, and errors."""

from __future__ import annotations

import json

import pytest

from lehr import Client
from lehr.errors import UserError
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, served
from lehr_testing.html import PageCheck


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("report") / "home") as (api, address):
        run = api.store.runs.create(seeding.run_spec("base"))
        seeding.start(api.store, run).train(range(1, 11))
        seeding.create_sweep(api.store, seeding.lr_sweep("grid", [1e-4, 1e-3]))
        yield address


@pytest.fixture
def lehr(server, tmp_path):
    def call(*args: str) -> cli.CommandResult:
        return cli.call("--server", server, *args, cwd=tmp_path, LEHR_TOKEN=TOKEN)

    return call


@pytest.mark.parametrize(("ref", "kind"), [("base", "run"), ("grid", "sweep")])
def test_report_is_written_beside_the_command_by_default(lehr, tmp_path, ref, kind):
    done = lehr("report", ref)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / f"{ref}-report.html").read_text()
    assert PageCheck(page).faults == []
    assert f"{kind} report" in page
    assert done.stdout.startswith(f"{ref}-report.html: ")


def test_report_goes_to_the_named_file_and_json_describes_it(lehr, tmp_path):
    answer = json.loads(lehr("report", "base", "-o", "out.html", "--json").stdout)["report"]
    assert (answer["name"], answer["path"]) == ("base", "out.html")
    assert answer["bytes"] == (tmp_path / "out.html").stat().st_size


def test_unknown_name_is_an_error_with_the_nearest(lehr, tmp_path):
    done = lehr("report", "bse")
    assert done.returncode != 0
    assert "there is no run, sweep or rollout 'bse'" in done.stderr
    assert "base" in done.stderr
    assert list(tmp_path.glob("*.html")) == []


def test_file_that_cannot_be_written_is_one_clear_error(server, tmp_path):
    run = Client(server, token=TOKEN).run("base")
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        run.report(tmp_path / "missing" / "out.html")
