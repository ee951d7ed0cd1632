"""The hub of the event stream: rendered once for all, coalesced, bounded, without blocking."""

import asyncio
import json

from lehr.schemas.runs import LatestOfRun, RunView
from lehr.store import Change
from lehr_api.stream import HEARTBEAT, MAX_PENDING, Event, Hub, Listener
from lehr_testing.api import documented_answer


def event(kind="run", id_="a", data=b"{}", run_id=None, name=""):
    return Event(kind, id_, name, data, run_id)


def offer(listener, *events):
    for number, one in enumerate(events):
        listener.offer(one, number, one.line(number), one.item())


async def test_subscriber_gets_the_newest_event_of_each_object_in_order():
    listener = Listener(None)
    offer(
        listener,
        event(id_="a", data=b'{"n":1}'),
        event(id_="b", data=b'{"n":2}'),
        event(id_="a", data=b'{"n":3}'),
        event("metrics", "a", data=b'{"n":4}'),
    )
    lines = (await listener.take(5)).decode()
    assert [
        json.loads(part[6:])["n"] for part in lines.split("\n") if part.startswith("data: ")
    ] == [2, 3, 4]


async def test_subscriber_of_one_run_gets_only_its_events():
    listener = Listener("a")
    offer(
        listener,
        event(id_="b", run_id="b"),
        event("cluster", ""),
        event(id_="a", run_id="a", data=b'"mine"'),
    )
    lines = await listener.take(5)
    assert lines.count(b"data:") == 1
    assert b'"mine"' in lines


async def test_subscriber_of_some_kinds_gets_only_these():
    listener = Listener(None, kinds=frozenset({"run", "metrics"}))
    offer(listener, event("log", "a", name="rank-0.log@1"), event("run"), event("cluster", ""))
    lines = await listener.take(5)
    assert lines == b"id: 1\nevent: run\ndata: {}\n\n"


async def test_events_that_wait_together_are_sent_as_one_if_asked_for():
    listener = Listener(None, gathered=True)
    offer(listener, event(data=b'{"n":1}'), event("metrics", data=b'{"n":2}'), event(data=b"3"))
    assert await listener.take(5) == (
        b'id: 2\nevent: batch\ndata: [["metrics",{"n":2}],["run",3]]\n\n'
    )
    assert await listener.take(0.01) == HEARTBEAT


async def test_subscriber_gets_heartbeats_until_it_is_closed():
    listener = Listener(None)
    assert await listener.take(0.01) == HEARTBEAT
    listener.close()
    assert await listener.take(5) is None


async def test_slow_subscriber_misses_events_and_its_backlog_stays_small():
    listener = Listener(None)
    for n in range(3 * MAX_PENDING):
        offer(listener, event(id_=str(n)))
    assert len(listener._pending) <= MAX_PENDING
    lines = await listener.take(5)
    assert lines.startswith(b'event: hello\ndata: {"missed":true}\n\n')
    gathered = Listener(None, gathered=True)
    for n in range(MAX_PENDING + 2):
        offer(gathered, event(id_=str(n)))
    lines = await gathered.take(5)
    assert lines.startswith(b'event: hello\ndata: {"missed":true}\n\nid: 0\nevent: batch\n')


class Views:
    """A fake presenter that counts rendered views."""

    def __init__(self):
        self.built = 0
        self.fail = False
        self.runs = self

    def views(self, runs):
        self.built += 1
        if self.fail:
            raise RuntimeError("broken view")
        return runs

    def newest(self, run_ids):
        return [LatestOfRun(run_id=run_id, latest={}) for run_id in run_ids]


class Runs:
    """A fake store."""

    def __init__(self):
        self.callbacks = []
        self.runs = self

    def subscribe(self, callback):
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def by_ids(self, ids):
        [example] = documented_answer("Page_RunView_")["items"]
        return [RunView.model_validate(example | {"id": one}) for one in sorted(ids)]


async def hub_of(views, store):
    hub = Hub(store, views, lambda: None, heartbeat_s=30)
    hub.start()
    return hub


async def true(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def next_text(stream):
    async with asyncio.timeout(20):
        return (await anext(stream)).decode()


async def test_many_changes_are_rendered_once_for_all_subscribers():
    views, store = Views(), Runs()
    hub = await hub_of(views, store)
    streams = [hub.listen(None) for _ in range(100)]
    for stream in streams:
        assert "event: hello" in await next_text(stream)
    for _ in range(50):
        for run in ("aaaa", "bbbb"):
            store.callbacks[0](Change("run", run))
        store.callbacks[0](Change("log", "aaaa", 1, "rank-0.log", 10))
        store.callbacks[0](Change("log", "aaaa", 1, "rank-0.log", 20))
    texts = [await next_text(stream) for stream in streams]
    assert len(set(texts)) == 1
    assert texts[0].count("event: run") == 2
    assert texts[0].count("event: log") == 1
    assert '"size":20' in texts[0]
    assert views.built == 1
    await hub.stop()
    assert store.callbacks == []


async def test_view_that_cannot_be_rendered_does_not_stop_the_stream(caplog):
    views, store = Views(), Runs()
    hub = await hub_of(views, store)
    stream = hub.listen(None)
    await next_text(stream)
    views.fail = True
    store.callbacks[0](Change("run", "aaaa"))
    await true(lambda: caplog.records)
    views.fail = False
    store.callbacks[0](Change("run", "bbbb"))
    assert '"id":"bbbb"' in await next_text(stream)
    await hub.stop()


async def test_stopping_ends_every_open_stream():
    hub = await hub_of(Views(), Runs())
    stream = hub.listen(None)
    await next_text(stream)
    assert len(hub._listeners) == 1
    rest = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    await hub.stop()
    assert await asyncio.wait_for(rest, 10) is None
    assert len(hub._listeners) == 0
