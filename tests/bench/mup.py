"""Learning-rate sweeps at several widths, in the standard parametrization and under muP.

A small Llama on the standard library's text, bytes for tokens, one core. Each width is swept over the
same rates, and judged by the verdict of a sweep (``lehr.analysis.lr_fit``) on the held-out loss. Under
muP the best rate should stay; in the standard parametrization the rule says 1 / width.

    python tests/bench/mup.py --out mup.csv [--steps 300] [--optimizer muon]   # trains what is missing
    python tests/bench/mup.py --out mup.csv --steps 0 --figure mup.svg         # only judges and draws
"""

from __future__ import annotations

import argparse
import csv
import math
import sysconfig
from collections import defaultdict
from pathlib import Path

import torch
from pydantic import TypeAdapter

from lehr.analysis.lr_fit import LrFit, fit_learning_rate
from lehr_trainer.configs.llama import LlamaConfig
from lehr_trainer.configs.optimizer import OptimizerConfig
from lehr_trainer.configs.schedule import ScheduleConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer, lr_factor, set_lr_factor

PARAMETRIZATIONS = ("standard", "mup")
HEAD_SIZE, LAYERS, SEQUENCES, LENGTH = 32, 2, 8, 64
HELD_OUT = 256
"""Sequences of the held-out loss."""
BAR = 12
"""Pixels of the figure for the interval of one width."""
Results = dict[tuple[str, int], dict[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="CSV of held-out losses")
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--exponents", type=int, nargs=2, default=[-11, -4], help="of 2, the rates")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--untied", action="store_true", help="a head of its own")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.steps:
        data = corpus()
        first, last = given.exponents
        for width in given.widths:
            for name in PARAMETRIZATIONS:
                for exponent in range(first, last + 1):
                    if 2.0**exponent in read(given.out)[name, width]:
                        continue
                    loss = train(
                        data, name, width, min(given.widths), 2.0**exponent, given.steps,
                        given.optimizer, tied=not given.untied,
                    )  # fmt: skip
                    with given.out.open("a", encoding="utf-8") as file:
                        file.write(f"{name},{width},{2.0**exponent!r},{loss!r}\n")
    results = read(given.out)
    fits = {key: fit_learning_rate(curve.items()) for key, curve in results.items()}
    table(results, fits)
    if given.figure:
        draw(results, fits, given.figure)


def read(path: Path) -> Results:
    found: Results = defaultdict(dict)
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for name, width, rate, loss in csv.reader(file):
                found[name, int(width)][float(rate)] = float(loss)
    return found


