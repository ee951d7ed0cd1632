"""Read the curves of a run from a file: of Lehr, CSV, JSON lines, TensorBoard or W&B offline.

Each format is a module that yields points; ``collector.py`` thins them, so that memory stays
bounded, and ``names.py`` maps the usual names to those of Lehr.
"""

from lehr.analysis.curve_files.read import FileCurves, read_curves

__all__ = ["FileCurves", "read_curves"]
