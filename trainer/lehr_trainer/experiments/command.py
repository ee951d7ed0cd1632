"""``python -m lehr_trainer bench NAME``: one experiment, as a table, Markdown or JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path

from lehr_trainer.errors import BadConfig, TrainerError
from lehr_trainer.experiments import EXPERIMENTS
from lehr_trainer.experiments.sizes import SIZES, Size

_MODULES = {"compile": "compiling", "loader": "loading"}
"""Modules whose name differs from the experiment's, which is taken or nearly a keyword."""
_LOADER_SEQUENCES = 64
"""The published batch; a training on a CPU has fewer, but making batches costs no memory."""


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    try:
        size, device = _size_and_device(given)
    except BadConfig as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from lehr_trainer.experiments.plan import BenchPlan
    from lehr_trainer.experiments.table import ExperimentTable

    plan = BenchPlan(
        size=size,
        device=device,
        log=_make_log(given.name, quiet=given.quiet),
        timeout_s=given.timeout_s,
        eager=given.eager,
        memory_gb=given.memory_gb,
        out=given.out,
        budget_s=given.budget_s,
        only=tuple(given.only or ()),
    )
    module = importlib.import_module(
        f"lehr_trainer.experiments.{_MODULES.get(given.name, given.name)}"
    )
    try:
        table: ExperimentTable = module.run(plan)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(table.as_dict()))
    else:
        print(table.markdown() if given.markdown else table.text())
    return 0


def _size_and_device(given: argparse.Namespace) -> tuple[Size, str]:
    """Parse the command line.

    Raises:
        BadConfig: there is no such thing, or not on this machine.
    """
    _known(given.name, EXPERIMENTS, "experiment")
    device = chosen_device(given.device)
    name = given.size or default_size(given.name, device)
    _known(name, SIZES, "size")
    if device == "cpu" and name.startswith("llama-1b") and not given.force:
        raise BadConfig(
            f"--size {name} is a 1B model: a step of it takes minutes on a CPU. "
            "Use --size small, or --force"
        )
    sequences = given.sequences
    if sequences is None and given.name == "loader" and name != "tiny":
        sequences = _LOADER_SEQUENCES
    size = SIZES[name].with_batch(sequences, given.sequence_length)
    longest = size.model.get("max_sequence_length", 8192)
    if size.sequence_length > longest:
        raise BadConfig(
            f"--sequence-length {size.sequence_length} is longer than the model's {longest}"
        )
    return size, device


def _parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {name:<14} {text}" for name, text in EXPERIMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer bench",
        description=f"Repeat an experiment of docs/reference-runs.md.\n\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name")
    parser.add_argument(
        "--size",
        help=f"one of {', '.join(SIZES)}; default: small on a CPU, the published size on a GPU",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--sequences", type=_positive, help="of a step, other than the size's")
    parser.add_argument("--sequence-length", type=_positive)
    parser.add_argument("--memory-gb", type=float, help="batch: how much may be taken")
    parser.add_argument("--eager", action="store_true", help="leave out rows that compile")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for one answer of a row")
    parser.add_argument("--budget-s", type=float, help="gpu: begin no further row after so long")
    parser.add_argument("--out", type=Path, help="gpu: the folder that keeps results")
    parser.add_argument("--only", action="append", help="gpu: a section; may be repeated")
    parser.add_argument("--force", action="store_true", help="a size that a CPU is too slow for")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--markdown", action="store_true")
    return parser


def chosen_device(requested: str) -> str:
    _known(requested, ("auto", "cpu", "cuda"), "device")
    if requested == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if requested == "cuda":
        raise BadConfig("--device cuda, but torch sees no CUDA GPU here; use auto or cpu")
    return "cpu"


def default_size(name: str, device: str) -> str:
    if device == "cpu":
        return "small"
    # At [64, 2048] neither all logits nor fp32 fit in 80 GB.
    return {"ladder": "gpt2-134m", "loader": "gpt2-134m", "gpu": "llama-1b-64x2048"}.get(
        name, "llama-1b-16x2048"
    )


def _known(name: str, valid: Collection[str], what: str) -> None:
    if name in valid:
        return
    names = list(valid)
    near = get_close_matches(name.lower(), [n.lower() for n in names], 1, 0.5)
    nearest = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f" Did you mean {nearest}?" if nearest else ""
    raise BadConfig(f"there is no {what} {name!r}.{hint} There are: {', '.join(names)}")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def _make_log(name: str, *, quiet: bool) -> Callable[[str], None]:
    def log(line: str) -> None:
        if not quiet:
            print(f"{name}: {line}", file=sys.stderr, flush=True)

    return log
