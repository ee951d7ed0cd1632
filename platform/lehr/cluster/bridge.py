"""The bridge: the process that talks to Ray on behalf of the server.

``python -P -m lehr.cluster.bridge ADDRESS SESSION URL NODE RUNS`` is a child of the server. It
reads requests from stdin and writes answers and news to stdout, one JSON object per line. It opens
no database, decides nothing and keeps no state. Ray ends a driver that loses its cluster for a
minute (exit 1, no exception); then another bridge is started.

Requests: ``{"id", "op": "start", "node", "launch"}`` and ``{"id", "op": "stop", "node",
"attempt_id", "stop_level", "reason"}``. Each is answered by ``{"id", "ok"}`` and a "result" or an
"error". The end of stdin ends the bridge. ``{"op": "ping"}`` is answered by ``{"news": "pong"}``,
or not at all if the bridge hangs.

News: ``{"news": "members", "nodes": [...]}`` when the members of the cluster change, and ``{"news":
"node", "name"}`` with a "hello", "attempts" or an "error" from each node's agent, at least once
every few seconds. Lists of attempts come with ``gpus_now``, the measurements of the node's GPUs.
The messages of a node keep the order of its agent's actions: a list that arrives after the answer
to a start contains that attempt.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sized
from dataclasses import asdict
from typing import Any, TextIO

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lehr.base import killpoints, procfs
from lehr.cluster.membership import RayNode, current_nodes
from lehr.control.liveness import report_s
from lehr.node.agent import Agent

NAMESPACE = "lehr"
MEMBERS_EVERY_S = 1.0
CALL_S = 30.0
AGENT_START_S = 120.0
PROBLEMS_EVERY_S = 5.0  # Pause before a node with problems gets the next request.
WATCH_HANGS_S = 90.0
"""Ray ends a driver that has lost its cluster for a minute; a call that takes longer never ends."""


class Output:
    """Writes lines to the server from several threads."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._guard = threading.Lock()

    def send(self, **value: Any) -> None:
        line = json.dumps(value)
        with self._guard:
            self._file.write(line + "\n")
            self._file.flush()


@functools.cache
def remote_agent() -> Any:
    """Return the agent as a class of actors, made once: Ray keeps each that is made."""
    return ray.remote(Agent)


class NodeThread(threading.Thread):
    """Talks to one node's agent, one call at a time, and replaces the agent when it is dead."""

    def __init__(
        self,
        member: RayNode,
        session: str,
        server_url: str,
        runs_dir: str,
        output: Output,
        nodes: Sized,
    ) -> None:
        """``nodes``: those that report to this bridge now; the more they are, the rarer each."""
        super().__init__(name=f"node-{member.name}", daemon=True)
        self.runs_dir = runs_dir
        self.member = member
        self.session = session
        self.server_url = server_url
        self.output = output
        self.nodes = nodes
        self.requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.agent: Any = None
        self.problems: list[str] = []
        self.hello_at = 0.0

    def run(self) -> None:
        try:
            self.serve()
        except BaseException:  # noqa: BLE001 - the process ends with it
            _end_process()

    def serve(self) -> None:
        look_at = time.monotonic()
        while True:
            try:
                request = self.requests.get(timeout=max(0.0, look_at - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if request is None:
                    return
                self.answer(request)
            # Read the agent's list regularly, even under many requests.
            if time.monotonic() >= look_at:
                self.report_list()
                look_at = time.monotonic() + (report_s(len(self.nodes)) if self.agent else 0.2)

    def report_list(self) -> None:
        """Report the agent's list; find or create an agent when there is none."""
        try:
            looks_again = self.problems and time.monotonic() - self.hello_at > PROBLEMS_EVERY_S
            if self.agent is None or looks_again:
                self.connect()
            else:
                self.output.send(news="node", name=self.member.name, **self.call("report"))
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds; each is news of the node
            self.lose_agent(error)

    def answer(self, request: dict[str, Any]) -> None:
        try:
            if self.agent is None:
                self.connect()
            killpoints.reached(f"bridge: before a {request['op']} request")
            if request["op"] == "start":
                result = self.call("start", self.session, request["launch"])
            else:
                result = self.call(
                    "stop", request["attempt_id"], request["stop_level"], request["reason"]
                )
        except Exception as error:  # noqa: BLE001 - every error must reach the server
            self.output.send(id=request["id"], ok=False, error=_brief(error))
            self.lose_agent(error)
        else:
            killpoints.reached(f"bridge: after a {request['op']} request")
            self.output.send(id=request["id"], ok=True, result=result)
            killpoints.reached(f"bridge: after a {request['op']} is answered")

    def call(self, verb: str, *args: Any, timeout_s: float = CALL_S) -> Any:
        return ray.get(getattr(self.agent, verb).remote(*args), timeout=timeout_s)

    def connect(self) -> None:
        """Return the node's agent, found by name, or create it.

        The name contains Ray's id of the node. A node that comes back is a new one to Ray, and the
        name of the old node's dead actor stays taken.
        """
        name = f"agent-{self.member.ray_id[:16]}"
        try:
            self.agent = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            make = remote_agent().options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=0,
                num_gpus=self.member.gpus,
                # A killed actor restarts by itself; one on a lost node does not.
                max_restarts=-1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.member.ray_id, soft=False),
            )
            self.agent = make.remote(self.member.name, self.member.gpus)
        asked_at = time.time()
        try:
            hello = self.call("hello", self.session, self.server_url, timeout_s=AGENT_START_S)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(
                f"its agent did not start within {AGENT_START_S:g} s: it needs all "
                f"{self.member.gpus} GPUs of the node, and another Ray job may use them"
            ) from None
        self.problems = hello.get("problems", [])
        self.hello_at = time.monotonic()
        hello["clock_offset_s"] = clock_offset_s(hello, asked_at, time.time())
        hello["runs_folder"] = self.call("runs_folder", self.runs_dir)
        self.output.send(news="node", name=self.member.name, hello=hello)

    def lose_agent(self, error: Exception) -> None:
        """Start over with a new hello; an actor that is dead for good gives up its name."""
        agent, self.agent = self.agent, None
        if isinstance(error, ray.exceptions.ActorDiedError) and agent is not None:
            try:
                ray.kill(agent, no_restart=True)
            except Exception as second:  # noqa: BLE001 - it is dead; only its name is wanted
                procfs.log(f"{self.member.name}: {_brief(second)}")
        procfs.log(f"{self.member.name}: {_brief(error)}")
        self.output.send(news="node", name=self.member.name, error=_brief(error))
        time.sleep(0.2)


