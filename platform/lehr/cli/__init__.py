"""The command line: one file a noun, each imported only when its command is called.

Everything about runs, sweeps and the cluster goes over HTTP through ``lehr.client``, like
everybody else's; only ``up``, ``down``, ``doctor`` and ``data`` look at the machine itself.
"""
