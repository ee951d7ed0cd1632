"""The whole GPU bench by one command: ``python tests/bench/gpu.py [--budget-s 540] [--out DIR]``.

the 1B Llama runs' configurations and the targets, each in a process of its own. Call it again and it
goes on where it stopped; DIR/results.md is the table for docs/benchmarks.md. Without a GPU, rehearse
its path: ``--device cpu --size tiny --eager``. The same as ``lehr bench gpu``.
"""

import sys

import torch

from lehr_trainer.experiments import command


def main() -> int:
    arguments = sys.argv[1:]
    asks = any(a.startswith(("--device", "--help", "-h")) for a in arguments)
    if not torch.cuda.is_available() and not asks:
        print("no CUDA device here; for a test run: --device cpu --size tiny --eager")
        return 0
    return command.main(["gpu", "--markdown", *arguments])


if __name__ == "__main__":
    sys.exit(main())
