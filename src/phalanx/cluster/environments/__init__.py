"""The kinds of clusters, a file for each: what each says of where the launchers are."""
