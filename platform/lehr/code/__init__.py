"""Capsules: the code that trains a run, as one archive that is addressed by its content.

The client collects it at submission, the server keeps it with the record, and nodes unpack it once.
"""
