"""The current members of the cluster: nodes, their GPUs, the attempts that agents list.

Written by the bridge's thread; read by the dispatcher and by requests.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lehr.control.exits import sound_exit
from lehr.control.nodes import LEFT
from lehr.control.reconcile import AttemptPhase, NodeSeen
from lehr.control.resources import Gpu, Node, cpu_places
from lehr.store.records.cluster import FIGURES, MACHINE, short

RayState = Literal["starting", "up", "down"]


@dataclass(frozen=True, slots=True)
class Listed:
    state: AttemptPhase
    gpus: tuple[int, ...]
    exit: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    address: str = ""
    ray_id: str = ""
    alive: bool = False  # Ray counts it as a member.
    serves: bool = True
    """It has an agent, or will have one: it has GPUs, or it is the server's own node."""
    answered: bool = False  # Its agent has reported to the current bridge.
    hello: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[Mapping[str, Any], ...] = ()
    gpus_now: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Measurements of its GPUs by index; GPUs without measurements are absent."""
    host_now: Mapping[str, float] = field(default_factory=dict)
    """Measurements of the machine, as ``host_sample`` names them; empty while none are fresh."""
    attempts: Mapping[str, Listed] = field(default_factory=dict)
    draining: bool = False
    """Its machine is being taken out of the cluster: `lehr node leave` on it."""
    storage: str | None = None
    """Why runs cannot be stored on it now. It is used again when they can."""
    notes: tuple[str, ...] = ()  # What is wrong on it, though runs can start there.
    error: str | None = None
    last_seen_at: float | None = None
    away: str | None = None
    """The last server knew it, and Ray has not listed it since: why. See ``known_nodes``."""

    @property
    def usable(self) -> bool:
        return self.alive and self.answered

    @property
    def problems(self) -> tuple[str, ...]:
        """Return why nothing can be placed on it, though its agent answers."""
        found = tuple(map(str, self.hello.get("problems") or ()))
        found = found if self.storage is None else (*found, self.storage)
        return (*found, "it is leaving the cluster") if self.draining else found

    def living(self) -> set[str]:
        return {name for name, one in self.attempts.items() if one.state is AttemptPhase.LIVE}

    def seen(self, *, but: Collection[str] = ()) -> NodeSeen:
        """Return the attempts listed on it. ``but``: attempts to leave out."""
        return NodeSeen(
            self.name,
            # A node without GPUs gets no agent, so it no longer holds its former attempts.
            alive=self.alive and self.serves,
            answered=self.usable,
            attempts={
                name: listed.state for name, listed in self.attempts.items() if name not in but
            },
        )

    def has_left(self, excluded: str | None) -> bool:
        """Return whether it has left the cluster. ``excluded``: why nothing is placed on it."""
        return excluded == LEFT and not self.usable

    def as_node(self, *, excluded: str | None = None) -> Node:
        """Return what the queue sees of it. ``excluded``: why nothing is placed on it."""
        gpus = tuple(Gpu(int(gpu["index"]), str(gpu["name"])) for gpu in self.gpus)
        folder = self.hello.get("runs_folder")
        return Node(
            self.name,
            gpus,
            usable=self.usable and not self.problems,
            problem=next(iter(self.problems), None) if self.usable else None,
            excluded=excluded is not None,
            left=self.has_left(excluded),
            away=self.away,
            cpu_places=cpu_places(self.hello.get("cpus")),
            runs_folder=None if folder is None else str(folder),
        )


class Cluster:
    """All members since the server started, by name.

    ``expected`` are nodes known before Ray is up (the embedded head's own), so that impossible runs
    are rejected from the first second. ``known`` are nodes that an earlier server has seen.
    """

    def __init__(
        self, expected: Mapping[str, list[dict[str, Any]]], known: Iterable[Member] = ()
    ) -> None:
        self._guard = threading.Lock()
        self._own = frozenset(expected)
        self._members = {
            **{member.name: member for member in known},
            **{name: Member(name, gpus=tuple(gpus)) for name, gpus in expected.items()},
        }
        self._state: RayState = "starting"
        self._message: str | None = None
        self._membership_known = False
        self._sums: dict[tuple[str, int, str], list[float]] = {}

    def members(self) -> dict[str, Member]:
        with self._guard:
            return dict(self._members)

    def state(self) -> tuple[RayState, str | None]:
        with self._guard:
            return self._state, self._message

    @property
    def membership_known(self) -> bool:
        """Return whether Ray has reported its members to the current bridge."""
        with self._guard:
            return self._membership_known

    @property
    def has_no_gpus(self) -> bool:
        """Return whether all members are known, and none has or will have GPUs."""
        with self._guard:
            if not self._membership_known or self._state != "up":
                return False
            alive = [m for m in self._members.values() if m.alive and m.serves]
            return all(m.answered and not m.gpus for m in alive)

    def set_state(self, state: RayState, message: str | None) -> bool:
        with self._guard:
            changed = (state, message) != (self._state, self._message)
            self._state, self._message = state, message
            if state != "up":
                # Reports to an earlier bridge are outdated.
                self._membership_known = False
                self._members = {
                    name: replace(member, answered=False) for name, member in self._members.items()
                }
            return changed

    def on_news(self, news: Mapping[str, Any]) -> bool:
        """Record news. Return whether more has changed than measurements of GPUs."""
        with self._guard:
            if news["news"] == "members":
                before = (self._membership_known, dict(self._members))
                self._hear_members(news["nodes"])
                return before != (self._membership_known, self._members)
            if news["news"] == "node":
                member = self._members.get(news["name"])
                return member is not None and self._hear_node(member, news)
            return False

    def take_means(self) -> list[dict[str, Any]]:
        """Return the mean of each figure that agents have reported since the last call.

        One row for each GPU, and one for each machine: node, gpu, and ``FIGURES``; None: unknown.
        """
        with self._guard:
            sums, self._sums = self._sums, {}
        rows: dict[tuple[str, int], dict[str, Any]] = defaultdict(lambda: dict.fromkeys(FIGURES))
        for (node, gpu, name), values in sums.items():
            rows[node, gpu] |= {"node": node, "gpu": gpu, name: short(values[0] / values[1])}
        return list(rows.values())

    def _add_up(self, member: Member) -> None:
        host = member.host_now
        of_machine = (host.get("cpu_utilization"), host.get("ram_used_bytes"))
        figures = {MACHINE: dict(zip(FIGURES, of_machine, strict=False)), **member.gpus_now}
        for gpu, now in figures.items():
            for name in FIGURES:
                if isinstance(value := now.get(name), (int, float)):
                    total, count = self._sums.get((member.name, gpu, name), (0.0, 0))
                    self._sums[member.name, gpu, name] = [total + value, count + 1]

    def note_started(self, node: str, attempt_id: str, gpus: tuple[int, ...]) -> None:
        """Record a start confirmed by an agent: its last list is older than that.

        Call this in the thread that receives the news: the next list contains the attempt.
        """
        with self._guard:
            member = self._members.get(node)
            if member is not None:
                live = Listed(AttemptPhase.LIVE, gpus, None)
                attempts = {**member.attempts, attempt_id: live}
                self._members[node] = replace(member, attempts=attempts)

    def _hear_members(self, nodes: list[dict[str, Any]]) -> None:
        self._membership_known = True
        by_name = {node["name"]: node for node in nodes}
        for name, member in list(self._members.items()):
            if name not in by_name:
                self._members[name] = replace(member, alive=False, answered=False)
        for name, node in by_name.items():
            member = self._members.get(name) or Member(name)
            same = member.ray_id == node["ray_id"]
            self._members[name] = replace(
                member,
                address=node["address"],
                ray_id=node["ray_id"],
                alive=node["alive"],
                away=None,
                serves=node["gpus"] > 0 or name in self._own,
                answered=member.answered and same and node["alive"],
            )

    def _hear_node(self, member: Member, news: Mapping[str, Any]) -> bool:
        if "error" in news:
            lost = replace(member, answered=False, error=news["error"])
            self._members[member.name] = lost
            return lost != member
        hello = news.get("hello")
        report = news if hello is None else hello
        attempts = {
            name: Listed(
                AttemptPhase(entry["state"]),
                tuple(entry["gpus"]),
                None if entry["exit"] is None else sound_exit(entry["exit"]),
            )
            for name, entry in report["attempts"].items()
        }
        updated = replace(
            member,
            answered=True,
            hello=hello if hello is not None else member.hello,
            gpus=tuple(hello["gpus"]) if hello is not None else member.gpus,
            attempts=attempts,
            draining=bool(report.get("draining", False)),
            storage=report.get("storage"),
            notes=tuple(map(str, news.get("notes", ()))),
            error=None,
        )
        measured = self._members[member.name] = replace(
            updated,
            gpus_now={int(gpu["index"]): gpu for gpu in news.get("gpus_now", ())},
            host_now=news.get("host_now") or {},
            last_seen_at=time.time(),
        )
        self._add_up(measured)
        return updated != member


LABEL = "lehr.node"


@dataclass(frozen=True)
class RayNode:
    name: str  # Its ``lehr.node`` label, else its host's name.
    ray_id: str
    address: str
    gpus: int
    alive: bool


def current_nodes(listed: list[dict[str, Any]]) -> list[RayNode]:
    """Return each machine once, by its living node: Ray lists a restarted raylet as another
    node.
    """
    nodes: dict[str, RayNode] = {}
    for one in listed:
        node = RayNode(
            name=str((one.get("Labels") or {}).get(LABEL) or one["NodeManagerHostname"]),
            ray_id=str(one["NodeID"]),
            address=str(one["NodeManagerAddress"]),
            gpus=int((one.get("Resources") or {}).get("GPU", 0)),
            alive=bool(one["Alive"]),
        )
        twin = nodes.get(node.name)
        if twin is not None and twin.alive:
            if not node.alive:
                continue
            if twin.address != node.address:
                # Two machines with the same name are distinguished by address.
                node = replace(node, name=f"{node.name}@{node.address}")
        nodes[node.name] = node
    return sorted(nodes.values(), key=lambda node: node.name)
