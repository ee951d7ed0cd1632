"""The hands: dispatcher loop, Ray head, bridge, agent, shim, shipper, torchrun command, capacity.

``shim``, ``shipper``, ``procfs``, ``torchrun`` and ``gpulock`` use the standard library alone: they
run once an attempt, and must start in milliseconds. Only ``bridge`` imports Ray.
"""
