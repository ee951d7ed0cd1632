"""The judge of the fault tests: a correct history passes, and every planted breach is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lehr_testing.faults.history import (
    Ack,
    AttemptRow,
    History,
    Launch,
    Move,
    RunRow,
    Stream,
    check,
)

GPU0, GPU1 = "/node/n1/gpus/gpu-0.lock", "/node/n1/gpus/gpu-1.lock"

RIGHT = History(
    runs=[RunRow("aa", "first", "completed", 2, 4), RunRow("bb", "second", "running", 1, 9)],
    moves=[
        Move("aa", 0, None, "queued"),
        Move("aa", 1, "queued", "starting"),
        Move("aa", 1, "starting", "running"),
        Move("bb", 0, None, "queued"),
        Move("aa", 1, "running", "queued"),
        Move("aa", 2, "queued", "starting"),
        Move("aa", 2, "starting", "running"),
        Move("bb", 1, "queued", "starting"),
        Move("aa", 2, "running", "completed"),
        Move("bb", 1, "starting", "running"),
    ],
    attempts=[
        AttemptRow("aa-1", "aa", 1, exited=True, given_up=False, open=False),
        AttemptRow("aa-2", "aa", 2, exited=True, given_up=False, open=False),
        AttemptRow("bb-1", "bb", 1, exited=False, given_up=False, open=True),
    ],
    launches=[
        Launch("aa-1", 0, 11, (GPU0,), 1.0, 2.0),
        Launch("aa-2", 0, 12, (GPU0,), 3.0, 5.0),
        Launch("bb-1", 0, 13, (GPU1,), 4.0, 9.0),
    ],
    streams=[
        Stream("aa-2", "events.jsonl", b"abc", b"abc"),
        Stream("bb-1", "events.jsonl", b"abcdef", b"abc"),
    ],
    series={"aa": [1, 2, 3, 4], "bb": [1, 2]},
    acknowledged=[Ack("submit", "aa"), Ack("submit", "bb"), Ack("pause", "bb")],
    requests=[("bb", "pause")],
    processes={"bb-1": 2},
    held_locks={GPU1: "bb-1"},
)


def with_move(index: int, **changes: object) -> list[Move]:
    moves = list(RIGHT.moves)
    moves[index] = replace(moves[index], **changes)
    return moves


PLANTED = {
    "a submission was lost": (
        {"acknowledged": [Ack("submit", "cc")]},
        "lost: cc was acknowledged",
    ),
    "a verb was lost": ({"acknowledged": [Ack("cancel", "bb")]}, "lost: cancel of bb"),
    "a submission was recorded twice": (
        {"runs": [*RIGHT.runs, RunRow("cc", "first", "queued", 0, 4)]},
        "twice: first was submitted once",
    ),
    "a move that does not exist": (
        {"moves": with_move(8, old="queued", new="completed")},
        "moves: aa moved from queued to completed",
    ),
    "a completed run begins again": (
        {
            "runs": [replace(RIGHT.runs[0], state="queued"), RIGHT.runs[1]],
            "moves": [*RIGHT.moves, Move("aa", 2, "completed", "queued")],
        },
        "moves: aa moved from completed to queued",
    ),
    "a move is missing": (
        {"moves": [m for i, m in enumerate(RIGHT.moves) if i != 2]},
        "moves: aa was starting and moved from running",
    ),
    "a state that no move led to": (
        {"runs": [replace(RIGHT.runs[0], state="failed"), RIGHT.runs[1]]},
        "moves: aa is failed",
    ),
    "an older attempt moved the run": (
        {"moves": with_move(8, attempt=1)},
        "fence: attempt 1 of aa moved it after 2",
    ),
    "an attempt without a row": (
        {"attempts": RIGHT.attempts[1:]},
        "attempts: aa has [2], and is at 2",
    ),
    "the next attempt began before the end of the first": (
        {"attempts": [replace(RIGHT.attempts[0], exited=False), *RIGHT.attempts[1:]]},
        "attempts: aa-1 has not ended",
    ),
    "a run is stuck": (
        {
            "attempts": [*RIGHT.attempts[:2], replace(RIGHT.attempts[2], exited=True)],
            "processes": {},
            "held_locks": {},
        },
        "stuck: bb is running",
    ),
    "two trainers on one GPU": (
        {"launches": [*RIGHT.launches[:2], replace(RIGHT.launches[2], gpus=(GPU0,))]},
        f"gpu: aa-2 and bb-1 were on {GPU0}",
    ),
    "two attempts of a run at one time": (
        {"launches": [replace(RIGHT.launches[0], gpus=(GPU1,), seen=3.5), *RIGHT.launches[1:2]]},
        "twice: aa-1 and aa-2 trained at one time",
    ),
    "one attempt was launched twice": (
        {"launches": [*RIGHT.launches, Launch("bb-1", 0, 14, (GPU1,), 20.0, 21.0)]},
        "twice: rank 0 of bb-1 was started 2 times",
    ),
    "a training that nobody recorded": (
        {"launches": [*RIGHT.launches, Launch("cc-1", 0, 14, (GPU0,), 20.0, 21.0)]},
        "unknown: cc-1",
    ),
    "a stream with other bytes": (
        {"streams": [Stream("aa-2", "events.jsonl", b"abc", b"abd")]},
        "stream: aa-2/events.jsonl is kept otherwise",
    ),
    "a closed stream that is short": (
        {"streams": [Stream("aa-2", "events.jsonl", b"abc", b"ab")]},
        "stream: aa-2/events.jsonl is closed, and 1 bytes are missing",
    ),
    "a gap in a series": ({"series": {**RIGHT.series, "aa": [1, 2, 4]}}, "nothing between steps"),
    "a series that ends early": ({"series": {**RIGHT.series, "aa": [1, 2, 3]}}, "and 3 are there"),
    "a step that came twice": (
        {"series": {**RIGHT.series, "aa": [1, 2, 2, 3, 4]}},
        "series: aa has step 2 after 2",
    ),
    "a process that was left": ({"processes": {"aa-1": 1}}, "left: 1 processes of aa-1"),
    "a GPU lock that was left": ({"held_locks": {GPU0: None}}, f"left: the lock {GPU0} is held"),
}


@pytest.mark.parametrize("breach", PLANTED)
def test_every_planted_breach_is_found(breach):
    changes, words = PLANTED[breach]
    found = check(replace(RIGHT, **changes))
    assert any(words in line for line in found), found
