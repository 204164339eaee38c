"""neonlite: an expression is data, a runtime is a namespace, a layer is a formula."""

from neonlite.autodiff import Autodiff
from neonlite.backend import Backend, Block, NervanaObject, OpTreeNode, Plan, Tensor, cleanup_backend, gen_backend
from neonlite.check import check_grad

__version__ = "0.1.0"

__all__ = [
    "Autodiff",
    "Backend",
    "Block",
    "NervanaObject",
    "OpTreeNode",
    "Plan",
    "Tensor",
    "__version__",
    "check_grad",
    "cleanup_backend",
    "gen_backend",
]
