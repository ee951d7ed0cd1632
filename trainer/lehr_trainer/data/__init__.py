"""Corpora become token shards once; shards become batches by a pure function of the step.

``prepare.prepare_dataset`` -> ``token_dataset.PreparedData``, which ``loader.Loader`` reads.
"""
