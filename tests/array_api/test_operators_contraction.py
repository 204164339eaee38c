"""einsum, tensordot and transpose of tensors, op-trees and arrays, which opt_einsum calls."""

from __future__ import annotations

import numpy as np
import opt_einsum

import neonlite as nl
from neonlite.array_api import Array
from neonlite.backend import Backend

RNG = np.random.default_rng(0)


def test_opt_einsum_contracts_tensors_op_trees_and_arrays(be: Backend) -> None:
    x, y, q = RNG.normal(size=(2, 3)), RNG.normal(size=(4, 3)), RNG.normal(size=(3, 3))
    call = "ij,kj,jl->ikl"
    expected = np.einsum(call, x, y, q)
    for make in (be.array, lambda a: be.array(a) * 1, be.array_api.asarray):
        operands = [make(a) for a in (x, y, q)]
        result = opt_einsum.contract(call, *operands)
        assert isinstance(result, Array if isinstance(operands[0], Array) else nl.OpTreeNode)
        np.testing.assert_allclose(np.array(result), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.array(nl.einsum("ij->j", operands[0])).ravel(), x.sum(0), rtol=1e-4)
    t = be.array(x, name="t")
    loss = be.sum(opt_einsum.contract("ij,kj->ik", t, be.array(y)))
    gradient = nl.Autodiff(loss, be).get_grad_asnumpyarray(t)
    np.testing.assert_allclose(gradient, np.tile(y.sum(0), (2, 1)), rtol=1e-4, atol=1e-5)


def test_tensordot_sums_over_the_last_axes_of_the_first_operand_and_the_first_of_the_second(be: Backend) -> None:
    x, y = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(3, 4, 5))
    for axes in (2, ([1, 2], [0, 1]), ([2, 1], [1, 0])):
        result = nl.tensordot(be.array(x), be.array(y), axes)
        np.testing.assert_allclose(np.array(result), np.tensordot(x, y, axes), rtol=1e-4, atol=1e-5)
    result = nl.tensordot(be.array(x), be.array(y.transpose(1, 0, 2)), 1)
    np.testing.assert_allclose(np.array(result), np.tensordot(x, y.transpose(1, 0, 2), 1), rtol=1e-4, atol=1e-5)
