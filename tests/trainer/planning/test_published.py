"""Published runs: our count of FLOPs gives the MFU that their authors print."""

import importlib.util

import pytest

from lehr_testing.paths import ROOT
from lehr_trainer.planning.hardware import usual_mfu

_SPEC = importlib.util.spec_from_file_location(
    "published_plans", ROOT / "tests/bench/published_plans.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
bench = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bench)
PRINTED = [row for row in bench.rows() if row["mfu_as_published"] and row["source"] == bench.FITTED]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row['gpu']}-{row['hidden']}")
def test_mfu_of_published_rows_is_the_one_that_their_authors_print(row):
    tokens = float(row["tokens_per_s_per_gpu"])
    mfu = 100 * tokens * bench.flops(row) / bench.peak(row)
    # Their count includes the learned positions as weights that are multiplied, ours does not.
    assert mfu == pytest.approx(float(row["mfu_as_published"]), rel=0.012)


@pytest.mark.parametrize("kind", ["A100", "H100"])
def test_range_in_the_source_is_that_of_the_table(kind):
    rows = [
        row
        for row in bench.rows()
        if row["gpu"].startswith(kind) and row["source"] in {bench.FITTED, "nanoGPT"}
    ]
    shares = [
        100 * float(row["tokens_per_s_per_gpu"]) * bench.flops(row) / bench.peak(row)
        for row in rows
    ]
    usual = usual_mfu(kind)
    assert f"{min(shares):.0f} to {max(shares):.0f} %" in usual.source
    assert min(shares) < 100 * usual.share < max(shares)


def test_gpus_with_the_units_of_an_h100_are_planned_like_it():
    assert usual_mfu("GH200") == usual_mfu("H100")
    assert usual_mfu("H100").share < usual_mfu("H200").share < 0.578, (
        "less than the best that was measured"
    )
    assert "assumed" in usual_mfu("T4").source
