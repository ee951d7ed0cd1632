"""The bridge between the server and the agents, as ``lehr.cluster.bridge`` works, in virtual time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from lehr.cluster.bridge_client import AgentRefused, BridgeDown

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World

CALL_S = 30.0
HELLO_S = 120.0
RETRY_S = 2.0
REST_LOOKS = 20  # While a node's list stays the same, only every so many reports is simulated.


class Bridge:
    """The server's side and the process of one bridge after another, of one server."""

    def __init__(
        self,
        world: World,
        generation: int,
        *,
        on_news: Callable[[dict[str, Any]], None],
        on_state: Callable[[str, str | None], None],
        **_: Any,
    ) -> None:
        self.world = world
        self.generation = generation
        self.on_news = on_news
        self.on_state = on_state
        self.started = False
        self.dead = False  # Its server has ended.
        self.session = ""  # Of the bridge that is up; empty while none is.
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._threads: dict[str, NodeThread] = {}
        self._known: list[dict[str, Any]] = []
        self._pipe_clear_at = 0.0

    # ------------------------------------------------------------------ as the server sees it

    def start(self) -> None:
        self._state("starting", None)
        self.world.after(self.world.rng.uniform(0.5, 10.0), "bridge up", self._come_up)

    def stop(self) -> None:
        self.started = False

    def request(self, op: str, node: str, **fields: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if not self.session:
            future.set_exception(BridgeDown("the bridge to Ray is not up"))
            return future
        number = next(self._ids)
        self._waiting[number] = future
        thread = self._threads.get(node)
        if thread is None:
            self._answer(number, None, f"node {node} is not a member of the cluster")
        else:
            thread.ask(op, number, fields)
        return future

    # ------------------------------------------------------------------------ its processes

    def _come_up(self) -> None:
        if self.dead:
            return
        self.session = f"{self.generation}.{self.world.rng.randrange(10**9)}"
        self._known = []
        self._state("up", None)
        self.members_changed()

    def restart(self) -> None:
        """The bridge ends, and another one takes its place."""
        if self.dead or not self.session:
            return
        self._end()
        waiting, self._waiting = self._waiting, {}

        def lost() -> None:
            for future in waiting.values():
                future.set_exception(BridgeDown("the bridge to Ray ended"))
            self.on_state("down", "simulated")

        self._call(lost)
        self.world.after(self.world.rng.choice([0.2, 2.0, 10.0, 90.0]), "bridge", self._again)

    def _again(self) -> None:
        if not self.dead:
            self.start()

    def die(self) -> None:
        """End with the server."""
        self.dead = True
        self._end()

    def _end(self) -> None:
        self.session = ""
        for thread in self._threads.values():
            thread.closed = True
        self._threads = {}

    def members_changed(self) -> None:
        """Report the members, if they have changed."""
        if not self.session:
            return
        nodes = [node.as_member() for node in self.world.nodes if node.joined]
        if nodes == self._known:
            return
        self._known = nodes
        self.say({"news": "members", "nodes": nodes})
        alive = {node.name: node for node in self.world.nodes if node.joined and node.ray_alive}
        for name, thread in list(self._threads.items()):
            if name not in alive or alive[name].ray_id != thread.ray_id:
                thread.leave()
                del self._threads[name]
        for name, node in alive.items():
            if name not in self._threads:
                self._threads[name] = NodeThread(self, node)

    def say(self, message: dict[str, Any]) -> None:
        """Send a message to the server. Messages keep their order."""
        now = self.world.timeline.now
        self._pipe_clear_at = max(self._pipe_clear_at, now + self.world.rng.uniform(0.001, 0.1))
        session = self.session

        def arrive() -> None:
            if session and session == self.session:
                self._call(lambda: self._on_message(message))

        self.world.after(self._pipe_clear_at - now, f"news {message.get('name', '')}", arrive)

    def _answer(self, number: int, result: Any, error: str | None) -> None:
        self.say({"id": number, "ok": error is None, "result": result, "error": error})

    def _on_message(self, message: dict[str, Any]) -> None:
        if "id" not in message:
            self.on_news(message)
            return
        future = self._waiting.pop(message["id"], None)
        if future is None:
            return
        if message["ok"]:
            future.set_result(message["result"])
        else:
            future.set_exception(AgentRefused(message["error"]))

    def _state(self, state: str, message: str | None) -> None:
        self.world.disturb()
        self._call(lambda: self.on_state(state, message))

    def _call(self, act: Callable[[], None]) -> None:
        if not self.dead:
            self.world.server_call(act)


class NodeThread:
    """Calls one node's agent, one call at a time."""

    def __init__(self, bridge: Bridge, node: Node) -> None:
        self.bridge = bridge
        self.world = bridge.world
        self.node = node
        self.ray_id = node.ray_id
        self.closed = False
        self.leaving = False
        self.connected = False
        self.busy = False
        self.requests: deque[tuple[str, int, dict[str, Any]]] = deque()
        self.look_at = self.looked_at = self.world.timeline.now
        self.last_report: Any = None
        self._pump_soon(0.01)

    def ask(self, op: str, number: int, fields: dict[str, Any]) -> None:
        self.requests.append((op, number, fields))
        self._pump_soon(0.005)

    def leave(self) -> None:
        """Answer the requests that wait, then end."""
        self.leaving = True
        self._pump_soon(0.005)

    def _pump_soon(self, seconds: float) -> None:
        self.world.after(seconds, "node thread", self._pump)

    def _pump(self) -> None:
        if self.closed or self.busy:
            return
        if self.requests:
            request = self.requests.popleft()
            if self.connected:
                self._carry_out(request)
            else:
                self._connect(lambda error: self._after_connect(request, error))
        elif self.leaving:
            self.closed = True
        elif self.world.timeline.now >= self.look_at:
            self._look()
        else:
            self._pump_soon(self.look_at - self.world.timeline.now)

    def _look(self) -> None:
        now = self.world.timeline.now
        self.looked_at = now
        self.look_at = now + (self.world.plan.report_s if self.connected else RETRY_S)
        self.node.watcher = self
        if self.connected:
            self._ask_agent("report", (), CALL_S, self._reported)
        else:
            self._connect(self._done)

    def _reported(self, result: Any, error: str | None) -> None:
        if error is None:
            if result == self.last_report and not self.node.in_trouble:
                # The same list again and again: wait until the node does something.
                self.look_at = self.looked_at + REST_LOOKS * self.world.plan.report_s
            self.last_report = result
            self.bridge.say({"news": "node", "name": self.node.name, **result})
        self._done(error)

    def touched(self) -> None:
        """Look at the usual time again: the node's list may change."""
        pause = self.world.plan.report_s
        now = self.world.timeline.now
        at = self.looked_at + pause * (1 + (now - self.looked_at) // pause)
        if self.connected and at < self.look_at:
            self.look_at = at
            self._pump_soon(at - now)

    def _connect(self, then: Callable[[str | None], None]) -> None:
        def answered(result: Any, error: str | None) -> None:
            if error is None:
                self.connected = True
                self.bridge.say({"news": "node", "name": self.node.name, "hello": result})
            then(error)

        self._ask_agent("hello", (self.bridge.session,), HELLO_S, answered)

    def _after_connect(self, request: tuple[str, int, dict[str, Any]], error: str | None) -> None:
        if error is None:
            self._carry_out(request)
        else:
            self.bridge._answer(request[1], None, error)
            self._done(error)

    def _carry_out(self, request: tuple[str, int, dict[str, Any]]) -> None:
        op, number, fields = request
        arguments: tuple[Any, ...] = (
            (self.bridge.session, fields["launch"])
            if op == "start"
            else (fields["attempt_id"], fields["stop_level"], fields["reason"])
        )

        def answered(result: Any, error: str | None) -> None:
            self.bridge._answer(number, result, error)
            self._done(error)

        self._ask_agent(op, arguments, CALL_S, answered)

    def _done(self, error: str | None) -> None:
        self.busy = False
        if error is not None:
            self.connected = False
            self.look_at = self.world.timeline.now + RETRY_S
            self.bridge.say({"news": "node", "name": self.node.name, "error": error})
        self._pump_soon(0.005)

    def _ask_agent(
        self,
        verb: str,
        arguments: tuple[Any, ...],
        timeout_s: float,
        then: Callable[[Any, str | None], None],
    ) -> None:
        """Call the agent; whichever comes first counts: its answer, or the time limit."""
        self.busy = True
        open_ = [True]

        def finish(result: Any, error: str | None) -> None:
            if open_[0]:
                open_[0] = False
                if not self.closed:
                    then(result, error)

        self.world.after(
            timeout_s, "call timeout", lambda: finish(None, "GetTimeoutError: no answer")
        )
        self.node.deliver_call(self.ray_id, verb, arguments, finish)
