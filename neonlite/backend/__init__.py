"""Tensors, backends, and the current backend: ``gen_backend`` makes it, ``NervanaObject.be`` is it."""

from neonlite.backend.backend import Backend, Block
from neonlite.backend.current import NervanaObject, cleanup_backend, current, gen_backend
from neonlite.backend.executors.pool import set_threads
from neonlite.backend.plan import Plan
from neonlite.backend.runtimes import info
from neonlite.backend.tensor import Tensor
from neonlite.optree import OpTreeNode

__all__ = [
    "Backend",
    "Block",
    "NervanaObject",
    "OpTreeNode",
    "Plan",
    "Tensor",
    "cleanup_backend",
    "current",
    "gen_backend",
    "info",
    "set_threads",
]
