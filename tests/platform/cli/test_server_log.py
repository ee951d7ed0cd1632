"""Of a failed server's output, what explains the failure is shown."""

from __future__ import annotations

import json

from lehr.cli.server_log import did_not_start, told

TRACEBACK = """\
Traceback (most recent call last):
  File "/x/uvicorn/server.py", line 90, in serve
    config.load()
    ^^^^^^^^^^^^^
ValueError: the first
  with its cure

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/uvicorn/config.py", line 131, in load
    load()
OSError: the second
"""


def event(text, level="info"):
    return json.dumps({"event": text, "level": level}) + "\n"


def test_errors_are_shown_without_the_frames_of_their_tracebacks():
    lines = told(TRACEBACK)
    assert lines[:2] == ["ValueError: the first", "  with its cure"]
    assert lines[-1] == "OSError: the second"
    assert not [line for line in lines if "File" in line or "load()" in line or "^" in line]


def test_what_went_well_is_not_shown_beside_an_error():
    output = event("store opened") + event("cannot listen", "error") + event("server stops")
    assert told(output) == ["cannot listen"]
    assert told(event("store opened") + "lehr: wrong\n  The cure.\n") == [
        "lehr: wrong",
        "  The cure.",
    ]


def test_server_without_an_error_is_explained_by_its_last_lines():
    output = "".join(event(f"step {number}") for number in range(20))
    assert told(output) == [f"step {number}" for number in range(8, 20)]


def test_only_the_output_of_this_start_is_shown(tmp_path):
    log = tmp_path / "server.out"
    log.write_text("lehr: an earlier failure\n")
    begin = log.stat().st_size
    assert did_not_start("it ended", log, begin).hint == f"Its log: {log}"
    with log.open("a") as file:
        file.write("lehr: no space\n")
    assert did_not_start("it ended", log, begin).hint == f"The end of {log}:\n    lehr: no space"
