"""Models: a network, with what trains it, judges it and keeps it."""

from neonlite.models.beam import BeamSearch
from neonlite.models.benchmark import Benchmark
from neonlite.models.checkpoint import CheckpointError
from neonlite.models.gan import GAN
from neonlite.models.model import Model

__all__ = ["GAN", "BeamSearch", "Benchmark", "CheckpointError", "Model"]
