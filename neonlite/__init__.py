"""neonlite: op-trees, automatic differentiation and neural-network layers over interchangeable array runtimes."""

from neonlite.autodiff import Autodiff
from neonlite.backend import Backend, Block, NervanaObject, OpTreeNode, Plan, Tensor, cleanup_backend, gen_backend
from neonlite.explorer import explore
from neonlite.gradcheck import check_grad

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
    "explore",
    "gen_backend",
]
