"""What nodes did over time: CPU, memory, disk, network and GPUs, at falling resolution.

ring      one file per node, whose size never changes
history   the files of all nodes: record a report of an agent, read a span
"""
