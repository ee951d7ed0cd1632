"""Processes on a GPU node: agent, shim, shipper, uploader, fetcher, and their files.

``shim``, ``shipper``, ``procfs``, ``torchrun`` and ``gpu_lock`` use only the standard library: they
run once per attempt, and must start in milliseconds.
"""
