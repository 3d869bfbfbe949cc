"""Two workers in two network namespaces, joined by a link of a given rate."""
