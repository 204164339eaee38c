"""Backends, tensors and op-tree nodes; gen_backend() creates the current backend."""

from neonlite.backend.backend import Backend
from neonlite.backend.concurrency import set_threads
from neonlite.backend.current import NervanaObject, cleanup_backend, current_backend, gen_backend, use_backend
from neonlite.backend.planning import Plan
from neonlite.backend.replay import Block
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
    "current_backend",
    "gen_backend",
    "info",
    "set_threads",
    "use_backend",
]
