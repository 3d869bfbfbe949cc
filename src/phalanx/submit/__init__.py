"""Handing a run to a cluster: a file for each kind, which makes the text that the cluster takes."""
