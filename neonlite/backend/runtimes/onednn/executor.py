"""The blocked executor with oneDNN: it computes fused elementwise chains, and functions that NumPy computes slower."""

from __future__ import annotations

from collections.abc import Collection

from neonlite.backend.planning.plan import Plan
from neonlite.backend.planning.steps import Step
from neonlite.backend.runtimes.numpy.executor import BlockedExecutor
from neonlite.backend.runtimes.onednn.chain_fusion import fuse_chains
from neonlite.backend.runtimes.onednn.eltwise import ELTWISE_FUNCTIONS, EltwiseFunction
from neonlite.backend.runtimes.onednn.post_ops import FusedChain
from neonlite.ops.shapes import Shape


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
