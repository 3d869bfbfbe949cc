"""A run in a Ray cluster: a launcher in each bundle of a placement group, and a driver over them.

The driver is the entrypoint of a Ray job. It knows hosts and launchers, and nothing of workers;
what trains is `phalanx run`, as on any hosts. Only `cluster.py` and `host.py` import Ray.
"""