def corpus() -> tuple[torch.Tensor, torch.Tensor]:
    """Read the standard library's modules: bytes to train on, and every 20th file held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for number, file in enumerate(files):
        parts[number % 20 == 0].append(file.read_bytes())
    trained, held_out = (
        torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8).long() for part in parts
    )
    return trained, held_out


def sequences(tokens: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Draw sequences [count, LENGTH + 1] at random places."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - LENGTH - 1, (count,), generator=generator)
    return tokens[starts[:, None] + torch.arange(LENGTH + 1)]


def train(
    data: tuple[torch.Tensor, torch.Tensor],
    parametrization: str,
    width: int,
    base_width: int,
    rate: float,
    steps: int,
    optimizer_name: str,
    *,
    tied: bool,
) -> float:
    """Train one model; return its held-out loss in nats, infinite if it diverged."""
    mup = {"parametrization": "mup", "base_width": base_width, "base_head_size": HEAD_SIZE}
    config = LlamaConfig.model_validate(
        {
            "vocab_size": 256,
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": width // HEAD_SIZE,
            "num_key_value_heads": width // HEAD_SIZE,
            "max_sequence_length": LENGTH,
            "rope_theta": 10_000.0,
            "tie_embeddings": tied,
            **(mup if parametrization == "mup" else {}),
        }
    )
    model = build_model(config, device="cpu", seed=0)
    optimizer = build_optimizer(
        model,
        TypeAdapter(OptimizerConfig).validate_python({"name": optimizer_name, "lr": rate}),
    )
    schedule = ScheduleConfig(name="cosine", warmup_ratio=0.1, min_lr_ratio=0.1)
    for step in range(1, steps + 1):
        set_lr_factor(optimizer, lr_factor(schedule, step, steps))
        batch = sequences(data[0], SEQUENCES, seed=step)
        loss = cross_entropy(model(batch[:, :-1]), model.head_weight, batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        batch = sequences(data[1], HELD_OUT, seed=0)
        found = float(cross_entropy(model(batch[:, :-1]), model.head_weight, batch[:, 1:]))
    return found if math.isfinite(found) else math.inf


# -------------------------------------------------------------------------------------- report


def table(results: Results, fits: dict[tuple[str, int], LrFit | None]) -> None:
    print("| parametrization | width | best trial | loss | probably best | 68 % | 95 % |")
    print("|---|---:|---:|---:|---:|---|---|")
    for (name, width), fit in sorted(fits.items()):
        if fit is None:
            print(f"| {name} | {width} | none finite | | | | |")
            continue
        near = "at the edge" if fit.recommended is None else f"{fit.recommended:.2g}"
        print(
            f"| {name} | {width} | {fit.best:.2g} | {results[name, width][fit.best]:.3f} | {near} "
            f"| {between(fit.likely)} | {between(fit.sure)} |"
        )


def between(both: tuple[float, float] | None) -> str:
    return "" if both is None else f"{both[0]:.2g} to {both[1]:.2g}"


def draw(results: Results, fits: dict[tuple[str, int], LrFit | None], path: Path) -> None:
    """Draw loss over rate as SVG: a panel a parametrization, a line a width, a dot at the best.

    Below each panel, for each width: the verdict's interval of 68 %, and the rate of the rule.
    """
    panel_width, height, left, top = 330, 250, 52, 30
    rates = sorted({rate for curve in results.values() for rate in curve})
    lowest = min(min(curve.values()) for curve in results.values())
    highest = lowest + 1.0

    def x(panel: int, rate: float) -> float:
        share = math.log(rate / rates[0]) / math.log(rates[-1] / rates[0])
        return left + panel * panel_width + share * (panel_width - 50)

    def y(loss: float) -> float:
        return top + (highest - min(loss, highest)) / (highest - lowest) * (height - 20) + 10

    widths = sorted({width for _, width in results})
    caption = top + height + 40 + BAR * len(widths)
    size = f'width="{2 * panel_width + 30}" height="{caption + 26}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    colours = ("#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#94a4a2")
    for panel, name in enumerate(PARAMETRIZATIONS):
        out.append(f'<text x="{x(panel, rates[0]):.0f}" y="18" font-weight="bold">{name}</text>')
        out += [
            f'<text x="{x(panel, rate):.0f}" y="{top + height + 14}" text-anchor="middle">'
            f"2^{math.log2(rate):.0f}</text>"
            for rate in rates[::2]
        ]
        for colour, width in zip(colours, widths, strict=False):
            curve = results[name, width]
            points = " ".join(f"{x(panel, r):.1f},{y(curve[r]):.1f}" for r in sorted(curve))
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" />')
            fit = fits[name, width]
            if fit is not None:
                out.append(
                    f'<circle cx="{x(panel, fit.best):.1f}" cy="{y(fit.best_loss):.1f}" r="4" '
                    f'fill="{colour}"/>'
                )
            below = top + height + 26 + BAR * widths.index(width)
            if fit is not None and fit.likely is not None:
                low, high = (x(panel, rate) for rate in fit.likely)
                out.append(
                    f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{below}" y2="{below}" '
                    f'stroke="{colour}" stroke-width="4"/>'
                )
            base = fits[name, widths[0]]
            if base is not None and base.recommended is not None:
                rule = base.recommended * (widths[0] / width if name == "standard" else 1.0)
                out.append(
                    f'<line x1="{x(panel, rule):.1f}" x2="{x(panel, rule):.1f}" y1="{below - 5}" '
                    f'y2="{below + 5}" stroke="black"/>'
                )
            if panel == 1:
                row = top + height - 50 + 15 * widths.index(width)
                out.append(
                    f'<text x="{left + panel_width + 4}" y="{row}" fill="{colour}">width {width}</text>'
                )
    for loss in (lowest, (lowest + highest) / 2, highest):
        out.append(f'<text x="4" y="{y(loss) + 4:.0f}">{loss:.2f}</text>')
    out.append(
        f'<text x="{left}" y="{caption}">held-out loss (nats a byte) over learning rate; dots: the '
        "best trial; at the top: that or more</text>"
        f'<text x="{left}" y="{caption + 16}">bars: where the best rate is with 68 %; black: where '
        "the rule takes that of the smallest width</text></svg>"
    )
    path.write_text("\n".join(out) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
