"""The server's side of the cluster: dispatcher, controllers, Ray head, bridge, membership.

Only ``bridge`` imports Ray. ``lehr.node`` has what runs on the nodes.
"""
