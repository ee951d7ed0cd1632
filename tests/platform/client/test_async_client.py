"""The asynchronous client with a real server: the code of the synchronous one on an event loop."""

import asyncio
import inspect
import threading

import pytest

from lehr import AsyncClient, Client
from lehr.client.async_client import AsyncRollout, AsyncRun, AsyncSweep
from lehr.client.rollouts import Rollout
from lehr.client.runs import Run
from lehr.client.sweeps import Sweep
from lehr.errors import NotFound, ServerUnavailable, SpecError, Unauthorized
from lehr_testing import rollouts
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    TOKEN,
    begin,
    end,
    finished,
    ingest,
    served,
    started,
)
from lehr_testing.server import free_port
from lehr_testing.trained import train


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("home")) as pair:
        yield pair


@pytest.fixture
async def lehr(server):
    async with AsyncClient(server[1], TOKEN) as client:
        yield client


async def test_async_client_returns_what_the_synchronous_client_returns(server, lehr):
    api, address = server
    run = await lehr.submit(RUN_SPEC, {"train.steps": 10})
    assert isinstance(run, AsyncRun)
    assert (run.state, run.name, (await run.config()).steps) == ("queued", "one", 10)
    train(api.store, run.id)
    assert await run.wait(timeout_s=60) is run
    assert (run.state, run.ended, run.step) == ("completed", True, 10)
    with Client(address, TOKEN) as client:
        twin = client.run(run.id)
        frame = await run.history("train/loss", "val/loss")
        assert frame.equals(twin.history("train/loss", "val/loss"))
        assert await run.metrics() == twin.metrics()
        assert await run.events() == twin.events()
        assert await run.export() == twin.export()
        assert (await run.plot()).to_dict() == twin.plot().to_dict()
    assert [line async for line in run.logs()] == ["hello", "world"]
    assert run._repr_html_().startswith("<p>")
    assert repr(run).startswith("<AsyncRun ")


async def test_sweeps_and_comparisons(server, lehr):
    api, _ = server
    sweep = await lehr.sweep(SWEEP_SPEC)
    for number, run in enumerate(await sweep.runs()):
        train(api.store, run.id, 2.0 - number * 0.1)
    assert isinstance(await sweep.wait(timeout_s=60), AsyncSweep)
    best = await sweep.best()
    assert (await best.config()).optimizer.lr == 1e-2
    assert len(await sweep.frame()) == 3
    assert len((await sweep.plot()).data) > 0
    runs = await sweep.runs()
    found = await lehr.compare(*runs[:2])
    assert list(found.frame()["val/loss"]) == [2.0, 1.9]
    assert len((await found.plot()).data) == 2
    assert [one.id for one in await lehr.runs(sweep=sweep.id)] == [r.id for r in reversed(runs)]


async def test_many_waits_run_concurrently_without_threads(server, lehr):
    api, _ = server
    runs = [await lehr.submit({**RUN_SPEC, "name": f"w{n}"}) for n in range(12)]

    def threads() -> int:
        # The server lives in this process too; its threads are named by anyio.
        names = [one.name for one in threading.enumerate()]
        return sum(not name.startswith("AnyIO") for name in names)

    before = threads()
    waiting = [asyncio.ensure_future(run.wait(timeout_s=120)) for run in runs]
    await asyncio.sleep(0)
    most = 0
    for run in runs:
        await asyncio.to_thread(train, api.store, run.id, steps=2)
        most = max(most, threads())
    done = await asyncio.gather(*waiting)
    assert [run.state for run in done] == ["completed"] * 12
    assert most - before < 12


async def test_cancelled_wait_does_not_affect_the_run(lehr):
    run = await lehr.submit(RUN_SPEC)
    waiting = asyncio.ensure_future(run.wait())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await run.refresh()).view.desired == "run"
    with pytest.raises(TimeoutError, match="queued"):
        await run.wait(timeout_s=0.01)


async def test_logs_and_events_come_as_they_happen(server, lehr):
    api, _ = server
    run = await lehr.submit(RUN_SPEC)
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, started())
    ingest(api.store, attempt, b"one\n", "rank-0.log")
    got = []

    async def follow():
        async for line in run.logs(follow=True):
            got.append(line)
            if line == "one":
                await asyncio.to_thread(ingest, api.store, attempt, b"two\n", "rank-0.log")
                await asyncio.to_thread(ingest, api.store, attempt, finished(1))
                await asyncio.to_thread(end, api.store, run.id)

    kinds, connected = [], asyncio.Event()

    async def listen():
        async for event in lehr.stream(run.id):
            kinds.append(event.kind)
            connected.set()
            if event.kind == "run":
                return

    listening = asyncio.ensure_future(listen())
    await asyncio.wait_for(connected.wait(), 60)
    await asyncio.wait_for(follow(), 60)
    await asyncio.wait_for(listening, 60)
    assert got == ["one", "two"]
    assert kinds[0] == "hello"


async def test_rollouts(server, lehr):
    api, _ = server
    rollout = await lehr.rollout(rollouts.plain())
    assert isinstance(rollout, AsyncRollout)
    assert (rollout.state, (await rollout.stages())[0].name) == ("running", "cpu")
    world = rollouts.World(api.store)
    world.controller.enqueue_all()
    world.play({"r-one-gpu": rollouts.Bug(mfu=0.04)})
    assert await rollout.wait(timeout_s=60) is rollout
    assert (rollout.state, rollout.ended, rollout.view.stage) == ("failed", True, "one_gpu")
    assert rollout.reason.startswith("stage one_gpu, MFU: 4.0 %")
    assert [run.name for run in await rollout.runs()] == ["r-cpu", "r-cpu-resumed", "r-one-gpu"]
    frame = await rollout.frame()
    assert list(frame[frame["state"] == "failed"]["gate"]) == ["mfu"]
    assert (await rollout.gates("cpu"))[0].state == "passed"
    assert "MFU" in rollout._repr_html_()
    assert repr(rollout).startswith("<AsyncRollout ")
    with pytest.raises(NotFound, match="has not reached its last stage"):
        await rollout.run()
    assert [one.id for one in await lehr.rollouts()] == [rollout.id]
    assert (await (await lehr.find_rollout("r")).archive()).view.archived


async def test_errors_are_raised_at_the_await(server, lehr):
    with pytest.raises(NotFound):
        await lehr.run("no-such-run")
    with pytest.raises(SpecError):
        await lehr.submit({**RUN_SPEC, "stepz": 1})
    async with AsyncClient(server[1], "wrong") as stranger:
        with pytest.raises(Unauthorized):
            await stranger.runs()
    async with AsyncClient(f"http://127.0.0.1:{free_port()}", "t") as nobody:
        with pytest.raises(ServerUnavailable, match="no process listens on the port"):
            await nobody.health()


def test_both_clients_have_the_same_public_methods():
    def names(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(Client) - {"transport"} == names(AsyncClient)
    # `view` is set by the constructor, so the class does not show it.
    assert names(Run) | {"view"} == names(AsyncRun)
    assert names(Sweep) | {"view"} == names(AsyncSweep)
    assert names(Rollout) | {"view"} == names(AsyncRollout)
    faces = {Client: AsyncClient, Run: AsyncRun, Sweep: AsyncSweep, Rollout: AsyncRollout}
    for sync, face in faces.items():
        for name in names(face):
            one, other = getattr(sync, name, None), getattr(face, name)
            if callable(one) and callable(other):
                assert inspect.signature(one) == inspect.signature(other), name
