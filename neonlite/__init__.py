"""neonlite: op-trees, automatic differentiation and neural-network layers over interchangeable array runtimes.

The modules of networks, such as ``neonlite.layers``, and the class ``Model`` are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# first, as the class Backend imports autodiff.py, which imports from this package
from neonlite.backend import Backend, Block, NervanaObject, OpTreeNode, Plan, Tensor, cleanup_backend, gen_backend

# isort: split
from neonlite.autodiff import Autodiff
from neonlite.gradcheck import check_grad
from neonlite.name_hints import MODULES as _LAZY_MODULES, module_getattr
from neonlite.version import __version__

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


_LAZY_NAMES = {"Model": "neonlite.models", "logger": "neonlite.callbacks.loggers"}
_LAZY_NAMES |= dict.fromkeys(("einsum", "tensordot", "transpose"), "neonlite.array_api.operators")
_LAZY_NAMES |= {"Sequential": "neonlite.layers", "jit": "neonlite.programs", "explore": "neonlite.explorer"}
_TRANSFORMS = "checkpoint custom_grad grad hessian hvp jacobian jvp stop_gradient value_and_grad vjp vmap"
_LAZY_NAMES |= dict.fromkeys(_TRANSFORMS.split(), "neonlite.functions")
_LAZY_NAMES |= dict.fromkeys(("cond", "scan", "while_loop"), "neonlite.control_flow")

if TYPE_CHECKING:
    from neonlite import (
        array_api as array_api,
        backend as backend,
        callbacks as callbacks,
        data as data,
        distributed as distributed,
        initializers as initializers,
        layers as layers,
        models as models,
        optimizers as optimizers,
        transforms as transforms,
        visualize as visualize,
    )
    from neonlite.array_api.operators import einsum as einsum, tensordot as tensordot, transpose as transpose
    from neonlite.callbacks.loggers import logger as logger
    from neonlite.control_flow import cond as cond, scan as scan, while_loop as while_loop
    from neonlite.explorer import explore as explore
    from neonlite.functions import (
        checkpoint as checkpoint,
        custom_grad as custom_grad,
        grad as grad,
        hessian as hessian,
        hvp as hvp,
        jacobian as jacobian,
        jvp as jvp,
        stop_gradient as stop_gradient,
        value_and_grad as value_and_grad,
        vjp as vjp,
        vmap as vmap,
    )
    from neonlite.layers import Sequential as Sequential
    from neonlite.models import Model as Model
    from neonlite.programs import jit as jit
else:

    def __getattr__(name):
        if name in _LAZY_MODULES:
            return import_module(f"neonlite.{name}")
        if name in _LAZY_NAMES:
            return getattr(import_module(_LAZY_NAMES[name]), name)
        return module_getattr("neonlite")(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LAZY_NAMES} - {"TYPE_CHECKING", "import_module"})
