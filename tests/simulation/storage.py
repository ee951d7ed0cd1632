"""Where the files of checkpoints lie: on the disks of nodes, and as copies in other storage."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lehr_api.routes.attempts import CopiesReport, CopyNews, copies
from simulation.part import Outage

if TYPE_CHECKING:
    from lehr.control.queue import StartRun
    from simulation.node import Node
    from simulation.part import Part
    from simulation.training import Training
    from simulation.world import World

_copies: Any = inspect.unwrap(copies)  # The route's handler, without the server's threads.
TRIES = 200
KEEP_LAST = 2
Key = tuple[str, str]  # A run, and the path of its checkpoint.


def key_of(run_id: str, path: str) -> Key:
    """``path``: relative to the run's directory, or absolute, as a fork has it."""
    *_, owner, attempt, folder, step = ["", run_id, *path.split("/")[-4:]]
    return owner, f"{attempt}/{folder}/{step}"


class Storage:
    def __init__(self, world: World) -> None:
        self.world = world
        self.on = world.plan.storage
        """Whether files matter: if not, every node has every checkpoint."""
        self._disks: dict[Key, set[str]] = {}

    def disk(self, node: Node) -> str:
        """Return the identity of the folder of runs that a node sees."""
        return "shared" if self.world.plan.shared_storage else f"{node.name}.{node.disks}"

    def has(self, node: Node, key: Key) -> bool:
        return self.disk(node) in self._disks.get(key, ())

    # -------------------------------------------------------------------------------- saving

    def saved(self, training: Training, path: str) -> None:
        """Note a new checkpoint, remove older ones, and copy it if its spec requests that."""
        part = training.parts[0]
        self._disks[training.run_id, path] = {self.disk(part.node)}
        training.held.append(path)
        for old in training.held[:-KEEP_LAST]:
            if old not in training.keep:
                training.held.remove(old)
                self._disks[training.run_id, old].discard(self.disk(part.node))
                step = int(old.rpartition("-")[2])
                training.record("checkpoint_removed", step=step, path=old)
        if part.launch["upload"]:
            self._later(part, path, self.world.rng.choice([2.0, 20.0, 120.0, 900.0]), TRIES)

    def _later(self, part: Part, path: str, seconds: float, tries: int) -> None:
        if tries:
            self.world.after(seconds, "copy", lambda: self._copy(part, path, tries))

    def _copy(self, part: Part, path: str, tries: int) -> None:
        if part.erased or not self.has(part.node, (part.training.run_id, path)):
            return
        if not part.node.on or part.node.hangs or part.node.disk_full:
            self._later(part, path, 30.0, tries - 1)
            return
        folder = self._folder(part, path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(b"{}")
        self.world.count("copies")
        self._report(part, path, "there", TRIES)

    def _report(self, part: Part, path: str, state: Any, tries: int) -> None:
        def again() -> None:
            if tries and not part.erased:
                self.world.after(
                    10.0, "copy report", lambda: self._report(part, path, state, tries - 1)
                )

        news = CopyNews(path=path, url=self._url(part, path), state=state)
        try:
            answer = part.http(
                "copies", lambda s: _copies(CopiesReport(copies=[news]), part.attempt_id, s.store)
            )
        except Outage:
            again()
            return
        if path in answer.unknown:
            again()
        for old in answer.remove:
            self.world.watch.groups.removes_copy(part.training.run_id, old)
            shutil.rmtree(self._folder(part, old), ignore_errors=True)
            self.world.count("copies removed")
            self._report(part, old, "removed", TRIES)

    def _url(self, part: Part, path: str) -> str:
        return f"{part.launch['upload']}/{part.training.run_id}/{path}"

    def _folder(self, part: Part, path: str) -> Path:
        return Path(self._url(part, path).removeprefix("file://"))

    # ------------------------------------------------------------------------------ resuming

    def resume(self, training: Training) -> str | None:
        """Find the checkpoint on the nodes, or fetch a copy. Return why there is none."""
        assert training.resume_from is not None
        if self._everywhere(training, training.resume_from, None):
            return None
        candidates = training.parts[0].launch["fetch"]
        for one in candidates:
            if self._everywhere(training, one["path"], one["url"]):
                self.world.count("resumed from copies")
                training.resume_from = one["path"]
                training.step = training.first_step = int(one["path"].rpartition("-")[2])
                return None
        self.world.count("lost checkpoints")
        return "checkpoint_unreachable" if candidates else "missing_checkpoint"

    def _everywhere(self, training: Training, path: str, url: str | None) -> bool:
        key = key_of(training.run_id, path)
        lack = [part.node for part in training.parts.values() if not self.has(part.node, key)]
        if lack and (url is None or not self.exists(url)):
            return False
        self._disks.setdefault(key, set()).update(self.disk(node) for node in lack)
        return True

    @staticmethod
    def exists(url: str) -> bool:
        return (Path(url.removeprefix("file://")) / "manifest.json").exists()

    # ----------------------------------------------------------------------------- invariants

    def check_start(self, start: StartRun) -> str | None:
        """Return what is wrong if a run leaves the node with its only checkpoint."""
        server = self.world.server
        run = server.store.runs.get(start.run_id)
        points = server.store.checkpoints.of_run(run.id) if run.attempt else []
        if not self.on or not points or len(start.placement) > 1:
            return None
        newest = max(points, key=lambda point: (point.attempt, point.step))
        key = (run.id, newest.path)
        if any(point.copy_state == "there" for point in points):
            return None
        members = server.dispatcher.cluster.members()
        need = len(start.placement[0].gpus)
        able = [
            node.name
            for node in self.world.nodes
            if self.has(node, key)
            and node.gpus >= need
            and node.name in members
            and members[node.name].usable
            and members[node.name].hello.get("runs_folder") == self.disk(node)
        ]
        placed = next(node for node in self.world.nodes if node.name == start.placement[0].node)
        if not able or self.has(placed, key):
            return None
        return f"{run.id} starts on {placed.name}; its only checkpoint is on {able}"
