"""Models: training, evaluation, checkpoints, sampling and beam search."""

from typing import TYPE_CHECKING

from neonlite.models.evaluation import Benchmark
from neonlite.models.generation import BeamSearch
from neonlite.models.model import GAN, Model
from neonlite.models.training_state import CheckpointError
from neonlite.name_hints import module_getattr

__all__ = ["GAN", "BeamSearch", "Benchmark", "CheckpointError", "Model"]

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)
