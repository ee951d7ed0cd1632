"""Train small models with the real trainer under many schedules, rates and faults; keep their losses.

A llama of 40 to 140 thousand parameters learns the source text of Python's standard library, byte by
byte, on one CPU thread. The half "tuned" is for priors, "judged" for tests/bench/forecast.py.

    python tests/bench/forecast_runs.py --folder /tmp/runs
"""

import argparse
import gzip
import json
from pathlib import Path

import diagnosis_runs
import yaml

from lehr_testing.trainer import training
from lehr_trainer.contract import layout

OUT = Path(__file__).parents[1] / "data" / "forecast_runs.json.gz"
WSD = {"name": "wsd", "warmup_ratio": 0.05, "min_lr_ratio": 0.0}
SCHEDULES = {
    "cosine": {"name": "cosine", "warmup_ratio": 0.05, "min_lr_ratio": 0.1},
    "wsd": {**WSD, "decay_ratio": 0.2},
    "wsd sqrt": {"name": "wsd", "warmup_ratio": 0.03, "min_lr_ratio": 0.05, "decay_ratio": 0.1, "decay_shape": "sqrt"},
    "constant": {"name": "constant", "warmup_ratio": 0.05},
    "linear": {**WSD, "decay_ratio": 0.95},
}  # fmt: skip
SETTINGS = {  # Hidden size, steps, sequences of a step, seed, first of six rates, factor between them.
    "tuned": (32, 300, 8, 0, 3e-4, 3.0),
    "tuned long": (48, 900, 4, 2, 3e-4, 3.0),
    "judged": (64, 400, 4, 1, 2e-4, 3.5),
    "judged long": (32, 1200, 6, 3, 2e-4, 3.5),
}
_SPIKE = """
import torch
import lehr_trainer.train as train
real = train.Training.take_step
def take_step(self):
    if self.progress.step == {at}:
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.add_({size} * weight.std() * torch.randn_like(weight))
    return real(self)
train.Training.take_step = take_step
"""


def runs():
    """Yield setting, kind, schedule, rate, changes of the config, and code for the process."""
    for setting, (_, steps, _, _, first, times) in SETTINGS.items():
        rates = [first * times**power for power in range(6)]
        good, third, late = rates[3], steps // 3, steps * 3 // 5
        less = {"tuned long": ["wsd sqrt"], "judged long": ["wsd sqrt", "constant", "linear"]}
        for schedule in [one for one in SCHEDULES if one not in less.get(setting, [])]:
            yield from ((setting, "healthy", schedule, rate, {}, "") for rate in rates)
        fault = diagnosis_runs._SAME_BATCH.replace("150", str(third))
        tiny = {"data": {**diagnosis_runs.TINY, "max_tokens": 8_000}}
        ill = [
            ("diverging", "cosine", 1.0, {"grad_clip": 0}, ""),
            ("diverging", "cosine", 3.0, {}, ""),
            ("spike", "wsd", good, {}, _SPIKE.format(size=0.6, at=third)),
            ("spike", "cosine", good / 3, {}, _SPIKE.format(size=0.3, at=late)),
            ("overfitting", "cosine", good * 2, tiny, ""),
            ("overfitting", "wsd", good, tiny, ""),
            ("loader fault", "wsd", good, {}, fault),
        ]
        yield from ((setting, *row) for row in ill if " " not in setting)


def config(setting, schedule, rate, changes):
    hidden, steps, sequences, seed, _, _ = SETTINGS[setting]
    own = {
        "batch": {"sequences": sequences, "sequence_length": 64},
        "steps": steps,
        "optimizer": {"lr": rate},
        "schedule": SCHEDULES[schedule],
        "validation": {"tokens": 16384, "share": 0.05, "every": steps // 50, "micro_batch": 64},
        "checkpoint": {"every": 0},
        "diagnostics": {"parts_every": 0, "quality_every": 0, "sample": {"every": 0}},
    }
    values = diagnosis_runs.config(diagnosis_runs.Variant({**own, **changes}), seed)
    values["model"] |= {"hidden_size": hidden, "intermediate_size": 3 * hidden}
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are trained")
    folder, known = parser.parse_args().folder, []
    for number, (setting, kind, schedule, rate, changes, code) in enumerate(runs()):
        run = folder / "runs" / str(number)
        run.mkdir(parents=True)
        values = config(setting, schedule, rate, changes)
        (run / layout.CONFIG).write_text(yaml.safe_dump(values))
        with training(run, data=folder / "data", code=code) as process:
            process.wait(timeout=600)
        events = sorted(run.glob(f"attempt-*/{layout.EVENTS}"))
        losses = diagnosis_runs.curves(events)["val/loss"][:2]
        names = ("half", "setting", "kind", "rate", "steps", "schedule", "val/loss")
        of_run = (setting.split()[0], setting, kind, rate, values["steps"], values["schedule"])
        known.append(dict(zip(names, (*of_run, losses), strict=True)))
    text = json.dumps(known, separators=(",", ":"), sort_keys=True)
    OUT.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
