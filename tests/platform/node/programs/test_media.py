"""Images, tables, histograms and files that a program logs: content, limits, warnings."""

from __future__ import annotations

import json
import types
from io import BytesIO
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

import lehr_log
from lehr_log import File, Histogram, Image, Table, media, wandb
from lehr_log.media import Media

PNG = b"\x89PNG\r\n\x1a\n"


class Log:
    """What a program has logged into a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log-0.jsonl"

    def records(self, kind: str) -> list[dict]:
        records = map(json.loads, self.path.read_bytes().splitlines())
        return [record for record in records if record["kind"] == kind]

    def contents(self) -> list[bytes]:
        stored = self.path.with_name(media.STREAM).read_bytes()
        return [stored[r["offset"] :][: r["size"]] for r in self.records("media")]

    def warnings(self) -> list[str]:
        return [record["message"] for record in self.records("warning")]


@pytest.fixture
def log(tmp_path, monkeypatch) -> Log:
    log = Log(tmp_path)
    monkeypatch.setenv("LEHR_LOG", str(log.path))
    monkeypatch.setattr(lehr_log, "_file", None)
    monkeypatch.chdir(tmp_path)
    return log


def pixels(png: bytes) -> list:
    return np.asarray(PIL.Image.open(BytesIO(png))).tolist()


class Figure:
    def savefig(self, file: BytesIO, format: str) -> None:  # noqa: A002 - Matplotlib's
        file.write(PNG + format.encode())


def test_numbers_and_media_of_one_call_are_recorded_at_one_step(log):
    Path("model.txt").write_text("weights")
    black = Image(np.zeros((2, 3), np.uint8), caption="black")
    rows = [[1, "x", np.float32(0.5)], [None, float("nan"), black]]
    lehr_log.log(
        {
            "loss": 1.5,
            "pictures": [black, Image(np.ones((1, 1, 3)))],
            "table": Table(["a", "b", "c"], rows),
            "weights": Histogram([0, 1, 1, 3], num_bins=3),
            "file": File("model.txt"),
        },
        step=7,
    )
    [metrics] = log.records("metrics")
    assert (metrics["step"], metrics["values"]) == (7, {"loss": 1.5})
    assert [(r["step"], r["name"], r["type"], r["caption"]) for r in log.records("media")] == [
        (7, "pictures", "image", "black"),
        (7, "pictures", "image", ""),
        (7, "table", "table", ""),
        (7, "weights", "histogram", ""),
        (7, "file", "file", "model.txt"),
    ]
    first, second, table, histogram, file = log.contents()
    assert pixels(first) == [[0] * 3] * 2
    assert pixels(second) == [[[255, 255, 255]]]
    cells = [[1, "x", 0.5], [None, "nan", "(image)"]]
    assert json.loads(table) == {"columns": ["a", "b", "c"], "rows": cells}
    assert json.loads(histogram) == {"counts": [1, 2, 1], "edges": [0, 1, 2, 3]}
    assert file == b"weights"
    assert log.warnings() == []
    lehr_log.log({"x": Image(PNG)}, step=8)
    assert len(log.records("metrics")) == 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (np.array([[True, False]]), [[255, 0]]),
        (np.array([[0.0, 0.5, 1.0]]), [[0, 128, 255]]),
        (np.array([[-1.0, 1.0]]), [[0, 255]]),
        (np.array([[0.0, 200.4]]), [[0, 200]]),
        (np.array([[[1, 2, 3, 4]]]), [[[1, 2, 3, 4]]]),
        ([[7, 8]], [[7, 8]]),
        (
            torch.arange(15, dtype=torch.bfloat16).reshape(3, 1, 5),
            [[[i, i + 5, i + 10] for i in range(5)]],
        ),
    ],
)
def test_array_becomes_an_image(log, data, expected):
    lehr_log.log({"x": Image(data)}, step=1)
    assert [pixels(one) for one in log.contents()] == [expected]


def test_files_figures_and_pillow_keep_their_own_encoding(log):
    Path("a.webp").write_bytes(b"RIFF....WEBPVP8 ")
    red = PIL.Image.new("CMYK", (1, 1), (0, 255, 255, 0))
    given = [Image("a.webp"), Image(b"GIF89a..."), Image(Figure()), Image(red)]
    lehr_log.log({"x": given}, step=1)
    *others, last = log.contents()
    assert others == [b"RIFF....WEBPVP8 ", b"GIF89a...", PNG + b"png"]
    assert pixels(last) == [[[255, 0, 0, 255]]]


def large_file() -> str:
    with Path("large").open("wb") as file:
        file.truncate(1 << 30)
    return "large"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Image("gone.png"), "there is no file gone.png"),
        (lambda: Image(large_file()), "large has 1,073,741,824 bytes; at most 20,971,520"),
        (
            lambda: Image(np.broadcast_to(np.uint8(1), (40_000, 30_000))),
            "at most 67,108,864 values",
        ),
        (lambda: Image(b"<svg></svg>"), "no PNG, JPEG, GIF or WebP"),
        (lambda: Image(np.zeros((8, 3, 32, 32))), "its shape is (8, 3, 32, 32)"),
        (lambda: Image(np.zeros((4, 4, 5))), "its shape is (4, 4, 5)"),
        (lambda: Image(np.zeros((0, 4))), "its shape is (0, 4, 1)"),
        (lambda: Image(np.array([[0.5, np.nan]])), "not finite numbers"),
        (lambda: Image(np.array([["a"]])), "left out: "),
        (lambda: Image(np.array([[0, 300]])), "it has values from 0 to 300"),
        (lambda: Image(None), "its shape is ()"),
        (lambda: Table(["a", "b"], [[1, 2], [3]]), "row 2 has 1 values for 2 columns"),
        (lambda: Table(["a"], 5), "not iterable"),
        (lambda: Histogram([float("nan")]), "none of its 1 values is a finite number"),
        (lambda: Histogram("text"), "left out: "),
        (lambda: Histogram(np_histogram=([1, 2], [0, 1])), "2 counts and 2 edges"),
        (lambda: File("/"), "there is no file /"),
        (lambda: File(None), "left out: "),
    ],
)
def test_bad_input_is_one_warning_and_the_numbers_are_recorded(log, make, why):
    for step in (1, 2):
        lehr_log.log({"x": make(), "loss": 1.0}, step=step)
    assert len(log.records("metrics")) == 2
    assert log.records("media") == []
    [warning] = log.warnings()
    assert warning.startswith("x: ")
    assert why in warning


def test_part_that_is_left_out_is_named_once_and_the_rest_is_recorded(log):
    for _ in range(2):
        lehr_log.log({"h": Histogram([1, 2, float("inf")], num_bins=1)})
    assert json.loads(log.contents()[0]) == {"counts": [2], "edges": [1, 2]}
    [warning] = log.warnings()
    assert warning.endswith("1 of its 3 values are NaN or infinite, and not counted")


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("_MOST", 2, "at most 2 are recorded"),
        ("MOST_BYTES_OF_ALL", 20, "at most 20 bytes of an attempt are stored"),
        ("_SPARE", 1 << 60, "is full"),
    ],
)
def test_limit_of_all_is_one_warning(log, monkeypatch, limit, value, why):
    monkeypatch.setattr(media, limit, value)
    for step in range(5):
        lehr_log.log({f"x{step}": Image(PNG), "loss": 1.0}, step=step)
    assert len(log.records("metrics")) == 5
    assert len(log.records("media")) == (0 if limit == "_SPARE" else 2)
    [warning] = log.warnings()
    assert why in warning


def test_limits_and_warnings_begin_anew_with_the_next_run_of_the_process(
    log, monkeypatch, tmp_path
):
    monkeypatch.setattr(media, "_MOST", 1)
    second = Log(tmp_path / "second")
    second.path.parent.mkdir()
    for path in (None, str(second.path)):
        if path is not None:
            lehr_log._record_into(path)
        lehr_log.log({"x": [Image(PNG), Image(PNG)]}, step=1)
    lehr_log._record_into(None)
    assert (len(second.records("media")), len(second.warnings())) == (1, 1)


def test_wandb_takes_its_arguments_and_names_the_rest_once(log, monkeypatch):
    frame = types.SimpleNamespace(columns=["a"], itertuples=lambda index: iter([(1,), (2,)]))
    monkeypatch.setattr(wandb, "_left_out", {})
    monkeypatch.setattr(wandb, "_steps", wandb.Steps(0))
    table = wandb.Table(columns=["a", "b"], data=[[1, 2]])
    table.add_data(3, 4)
    table.add_column("c", [1])
    many = np.histogram(np.arange(128.0), 128)
    for step in (3, 4):
        image = wandb.Image(np.zeros((1, 1)), caption="c", masks={"m": 1})
        tables = {"t": table, "d": wandb.Table(dataframe=frame)}
        others = {"h": wandb.Histogram(np_histogram=many), "html": wandb.Html("x")}
        wandb.log({"loss": 1.0, "x": {"y": [image]}, **tables, **others}, step=step)
    names = [(r["step"], r["name"], r["caption"]) for r in log.records("media")]
    kinds = [("x.y", "c"), ("t", ""), ("d", ""), ("h", "")]
    assert names == [(step, *kind) for step in (3, 4) for kind in kinds]
    rows, frames, bins = map(json.loads, log.contents()[1:4])
    assert rows == {"columns": ["a", "b"], "rows": [[1, 2], [3, 4]]}
    assert frames == {"columns": ["a"], "rows": [[1], [2]]}
    assert (len(bins["counts"]), len(bins["edges"]), sum(bins["counts"])) == (64, 65, 128)
    assert log.warnings() == ["x.y: image at step 3: not recorded of it: masks"]
    left_out = [name for one in log.records("left_out") for name in one["values"]]
    assert left_out == ["add_column", "html (Html)"]
    assert isinstance(wandb.Image("gone"), Media)
