"""`phalanx doctor --cluster`: the checks of every node, and those of all nodes together.

The doctors connect by the launchers' rendezvous; the first leads and sends requests to the others.
This is no ordinary run, since a run needs every node and every link from its start, and the same
versions on all: the doctor reports nodes that are missing, links that are broken, and versions that
differ.
"""
