"""The command line: one file per noun, imported only when its command is called.

Commands on runs, sweeps and the cluster go over HTTP through ``lehr.faces.client``. Only ``up``,
``down``, ``doctor``, ``db`` and ``data`` work on the machine itself.
"""

import sys


def run() -> None:
    """Run the ``lehr`` command. Ctrl-C while its modules load ends it without a traceback."""
    try:
        from lehr.faces.cli.main import run as main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
