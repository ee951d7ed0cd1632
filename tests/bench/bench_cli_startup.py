"""Time of `lehr --help`, compared with a bare interpreter and, if installed, `wandb --help`.

A ratio within one run, alternating, so that a busy machine slows all of them alike.

    python tests/bench/bench_cli_startup.py
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
BIN = Path(sys.executable).parent


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import typer'": [sys.executable, "-c", "import typer"],
        "lehr --help": [str(BIN / "lehr"), "--help"],
        "lehr ls --help": [str(BIN / "lehr"), "ls", "--help"],
        "lehr presets": [str(BIN / "lehr"), "presets"],
        "python -c 'import lehr'": [sys.executable, "-c", "import lehr"],
    }
    wandb = shutil.which("wandb", path=str(BIN)) or shutil.which("wandb")
    if wandb:
        commands["wandb --help"] = [wandb, "--help"]
    for command in commands.values():
        seconds(command)  # Bytecode is written once.
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            times[name].append(seconds(command))
    bare = statistics.median(times["python -c pass"])
    print(f"{'command':<28} {'median':>9} {'times bare Python':>18}")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<28} {median * 1000:>6.0f} ms {median / bare:>18.1f}")
    if not wandb:
        print("wandb is not installed here: pip install 'lehr[wandb]' to compare with it")


if __name__ == "__main__":
    main()
