"""The command line: one file per noun, imported only when its command is called.

Commands on runs, sweeps and the cluster go over HTTP through ``lehr.client``. Only ``up``,
``down``, ``doctor``, ``db`` and ``data`` work on the machine itself.
"""
