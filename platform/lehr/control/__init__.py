"""Pure decisions: life cycle, queue, reconcile, retries, outcome, liveness, sweeps, rollouts.

Functions of recorded state: no I/O, and no clock except the one passed in.
"""
