"""Execute the example notebooks against the server that ``Client()`` finds, and store the outputs.

    lehr up --gpus 8 && python docs/notebooks/execute.py

Each figure is stored as Plotly JSON and as PNG, for readers that run no script.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs

HERE = Path(__file__).parent
PLOTLY = "application/vnd.plotly.v1+json"
_WIDTH, _HEIGHT = 860, 420
_DRAW = """async (figure) => {
    const url = await Plotly.toImage(figure, {format: "png", width: %d, height: %d});
    return url.split(",")[1];
}""" % (_WIDTH, _HEIGHT)  # noqa: UP031 - braces are JavaScript's here


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    # The mimetype alone: Plotly's script is in the reader's program, not in the file.
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    client = NotebookClient(
        notebook,
        timeout=3600,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    draw([out["data"] for out in outputs if PLOTLY in out.get("data", {})])
    nbformat.write(notebook, path)


def draw(figures: list[Any]) -> None:
    """Add a PNG to each output that contains a figure."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"))
        page = browser.new_page()
        page.set_content("<html></html>")
        page.add_script_tag(content=get_plotlyjs())
        for data in figures:
            picture = page.evaluate(_DRAW, json.loads(json.dumps(data[PLOTLY])))
            assert base64.b64decode(picture).startswith(b"\x89PNG")
            data["image/png"] = picture
        browser.close()


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.ipynb")):
        execute(path)
