"""Specs that come with Lehr, so that ``lehr demo`` has them wherever it is installed.

``sweeps/`` in the repository points here.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
LR_GRID_SMALL = FOLDER / "lr_grid_small.yaml"
ROLLOUT_SMALL = FOLDER / "rollout_small.yaml"
RECORDED = FOLDER / "lr_grid_small.lehr.html"
"""The sweep of ``LR_GRID_SMALL`` with its eight runs, made by ``docs/generate/recording.py``."""
_RUN = """\
name: first
train:
  model: tiny                       # a preset: lehr spec presets lists them
  data:
    corpus: {kind: stdlib}          # text that every machine has
    tokenizer: byte
  batch: {sequences: 8, sequence_length: 128}
  steps: 200
  optimizer: {lr: 1e-3}
  validation: {every: 50}
  checkpoint: {every: 100}
resources: {gpus: 1}
time_limit_s: 600                   # seconds, after which it is stopped
"""


def example(kind: str) -> str:
    """Return a small working run, sweep or rollout as YAML, with comments."""
    if kind == "run":
        return _RUN
    return (LR_GRID_SMALL if kind == "sweep" else ROLLOUT_SMALL).read_text()
