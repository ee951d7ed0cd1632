"""A machine that joins the cluster of a server: checks, the keeper of its Ray node, its unit.

Runs on the joining machine. The server's part is ``app/services/nodes.py``.
"""
