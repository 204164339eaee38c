"""Models: training, evaluation, checkpoints, sampling and beam search."""

from neonlite.models.beam_search import BeamSearch
from neonlite.models.benchmark import Benchmark
from neonlite.models.checkpoint import CheckpointError
from neonlite.models.gan import GAN
from neonlite.models.model import Model

__all__ = ["GAN", "BeamSearch", "Benchmark", "CheckpointError", "Model"]
