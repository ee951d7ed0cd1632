"""What should happen next: life cycle, queue, reconcile, retries, outcome, silence.

Pure functions of recorded state: no I/O, and no clock but the one passed in.
"""
