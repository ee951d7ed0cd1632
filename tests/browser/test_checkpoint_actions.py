"""The checkpoints of a run, on its page: fork from one, verify, download and delete it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lehr.base.home import runs_dir
from lehr.control.lifecycle import RunState
from lehr.store.tables import RunRow
from lehr_testing import seeding
from lehr_testing.buckets import make_checkpoint

from .conftest import Lehr, Visit

pytestmark = pytest.mark.browser


def saved(lehr: Lehr, *steps: int) -> RunRow:
    """Create an ended run that has files of a checkpoint at each of these steps."""
    run = lehr.store.runs.create(seeding.run_spec("saved", steps=10))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 11))
    for step in steps:
        folder = runs_dir(lehr.store.home) / run.id / f"attempt-1/checkpoints/step-{step:08d}"
        digest = make_checkpoint(folder, step=step)
        attempt.checkpoint(step, val_loss=8.0 - step / 10, digest=digest)
    attempt.end(RunState.COMPLETED, 10)
    return run


def test_each_checkpoint_can_be_forked_verified_downloaded_and_deleted(visit: Visit, lehr: Lehr):
    run = saved(lehr, 5, 10)
    page = visit.open(f"/runs/{run.id}?tab=checkpoints")
    dialog = page.get_by_role("dialog")

    page.get_by_role("button", name="Fork from step 5").click()
    expect(dialog.get_by_role("combobox", name="from")).to_have_value("5")
    dialog.get_by_role("button", name="Cancel").click()

    folder = runs_dir(lehr.store.home) / run.id / "attempt-1/checkpoints"
    page.get_by_role("button", name="Download step 5").click()
    with page.expect_download() as saving:
        dialog.get_by_role("link", name="model.safetensors").click()
    weights = (folder / "step-00000005/model.safetensors").read_bytes()
    assert saving.value.path().read_bytes() == weights
    expect(dialog.get_by_role("link", name="manifest.json")).to_be_visible()
    expect(dialog).to_contain_text(f"lehr checkpoints download {run.id} DIR --step 5 --attempt 1")
    dialog.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Verify step 10").click()
    expect(dialog).to_contain_text("step 10 is whole")
    dialog.get_by_role("button", name="Close").click()
    (folder / "step-00000010/model.safetensors").write_bytes(b"damaged")
    page.get_by_role("button", name="Verify step 10").click()
    expect(dialog).to_contain_text("step 10 is damaged or incomplete")
    expect(dialog).to_contain_text("step-00000010")
    dialog.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Delete step 5").click()
    expect(dialog).to_contain_text("Frees 9.06 GB")
    expect(dialog).to_contain_text("step-00000005")
    dialog.get_by_role("button", name="Cancel").click()
    assert (folder / "step-00000005").exists(), "a checkpoint is deleted only after a yes"
    page.get_by_role("button", name="Delete step 5").click()
    dialog.get_by_role("button", name="Delete for good").click()
    expect(page.locator("#toasts")).to_contain_text("step 5 is deleted")
    expect(page.get_by_role("button", name="Delete step 5")).to_have_count(0)
    expect(page.get_by_role("table", name="Checkpoints")).to_contain_text("removed")
    assert not (folder / "step-00000005").exists()
