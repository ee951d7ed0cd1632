"""A report with its evidence in one file: written, refused when damaged, opened in another home."""

from __future__ import annotations

import json
import zipfile
from contextlib import contextmanager

import pytest
from sqlmodel import select

from lehr.app.presenters import Presenter
from lehr.app.services import bundle as bundles
from lehr.app.services.archive import delete_run
from lehr.app.services.bundle import open_bundle, write_bundle
from lehr.app.services.context import Context
from lehr.app.services.report import report_of
from lehr.base.bundle import MANIFEST, RECORD, Bundle, BundleWriter
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, SpecError, StoreUnavailable, UserError
from lehr.specs import RunSpec, load_spec
from lehr.specs.examples import LR_GRID_SMALL, RECORDED
from lehr.store.bundle_rows import TABLES
from lehr_testing import seeding
from lehr_testing.api import FakeDispatcher
from lehr_testing.seeded_rollouts import Seeded
from lehr_testing.stores import fresh_store


@contextmanager
def home(path, **options):
    dispatcher = FakeDispatcher()
    with fresh_store(path) as store:
        yield Context(store, Presenter(store), dispatcher, dispatcher, path, True, **options)


@pytest.fixture
def other(tmp_path):
    with home(tmp_path / "other") as context:
        yield context


def trained(context, name="base", **fields):
    spec = seeding.run_spec(name, steps=20).model_dump(mode="json") | fields
    run = context.store.runs.create(RunSpec.model_validate(spec), provenance={"host": "h1"})
    attempt = seeding.start(context.store, run)
    attempt.train(range(1, 21))
    attempt.log("hello\n")
    attempt.checkpoint(20, val_loss=4.0, reason="last")
    attempt.end(RunState.COMPLETED, 20)
    return context.store.runs.get(run.id)


def written(context, ref, path):
    with write_bundle(context, *report_of(context, ref)) as file:
        path.write_bytes(file.read())
    return path


def rows(store):
    with store.db.read() as session:
        return {table.__tablename__: len(session.exec(select(table)).all()) for table in TABLES}


def streams(store, run_id):
    return {
        (attempt.id, one.name): store.streams.read(attempt.id, one.name, 0, one.stored)
        for attempt in store.attempts.of_run(run_id)
        for one in store.streams.of_attempt(attempt.id)
    }


def test_run_is_the_same_in_another_home_and_a_second_opening_changes_nothing(
    context, other, tmp_path
):
    run = trained(context, env={"API_KEY": "a-secret"}, notes="why")
    file = written(context, run.id, tmp_path / "base.lehr.html")
    assert b"a-secret" not in file.read_bytes()
    assert zipfile.ZipFile(file).testzip() is None
    assert written(context, run.id, tmp_path / "again").read_bytes() == file.read_bytes()

    made = open_bundle(other, file)
    assert (made.id, made.name, made.runs, made.new) == (run.id, "base", 1, True)
    opened = other.store.runs.get(run.id)
    for name in ("state", "started_at", "ended_at", "created_at"):
        assert getattr(opened, name) == getattr(run, name)
    assert opened.note == "Opened from a file: trained elsewhere, by user.\n\nwhy"
    assert opened.tags == ["opened"]
    assert streams(other.store, run.id) == streams(context.store, run.id)
    assert other.store.checkpoints.of_run(run.id) == []  # Its files are not in the file.
    assert other.store.attempts.list_open() == []

    before = rows(other.store), streams(other.store, run.id)
    assert not open_bundle(other, file).new
    assert (rows(other.store), streams(other.store, run.id)) == before
    assert not open_bundle(context, file).new  # Where it was trained.


def test_rollout_and_a_trial_of_a_sweep_are_opened_alone(context, other, tmp_path):
    seeded = Seeded(context.store)
    seeded.stopped("cpu")
    assert open_bundle(other, written(context, seeded.rollout.id, tmp_path / "r")).runs >= 1
    stages = [one.rollout(seeded.rollout.id).stages for one in (context, other)]
    verdicts = [[(one.state, one.reason, one.gates) for one in found] for found in stages]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0][0][0] == "failed"
    with home(tmp_path / "third") as third:
        open_bundle(third, RECORDED)
        trial = third.store.runs.find("lr-grid-small-1")
        assert open_bundle(other, written(third, trial.id, tmp_path / "t")).new
        with pytest.raises(Conflict, match="is here already, with other content"):
            open_bundle(other, RECORDED)  # Without its sweep.


def forged(file, path, spoil):
    """Copy a file with a changed record and a manifest that fits."""
    with Bundle(file, "it") as bundle, path.open("wb") as out:
        record = json.loads(bundle.read(RECORD))
        spoil(record)
        writer = BundleWriter(out, "</body>")
        for name in bundle.about["files"]:
            writer.add(name, record if name == RECORD else bundle.read(name))
        writer.close(id=bundle.about["id"], name="x")
    return path


def changed(file, path, *, content=None, extra=(), **about):
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        manifest = json.loads(old.read(MANIFEST)) | about
        for one in {*old.namelist()} - {MANIFEST}:
            new.writestr(one, content if one == RECORD and content else old.read(one))
        for info in extra:
            new.writestr(info, "x")
            manifest["files"][getattr(info, "filename", info)] = "0"
        new.writestr(MANIFEST, json.dumps(manifest))
    return path


