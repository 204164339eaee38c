"""oneDNN as an accelerator of the runtimes for NumPy arrays: the mixins that it adds to their classes.

Without oneDNN installed, NumPy or MKL computes everything; see ``neonlite.backend.runtimes.accelerated``.
"""

from __future__ import annotations

from collections.abc import Collection

from neonlite.backend.planning.plan import Plan
from neonlite.backend.planning.steps import Step
from neonlite.backend.runtimes.numpy.executor import BlockedExecutor
from neonlite.backend.runtimes.numpy.primitives import NumPyPrimitives
from neonlite.backend.runtimes.onednn.bindings import version_info
from neonlite.backend.runtimes.onednn.chain_fusion import fuse_chains
from neonlite.backend.runtimes.onednn.eltwise import ELTWISE_FUNCTIONS, EltwiseFunction
from neonlite.backend.runtimes.onednn.matmul import OneDNNMatmul
from neonlite.backend.runtimes.onednn.post_ops import FusedChain
from neonlite.backend.runtimes.onednn.recurrent import OneDNNRecurrent
from neonlite.shapes import Shape

__all__ = ["MIXINS", "version_info"]


class OneDNNExecutor(BlockedExecutor):
    """The executor for NumPy arrays. Without oneDNN installed, NumPy computes all steps."""

    def fuse_chains(
        self, plan: Plan, steps: dict[int, Step], domain: Shape, live_out: Collection[int]
    ) -> tuple[dict[int, Step], dict[int, FusedChain]]:
        """Return the steps of a stage with each chain merged into one, and {last value of a chain: chain}."""
        return fuse_chains(plan, steps, domain, live_out)

    def find_function(self, step: Step, size: int, in_order: bool) -> EltwiseFunction | None:
        """Return oneDNN's function for a step on ``size`` elements, or None."""
        if in_order and step.op.name == "stop_gradient":  # oneDNN's copy is a transpose
            return None
        function = ELTWISE_FUNCTIONS.get(step.op.name) if step.dtype == "float32" else None
        return function if function and function.min_size <= size else None


class OneDNNPrimitives(OneDNNRecurrent, OneDNNMatmul):
    """Image primitives, recurrent layers and large matrix products of float32 by oneDNN; the rest by the base class."""


MIXINS: dict[type, type] = {BlockedExecutor: OneDNNExecutor, NumPyPrimitives: OneDNNPrimitives}
