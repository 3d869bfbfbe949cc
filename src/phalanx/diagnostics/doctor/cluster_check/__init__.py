"""The same questions to all hosts of a cluster, and to each link between two of them.

A doctor on every host: the first leads, the others answer. They meet as launchers do.
"""
