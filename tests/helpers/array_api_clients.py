"""Functions of other libraries, written for the array-API standard, on arrays of neonlite, with their gradients.

Run as a script, as SciPy reads SCIPY_ARRAY_API when it is imported: prints {expression: problem, or ""} as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

# differentiable: compared with NumPy, and gradients with finite differences
DIFFERENTIABLE = """
scipy.special.logsumexp(x, axis=1); scipy.special.softmax(x, axis=1); scipy.special.log_softmax(x, axis=0)
scipy.special.rel_entr(x, x + 1); scipy.special.xlogy(x, x); scipy.stats.zscore(x, axis=0); scipy.stats.skew(x, axis=0)
scipy.stats.kurtosis(x, axis=0); scipy.stats.moment(x, 3, axis=0); scipy.stats.gmean(x, axis=0)
scipy.stats.hmean(x, axis=0); scipy.stats.pmean(x, 3, axis=0); scipy.stats.variation(x, axis=0)
scipy.stats.sem(x, axis=0); scipy.stats.circmean(x, axis=0); scipy.stats.pearsonr(x[:, 0], x[:, 1]).statistic
scipy.stats.ttest_1samp(x, 1.0, axis=0).statistic; scipy.stats.directional_stats(x).mean_direction
scipy.stats.bartlett(x[:, 0], x[:, 1]).statistic; scipy.integrate.trapezoid(x, axis=0)
scipy.integrate.cumulative_trapezoid(x, axis=0); scipy.signal.detrend(x, axis=0, type="constant")
scipy.optimize.rosen(v); scipy.cluster.vq.whiten(x); scipy.differentiate.derivative(xp.exp, v).df
xpx.cov(x, xp=xp); xpx.expand_dims(x, axis=(0, 2), xp=xp); xpx.kron(x, x, xp=xp); xpx.sinc(x, xp=xp)
xpx.pad(x, 1, xp=xp)
xpx.create_diagonal(v, xp=xp); xpx.atleast_nd(v, ndim=3, xp=xp); xpx.nan_to_num(x, xp=xp)
xpx.apply_where(x > 1, x, lambda a: a * a, lambda a: -a, xp=xp); xpx.at(x, 0).set(v[:4], copy=True, xp=xp)
xpx.at(x, (0, 1)).add(3.0, copy=True, xp=xp); einops.array_api.rearrange(x, "a b -> (b a)")
einops.array_api.reduce(x, "a b -> b", "mean"); einops.array_api.reduce(x, "a (b c) -> a c", "max", c=2)
einops.array_api.repeat(x, "a b -> a b c", c=2)
""".replace("\n", ";")
OTHERS = """
scipy.special.erf(x); scipy.special.logit(x / 3); scipy.special.entr(x); scipy.stats.rankdata(v)
xpx.isin(v, v[:2], xp=xp)
xpx.nunique(v, xp=xp); xpx.one_hot(xp.asarray([0, 2]), 3, xp=xp); xpx.isclose(x, x + 1e-12, xp=xp)
xpx.setdiff1d(v, v[:3], xp=xp)
xpx.union1d(v, v[:2], xp=xp); xpx.argpartition(v, 0, xp=xp)[0]
scipy.integrate.tanhsinh(lambda t: t**2, xp.zeros(()), xp.ones(())).integral
""".replace("\n", ";")


def expressions(text: str) -> list[str]:
    """Return the expressions of a text."""
    return [each.strip() for each in text.split(";") if each.strip()]


def compare(expression: str, be: Any, differentiate: bool) -> str:
    """Return how the value or the gradient of an expression differs from NumPy's; "" if it does not."""
    import array_api_extra
    import einops.array_api
    import scipy
    import scipy.differentiate
    import scipy.integrate
    import scipy.optimize
    import scipy.signal
    import scipy.stats

    from neonlite import Autodiff

    modules = {"scipy": scipy, "xpx": array_api_extra, "einops": einops}
    rng = np.random.default_rng(0)
    arrays = {"x": rng.uniform(0.2, 2, size=(5, 4)), "v": rng.uniform(0.2, 2, size=7)}

    def numpy_value(**values: Any) -> Any:
        return np.asarray(eval(expression, {"xp": np, **modules, **values}))

    try:
        create = be.array_api.variable if differentiate else be.array_api.asarray
        ours = {name: create(array) for name, array in arrays.items()}
        y = eval(expression, {"xp": be.array_api, **modules, **ours})
        if type(y).__name__ != "Array":
            return f"expected an Array, got {type(y)}"
        np.testing.assert_allclose(y.numpy(), numpy_value(**arrays), rtol=1e-8, atol=1e-10)
        if not differentiate:
            return ""
        gradients = Autodiff(be.array_api.sum(y), be, allow_unused=True).get_grad_asnumpyarray(list(ours.values()))
        for name, gradient in zip(arrays, gradients, strict=True):
            expected, h = np.zeros_like(arrays[name]), 1e-6
            for index in np.ndindex(expected.shape):
                step = np.zeros_like(expected)
                step[index] = h
                ends = [numpy_value(**{**arrays, name: arrays[name] + sign * step}).sum() for sign in (1, -1)]
                expected[index] = (ends[0] - ends[1]) / (2 * h)
            np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    from neonlite import Backend

    backend = Backend(sys.argv[1], default_dtype="float64")
    result = {each: compare(each, backend, True) for each in expressions(DIFFERENTIABLE)}
    print(json.dumps(result | {each: compare(each, backend, False) for each in expressions(OTHERS)}))