class Bridge:
    def __init__(
        self, session: str, server_url: str, own_node: str, runs_dir: str, output: Output
    ) -> None:
        """Connect to the cluster. ``own_node``: the server's own node, empty if it has none.

        ``runs_dir``: the folder of runs, by the path that it has on every node.

        The own node gets an agent even without GPUs, to report how earlier attempts ended there.
        """
        self.session = session
        self.server_url = server_url
        self.own_node = own_node
        self.runs_dir = runs_dir
        self.output = output
        self.threads: dict[str, NodeThread] = {}
        self.known: list[RayNode] = []
        self.watched_at = time.monotonic()

    def watch(self) -> None:
        while True:
            members = current_nodes(ray.nodes())
            if members != self.known:
                self.known = members
                self.output.send(news="members", nodes=[asdict(member) for member in members])
                self.match(members)
            self.watched_at = time.monotonic()
            time.sleep(MEMBERS_EVERY_S)

    def match(self, members: list[RayNode]) -> None:
        alive = {
            member.name: member
            for member in members
            if member.alive and (member.gpus or member.name == self.own_node)
        }
        for name, thread in list(self.threads.items()):
            if name not in alive or alive[name].ray_id != thread.member.ray_id:
                thread.requests.put(None)
                del self.threads[name]
        for name, member in alive.items():
            if name not in self.threads:
                thread = self.threads[name] = NodeThread(
                    member, self.session, self.server_url, self.runs_dir, self.output, self.threads
                )
                thread.start()

    def dispatch(self, request: dict[str, Any]) -> None:
        if request["op"] == "ping":
            # Without its other thread the bridge is of no use: the server replaces it.
            if time.monotonic() - self.watched_at < WATCH_HANGS_S:
                self.output.send(news="pong")
            return
        thread = self.threads.get(request["node"])
        if thread is None:
            error = f"node {request['node']} is not a member of the cluster"
            self.output.send(id=request["id"], ok=False, error=error)
            return
        thread.requests.put(request)


def clock_offset_s(hello: dict[str, Any], asked_at: float, answered_at: float) -> float:
    """Return by how much the node's clock is ahead of this one, as far as that is certain.

    The node read its clock at some moment between the two.
    """
    there = float(hello["facts"]["time"])
    return there - min(max(there, asked_at), answered_at)


def _end_process() -> None:
    """End the bridge with the current error: without one of its threads it answers nobody.

    The server starts another.
    """
    procfs.log(traceback.format_exc())
    os._exit(1)


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def main() -> None:
    address, session, server_url, own_node, runs_dir = sys.argv[1:6]
    # Ray and its dependencies may print to stdout, so messages to the server use another
    # descriptor.
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    output = Output(own)
    ray.init(
        address=address,
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=True,
        logging_level="warning",
    )
    output.send(news="up", address=address)
    bridge = Bridge(session, server_url, own_node, runs_dir, output)

    def watch() -> None:
        try:
            bridge.watch()
        except BaseException:  # noqa: BLE001 - the process ends with it
            _end_process()

    threading.Thread(target=watch, name="members", daemon=True).start()
    for line in sys.stdin:
        bridge.dispatch(json.loads(line))
    # The server is gone. Agents are detached: they and their attempts continue.
    os._exit(0)


if __name__ == "__main__":
    main()
