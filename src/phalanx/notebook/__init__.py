"""Runs a function or a cell of a notebook on workers: `phalanx.launch`, `%%phalanx`."""
