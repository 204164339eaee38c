"""Models: a network, with what trains it, judges it and keeps it."""

from neonlite.models.checkpoint import CheckpointError
from neonlite.models.model import Model

__all__ = ["CheckpointError", "Model"]
