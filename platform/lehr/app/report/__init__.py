"""Reports: a run, sweep or rollout as one HTML file that needs nothing else.

``document`` writes a page from its parts. ``runs``, ``sweeps`` and ``rollouts`` choose the parts
from views; ``parts`` has those that they share.
"""
