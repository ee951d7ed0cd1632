"""The services: what users do with runs, sweeps, rollouts, checkpoints and nodes; one file a verb.

A service takes the ``Context`` and plain values, applies the rules, records, and returns what
``lehr.schemas`` describes. It raises ``lehr.errors`` and knows nothing of the API above it.
"""
