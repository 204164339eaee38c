"""Functions of array-api-extra and einops on arrays of neonlite; those with ``*`` are differentiated.

Run as a script: prints {what: {call: problem, or ""}} as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from helpers.compare_results import find_problems
from helpers.scipy_calls import split_calls

RNG = np.random.default_rng(0)
ARRAYS = {"x": RNG.uniform(0.2, 2, size=(5, 4)), "v": RNG.uniform(0.2, 2, size=7)}

CALLS = """
*xpx.cov(x, xp=xp); *xpx.expand_dims(x, axis=(0, 2), xp=xp); *xpx.kron(x, x, xp=xp); *xpx.sinc(x, xp=xp)
*xpx.pad(x, 1, xp=xp); *xpx.create_diagonal(v, xp=xp); *xpx.atleast_nd(v, ndim=3, xp=xp); *xpx.nan_to_num(x, xp=xp)
*xpx.apply_where(x > 1, x, lambda a: a * a, lambda a: -a, xp=xp); *xpx.at(x, 0).set(v[:4], copy=True, xp=xp)
*xpx.at(x, (0, 1)).add(3.0, copy=True, xp=xp); *einops.array_api.rearrange(x, "a b -> (b a)")
*einops.array_api.reduce(x, "a b -> b", "mean"); *einops.array_api.reduce(x, "a (b c) -> a c", "max", c=2)
*einops.array_api.repeat(x, "a b -> a b c", c=2); xpx.isin(v, v[:2], xp=xp); xpx.nunique(v, xp=xp)
xpx.one_hot(xp.asarray([0, 2]), 3, xp=xp); xpx.isclose(x, x + 1e-12, xp=xp); xpx.setdiff1d(v, v[:3], xp=xp)
xpx.union1d(v, v[:2], xp=xp); xpx.argpartition(v, 0, xp=xp)[0]
"""


def evaluate(call: str, xp: Any, arrays: dict[str, Any]) -> Any:
    """Return the result of a call for a namespace and its arrays."""
    import array_api_extra
    import einops.array_api

    return eval(call, {"xp": xp, "xpx": array_api_extra, "einops": einops, **arrays})


if __name__ == "__main__":
    from neonlite import Backend

    runtime, *kinds = sys.argv[1:]
    xp = Backend(runtime, default_dtype="float64").array_api
    print(json.dumps({what: find_problems(split_calls(CALLS), ARRAYS, evaluate, xp, what) for what in kinds}))
