"""What happens beside training; one callback a file."""

from phalanx.callbacks.gradient_logger import GradientLogger

__all__ = ["GradientLogger"]
