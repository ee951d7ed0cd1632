"""The API server as a process of its own, without Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from lehr_testing.server import free_port
from lehr_testing.waiting import until

# A cluster that is not there: the server must answer all the same, and no Ray is started.
NOWHERE = "127.0.0.1:1"


class Process:
    def __init__(
        self, home: Path, *options: str, port: int | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.home = home
        self.port = port or free_port()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LEHR_")}
        self.child = subprocess.Popen(
            [
                *(sys.executable, "-m", "lehr_api", "--home", str(home)),
                *("--port", str(self.port), "--ray-address", NOWHERE, *options),
            ],
            env={**environment, "OMP_NUM_THREADS": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.child.stdout:
            self.output.append(line)

    def ready(self):
        def listening():
            assert self.child.poll() is None, "".join(self.output)
            # One that was killed leaves its own file behind.
            return self.info_path.exists() and self.info()["pid"] == self.child.pid

        until(listening, within_s=120, what="server.json")
        return self

    @property
    def info_path(self):
        return self.home / "server.json"

    def info(self):
        return json.loads(self.info_path.read_text())

    @property
    def headers(self):
        return {"Authorization": f"Bearer {(self.home / 'token').read_text().strip()}"}

    def http(self):
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers=self.headers,
            trust_env=False,
            timeout=60,
        )

    def wait(self):
        code = self.child.wait(timeout=60)
        self.reader.join(timeout=10)
        return code

    def end(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
