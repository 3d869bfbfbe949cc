"""Seconds a training step, of Phalanx and of what else there is, measured side by side."""
