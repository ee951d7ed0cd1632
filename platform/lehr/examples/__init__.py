"""Sweeps and rollouts that come with Lehr, so that ``lehr demo`` has them wherever it is installed.

``sweeps/`` in the repository points here.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
LR_GRID = FOLDER / "lr_grid.yaml"
LR_GRID_SMALL = FOLDER / "lr_grid_small.yaml"
MUON_LR_GRID = FOLDER / "muon_lr_grid.yaml"
MUON_LR_GRID_SMALL = FOLDER / "muon_lr_grid_small.yaml"
TECHNIQUES = FOLDER / "techniques_1000_steps.yaml"
TECHNIQUES_SMALL = FOLDER / "techniques_small.yaml"
ROLLOUT_LLAMA_1B = FOLDER / "rollout_llama_1b.yaml"
ROLLOUT_SMALL = FOLDER / "rollout_small.yaml"
