"""Steps that stop, in real processes: the rank at fault is named, and nothing else is a hang."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lehr_testing.trainer import MANY, finish, make_run, records, sabotage, training
from lehr_testing.waiting import until

SLEEP = "time.sleep(1000)"
SKIP = (
    "from lehr_trainer.runtime.distributed import Ranks\n"
    "            mean = Ranks.mean\n"
    "            Ranks.mean = lambda _, values: setattr(Ranks, 'mean', mean) or values"
)
"""The rank leaves out the mean of a step's loss, once."""
STOP = "os.kill(os.getpid(), 19)"
HOLD = "import ctypes; ctypes.PyDLL(None).sleep(1000)"
"""C code that keeps Python's lock."""
SHORT = {"hang_limit_s": 1.5}
WAITS = {"validation": {"tokens": 512, "share": 0.1, "every": 3}, "checkpoint": {"every": 0}}


@pytest.mark.parametrize(
    ("act", "ranks", "rank", "says"),
    [
        (SLEEP, 3, 2, r"has not entered [a-z-]+ \d+.*; its Python is in `UpdateStep\.step`"),
        (SLEEP, 2, 0, r"has not entered [a-z-]+ \d+.*; its Python is in `UpdateStep\.step`"),
        (SKIP, 2, 1, r"has not entered all-reduce \d+; its Python is in `Ranks\.begin_sum"),
        (STOP, 2, 1, r"cannot answer: its process is stopped .*; rank 0 is in [a-z-]+ \d+"),
        (HOLD, 2, 1, r"cannot answer: C code holds the lock of its Python, in `step` .*; rank 0 "),
        (HOLD, 2, 0, r"cannot answer: C code holds the lock of its Python, in `step` .*; rank 1 "),
        (SLEEP, 1, 0, r": it takes no step; its Python is in `UpdateStep\.step`"),
    ],
    ids=["sleep", "sleep-0", "skip", "stop", "hold", "hold-0", "alone"],
)
def test_rank_on_which_the_others_wait_is_named(
    tmp_path: Path, corpus: Path, data: Path, act: str, ranks: int, rank: int, says: str
) -> None:
    batch = {"sequences": 6, "sequence_length": 32}
    # A rank last heard of in an evaluation has more time: none is near step 7.
    waits = {**WAITS, "validation": {**WAITS["validation"], "every": 5}}
    run = make_run(tmp_path / "run", corpus, steps=MANY, batch=batch, parallel=SHORT, **waits)
    attempt, harm = run / "attempt-1", sabotage(at_step=7, act=act, ranks=(rank,))
    environment = {"LEHR_NODE_NAME": "n7"}
    with training(run, ranks=ranks, data=data, code=harm, **environment) as process:
        others = [n for n in range(ranks) if n != rank] or [0]
        logs = [attempt / f"rank-{n}.log" for n in others]
        # A rank that does not answer is killed half a minute later; it may take a while.
        until(
            lambda: all(log.exists() and "error: hang" in log.read_text() for log in logs),
            within_s=120,
            what="the others to report",
        )
        if act in {SLEEP, SKIP}:
            assert finish(process)[0] == 1
    text = (attempt / "hang.log").read_text()
    sentence = text.splitlines()[0]
    assert re.fullmatch(rf"hang at step [78]: rank {rank} on n7 ?{says}.*", sentence), sentence
    if rank != 0 or act == SLEEP:
        [finished] = records(attempt, "finished")
        assert (finished["cause"], finished["message"]) == ("hang", sentence)
    # What every rank that answered did then.
    first, *reports = json.loads((attempt / "hang.json").read_text())
    assert first == sentence
    answered = {report["rank"]: report for report in reports}
    assert answered.keys() == set(range(ranks)) - ({rank} if "cannot answer" in says else set())
    for report in answered.values():
        assert report["batches"][-1][0] in {7, 8}
        assert any("train.py" in frame[1] for frame in report["stacks"]["MainThread"])
        assert bool(report["collectives"]) is (ranks > 1)
        assert f"== rank {report['rank']} on n7" in text


def test_what_is_no_step_may_take_longer(tmp_path: Path, corpus: Path, data: Path) -> None:
    """An evaluation on one rank, a compilation on another, and the data of a slow first step."""
    slow = (
        "import os, time\n"
        "from lehr_trainer import evaluate as e, train as t\n"
        "whole, first = t.evaluate, [2]\n"
        "def evaluate(*args, **named):\n"
        "    time.sleep(2 if os.environ['RANK'] == '0' else 0)\n"
        "    return whole(*args, **named)\n"
        "t.evaluate = evaluate\n"
        "code = compile('import time\\ndef _compile(): time.sleep(2)', '/x/convert_frame.py', 'exec')\n"
        "names = {}\n"
        "exec(code, names)\n"
    ) + sabotage(at_step=8, act="names['_compile']()", ranks=(1,))
    run = make_run(tmp_path / "run", corpus, steps=12, parallel={"hang_limit_s": 1.0}, **WAITS)
    with training(run, ranks=2, data=data, code=slow) as process:
        code, output = finish(process)
    assert code == 0, output
    assert not (run / "attempt-1" / "hang.log").exists()
