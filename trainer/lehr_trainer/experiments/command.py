"""``python -m lehr_trainer bench TABLE``: one table, as Markdown or JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path

from lehr_trainer.errors import BadConfig, TrainerError
from lehr_trainer.experiments import SECTIONS, SIZES, TABLES, Size


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        size, device = _size_and_device(options)
        sections = options.only or [*SECTIONS]
        for section in sections:
            _check_name(section, SECTIONS, "section")
        from lehr_trainer.experiments import results
        from lehr_trainer.experiments.rows import Hardware, rows

        name, folder = options.name, options.out
        if folder is None and name == "gpu":
            folder = Path(f"bench-{device}-{size.name}")
        bench = results.Bench(
            size=size,
            device=device,
            log=lambda line: None if options.quiet else print(f"{name}: {line}", file=sys.stderr),
            timeout_s=options.timeout_s,
            folder=folder,
            budget_s=options.budget_s,
        )
        tables = sections if name == "gpu" else [name]
        chosen = list(rows(size, Hardware.here(device), tables, eager=options.eager))
        table = results.run(bench, name, chosen)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(table)) if options.json else table.markdown())
    return 0


def _size_and_device(options: argparse.Namespace) -> tuple[Size, str]:
    """Choose by the command line.

    Raises:
        BadConfig: there is no such thing, or not on this machine.
    """
    _check_name(options.name, TABLES, "table")
    device = _chosen_device(options.device)
    published = "gpt2-134m" if options.name == "ladder" else "llama-1b-64x2048"
    name = options.size or ("small" if device == "cpu" else published)
    _check_name(name, SIZES, "size")
    if device == "cpu" and name.startswith("llama-1b") and not options.force:
        raise BadConfig(
            f"--size {name} is a 1B model: a step of it takes minutes on a CPU. "
            "Use --size small, or --force"
        )
    size = SIZES[name].with_batch(options.sequences, options.sequence_length)
    longest = size.model.get("max_sequence_length", 8192)
    if size.sequence_length > longest:
        raise BadConfig(
            f"--sequence-length {size.sequence_length} is longer than the model's {longest}"
        )
    return size, device


def _parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {name:<14} {text}" for name, text in TABLES.items())
    parser = argparse.ArgumentParser(
        prog="lehr bench",
        description=f"Measure the rows of a table (docs/experiments.md).\n\n{about}",
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
    parser.add_argument("--eager", action="store_true", help="compile no row")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="for a row")
    parser.add_argument(
        "--budget-s", type=float, default=math.inf, help="begin no further row after so long"
    )
    parser.add_argument("--out", type=Path, help="the folder that keeps results")
    parser.add_argument("--only", action="append", help="gpu: a section; may be repeated")
    parser.add_argument("--force", action="store_true", help="a size that a CPU is too slow for")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true")
    return parser


def _chosen_device(requested: str) -> str:
    _check_name(requested, ("auto", "cpu", "cuda"), "device")
    if requested == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if requested == "cuda":
        raise BadConfig("--device cuda, but torch sees no CUDA GPU here; use auto or cpu")
    return "cpu"


def _check_name(name: str, valid: Collection[str], what: str) -> None:
    if name in valid:
        return
    names = list(valid)
    near = get_close_matches(name.lower(), names, 1, 0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise BadConfig(f"there is no {what} {name!r}.{hint} There are: {', '.join(names)}")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number
