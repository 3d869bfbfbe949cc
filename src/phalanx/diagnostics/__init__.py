"""Looks at machines, scripts and failed steps: `doctor`, `check` and `debug`."""
