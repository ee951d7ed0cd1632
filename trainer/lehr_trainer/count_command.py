"""``lehr_trainer count RUN_DIR``: count the parameters of a config's model by building it, as JSON.

The model is built without memory for its weights; the project's own, too, if the config has one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from lehr_trainer.diagnostics.trace_command import read_config
from lehr_trainer.errors import TrainerError


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer count",
        description="The parameters of a config's model, counted by building it. Prints JSON.",
    )
    parser.add_argument("run_dir", help="a folder with a config.yaml; - reads JSON from stdin")
    given = parser.parse_args(arguments)
    try:
        config = read_config(given.run_dir)
        # Import torch only when the config is known to be good.
        from lehr_trainer.parts import built_counts

        total, looked_up = built_counts(config)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"parameters": total, "looked_up": looked_up}))
    return 0