def link():
    info = zipfile.ZipInfo("runs/link")
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda f, p: p.write_bytes(f.read_bytes()[: f.stat().st_size // 2]), "not a zip file"),
        (lambda _, p: p.write_text("<!doctype html>"), "not a zip file"),
        (lambda f, p: changed(f, p, extra=["../x"]), r"'\.\./x' leads out of it, or is a link"),
        (lambda f, p: changed(f, p, extra=[link()]), "'runs/link' leads out of it, or is a link"),
        (lambda f, p: changed(f, p, format=2), "it has format 2; this Lehr reads 1"),
        (lambda f, p: changed(f, p, files={}), "manifest does not list"),
        (lambda f, p: changed(f, p, content=b"{}"), "record.json was damaged or changed"),
        (lambda f, p: p.write_bytes(f.read_bytes().replace(b"PK\x03\x04", b"PKxx", 1)), "damaged"),
        (lambda f, p: bomb(p), "it unpacks to 2,000,000,002 bytes; at most 1,073,741,824"),
    ],
)  # fmt: skip
def test_damaged_unsafe_or_newer_file_is_refused_in_a_sentence(context, tmp_path, spoil, why):
    spoil(RECORDED, tmp_path / "spoilt")
    with pytest.raises(UserError, match=f"the file is refused: .*{why}"):
        open_bundle(context, tmp_path / "spoilt")
    assert not any(rows(context.store).values())


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, "{}")
        archive.writestr("zeros", b"\0")
        archive.infolist()[-1].file_size = 2_000_000_000


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record["runs"][0].update(state="running"),
        lambda record: record["runs"][0].update(id="../../x"),
        lambda record: record["runs"][0].update(created_at="soon"),
        lambda record: record["attempts"][0].update(id="another-1"),
        lambda record: record["sweeps"].clear(),
    ],
)
def test_record_that_is_not_of_ended_runs_is_refused_whole(context, tmp_path, spoil):
    with pytest.raises(UserError):
        open_bundle(context, forged(RECORDED, tmp_path / "forged", spoil))
    assert not any(rows(context.store).values())


def test_interrupted_opening_is_completed_by_the_next(context, other, monkeypatch):
    append, left = context.store.streams.append, [3]

    def failing(*arguments):
        if not left[0]:
            raise StoreUnavailable("the disk is full")
        left[0] -= 1
        return append(*arguments)

    monkeypatch.setattr(context.store.streams, "append", failing)
    monkeypatch.setattr(bundles, "MAX_APPEND", 50_000)
    with pytest.raises(StoreUnavailable):
        open_bundle(context, RECORDED)
    left[0] = 1000
    open_bundle(context, RECORDED)
    open_bundle(other, RECORDED)
    for run in other.store.sweeps.runs(other.store.sweeps.page().items[0].id):
        assert streams(context.store, run.id) == streams(other.store, run.id)


def test_other_content_under_an_id_and_a_deleted_run_are_refused(context, other, tmp_path):
    run = trained(context)
    file = written(context, run.id, tmp_path / "file")
    open_bundle(other, file)
    spoilt = forged(file, tmp_path / "x", lambda r: r["runs"][0]["spec"]["train"].update(seed=5))
    with pytest.raises(Conflict, match=f"base .{run.id}. is here already, with other content"):
        open_bundle(other, spoilt)
    delete_run(other, other.store.runs.get(run.id))
    with pytest.raises(Conflict, match="was deleted"):
        open_bundle(other, file)
    with pytest.raises(Conflict, match="has not ended, or was deleted"):
        written(other, run.id, tmp_path / "more")
    queued = context.store.runs.create(seeding.run_spec("queued"))
    with pytest.raises(Conflict, match="has not ended"):
        written(context, queued.id, tmp_path / "more")


def test_code_comes_with_the_runs_and_only_where_code_is_accepted(context, other, tmp_path):
    from lehr.app.services import code

    digest = code.installed(context.home).digest()
    run = trained(context, code={"digest": digest})
    file = written(context, run.id, tmp_path / "file")
    open_bundle(other, file)
    assert code.path(other, digest).read_bytes() == code.path(context, digest).read_bytes()
    with home(tmp_path / "closed", code="installed") as closed:
        hidden = trained(context, name="own", secrets={"LD_PRELOAD": "x"})
        with pytest.raises(SpecError, match="LD_PRELOAD loads code"):
            open_bundle(closed, written(context, hidden.id, tmp_path / "hidden"))
        assert open_bundle(closed, RECORDED).new


def test_recorded_sweep_is_that_of_the_demo_and_has_eight_complete_curves(context):
    """A change of the demo's spec needs a new recording: docs/generate/recording.py."""
    sweep = context.store.sweeps.get(open_bundle(context, RECORDED).id)
    recorded, wanted = load_spec(sweep.spec), load_spec(LR_GRID_SMALL)
    assert recorded.parameters == wanted.parameters
    assert recorded.run.train == wanted.run.train
    runs = context.store.sweeps.runs(sweep.id)
    assert [run.state for run in runs] == ["completed"] * 8
    for run in runs:
        curve = context.store.series.read(run.id, "train/loss", exact=True)
        assert list(curve.step) == list(range(1, 401))
    assert "Recorded, not trained here: `lehr demo` trained it on 20" in sweep.note
    content = b"".join(
        zipfile.ZipFile(RECORDED).read(n) for n in zipfile.ZipFile(RECORDED).namelist()
    )
    assert [name for name in (b"/tmp", b"/home", b"/root", b".venv") if name in content] == []
