"""The array-API standard over op-trees: write ``xp.exp(x)``, on any backend; expressions are fused and differentiated.

The functions are those of the standard 2024.12 with the extension ``linalg``, without complex numbers; ``isin`` and
``broadcast_shapes`` are of 2025.12. New arrays are
on the current backend; ``be.array_api`` is the same namespace for a given backend.

References
----------
The array-API standard, https://data-apis.org/array-api/2024.12.

Examples
--------
>>> from neonlite import array_api as xp
>>> x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
>>> xp.mean(x * x, axis=0)
Array([ 5., 10.], dtype=float32)
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING

# fmt: off
# ruff: isort: off
from neonlite.array_api import linalg as linalg, random as random
from neonlite.array_api.array import Array
from neonlite.array_api.creation import (
    arange, asarray, empty, empty_like, eye, from_dlpack, full, full_like, linspace, ones, ones_like, variable,
    zeros, zeros_like,
)
from neonlite.array_api.data_types import (
    __array_namespace_info__, astype, broadcast_arrays, broadcast_shapes, broadcast_to, can_cast, finfo,
    iinfo, isdtype, result_type,
)
from neonlite.array_api.elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_invert, bitwise_left_shift,
    bitwise_or, bitwise_right_shift, bitwise_xor, ceil, clip, conj, copysign, cos, cosh, divide, equal, erf, exp,
    expm1, floor, floor_divide, greater, greater_equal, hypot, imag, isfinite, isinf, isnan, less, less_equal, log,
    log1p, log2, log10, logaddexp, logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply,
    negative, nextafter, not_equal, positive, pow, real, reciprocal, remainder, round, sign, signbit, sin, sinh,
    sqrt, square, subtract, tan, tanh, trunc,
)
from neonlite.array_api.manipulation import (
    concat, expand_dims, flip, meshgrid, moveaxis, permute_dims, repeat, reshape, roll, squeeze, stack, take,
    take_along_axis, tile, tril, triu, unstack,
)
from neonlite.array_api.operators import install
from neonlite.array_api.linalg import einsum, matmul, matrix_transpose, tensordot, vecdot
from neonlite.array_api.data_types import DTYPES
from neonlite.array_api.reductions import (
    all, any, argmax, argmin, argsort, count_nonzero, cumulative_prod, cumulative_sum, diff, isin, max, mean, min,
    nonzero, prod, searchsorted, sort, std, sum, unique_all, unique_counts, unique_inverse, unique_values, var, where,
)
from neonlite.name_hints import module_getattr
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

__array_api_version__ = "2024.12"

bool = DTYPES["bool"]
int8, int16, int32, int64 = (DTYPES[f"int{n}"] for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DTYPES[f"uint{n}"] for n in (8, 16, 32, 64))
float32, float64 = DTYPES["float32"], DTYPES["float64"]
e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi


# fmt: off
__all__ = [
    "Array", "__array_api_version__", "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "any", "arange",
    "argmax", "argmin", "argsort", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool",
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "can_cast", "ceil", "clip", "concat", "conj", "copysign",
    "cos", "cosh", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "einsum", "empty",
    "empty_like", "equal", "erf", "exp", "expand_dims", "expm1", "eye", "finfo", "flip", "float32", "float64", "floor",
    "floor_divide", "from_dlpack", "full", "full_like", "greater", "greater_equal", "hypot", "iinfo", "imag", "inf",
    "int8", "int16", "int32", "int64", "isdtype", "isfinite", "isin", "isinf", "isnan", "less", "less_equal", "linalg",
    "linspace", "log", "log1p", "log2", "log10", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor",
    "matmul", "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan",
    "negative", "newaxis", "nextafter", "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive",
    "pow", "prod", "random", "real", "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll", "round",
    "searchsorted", "sign", "signbit", "sin", "sinh", "sort", "sqrt", "square", "squeeze", "stack", "std", "subtract",
    "sum", "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "uint8", "uint16",
    "uint32", "uint64", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "variable",
    "vecdot", "where", "zeros", "zeros_like",
]
# fmt: on

globals().pop("array")  # the module, so that xp.array is an error with a hint
install(
    {name: x for name, x in globals().items() if name in __all__ and inspect.isfunction(x)},
    {name: getattr(linalg, name) for name in linalg.__all__},
)
