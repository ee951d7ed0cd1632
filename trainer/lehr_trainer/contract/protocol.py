"""The version of all that the platform and a trainer exchange.

The trainer of a run is in its capsule, so an old one may be started by a newer platform. Both agree
on: the command ``python -m lehr_trainer ATTEMPT_DIR`` and the variables of its environment,
``config.yaml``, ``launch.json`` and ``orders.json``, the layout of a run directory, the records of
``events.jsonl``, manifests of checkpoints, and for a program the lines that ``lehr_log`` writes.

A field that is new, and left out at its default, changes nothing: readers skip what they do not
know, and the config of a run stays as it was recorded. Raise ``VERSION`` for all that an older
trainer would not understand, or that it writes in another form. Raise ``OLDEST`` if the platform no
longer drives older ones. Runs whose code is out of this range are refused when they start.
"""

# The platform reads these lines in capsules without importing them.
VERSION = 1
OLDEST = 1
