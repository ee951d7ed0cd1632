"""On a busy server people come first: the order in which requests begin."""

from __future__ import annotations

import asyncio

import pytest

from lehr_api.worker_lane import AT_ONCE, BESIDE_PEOPLE, SMOOTH_S, Turns


async def test_workers_begin_in_order_and_a_new_request_is_seen_between_them():
    turns, seen = Turns(), []

    async def worker(number):
        await turns.wait()
        seen.append(number)
        if number == 0:  # As for a request that arrives with the first of them.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, seen.append, "person")

    await asyncio.gather(*(worker(number) for number in range(10 * AT_ONCE)))
    assert seen.index("person") <= 2 * AT_ONCE
    seen.remove("person")
    assert seen == sorted(seen)
    assert turns.waited_s > 0


async def test_few_workers_begin_until_the_answer_of_a_person_begins(monkeypatch):
    monkeypatch.setattr("lehr_api.worker_lane.PAUSE_S", 0.0)
    turns, begun, answer = Turns(), [], asyncio.Event()
    while_waiting = []

    async def worker(number):
        await turns.wait()
        begun.append(number)

    async def app(scope, receive, send):
        await answer.wait()
        while_waiting.append(len(begun))
        await send({"type": "http.response.start"})
        await asyncio.gather(*workers)  # The answer goes on: an event stream, a download.

    async def send(message):
        pass

    person = asyncio.create_task(turns.answer_person(app, {}, None, send))
    await asyncio.sleep(0)
    workers = [asyncio.create_task(worker(number)) for number in range(3 * AT_ONCE)]
    for _ in range(10):  # Passes of the loop, without a pause.
        await asyncio.sleep(0)
    answer.set()
    await person
    assert while_waiting[0] <= AT_ONCE + 11 * BESIDE_PEOPLE
    assert begun == list(range(3 * AT_ONCE))


async def test_person_whose_request_fails_holds_back_nobody():
    turns = Turns()

    async def app(scope, receive, send):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await turns.answer_person(app, {}, None, None)
    assert turns._people == 0


async def test_person_whose_upload_stalls_holds_back_nobody_for_long(monkeypatch):
    monkeypatch.setattr("lehr_api.worker_lane.LONGEST_S", 0.0)
    turns, ends = Turns(), asyncio.Event()

    async def app(scope, receive, send):
        await ends.wait()

    person = asyncio.create_task(turns.answer_person(app, {}, None, None))
    for _ in range(3):
        await asyncio.sleep(0)
    assert turns._people == 0
    ends.set()
    await person
    assert turns._people == 0


async def test_few_requests_soon_end_the_wait_of_many():
    turns = Turns()
    turns.waited_s = 1.0
    for _ in range(60):
        await turns.wait()
        turns._averaged_at -= SMOOTH_S  # So long ago was the last.
    assert turns.waited_s < 0.01
