"""Operands of op-trees: index containers, and einsum against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.composite_functions import arrays, two
from helpers.parametrize import each
from helpers.reference import gradient_of_operand, off

from neonlite import Autodiff, Backend
from neonlite.optree import postorder

# --- what is not a function of floats alone -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "indices", [[2, 0], (2, 0), np.array([2, 0]), np.array([[2], [-3]]), np.array([2, 0], np.uint8)], ids=repr
)
def test_take_accepts_any_container_of_integers(be: Backend, indices: Any) -> None:
    x = np.arange(12.0).reshape(3, 4)
    for chosen in (indices, be.array(indices, dtype="int32")):
        np.testing.assert_array_equal(be.take(be.array(x), chosen, 0).asnumpyarray(), x[[2, 0]])
        np.testing.assert_array_equal(be.array(x).take(chosen, 1).get(), x[:, np.ravel(indices)])


def test_shift_takes_numbers_alone(be: Backend) -> None:
    assert be.shift(8, 3).asnumpyarray() == 8 * 4
    assert be.shift(8, -3, value=True).asnumpyarray() == -32
    assert be.shift(8, 3, value=False).asnumpyarray() == 64
    assert be.shift(8.0, 0.4).shape == (1, 1)


# --- einsum ---------------------------------------------------------------------------------------------------------


EINSUMS = """
    ij,jk->ik 2x3 3x4 | ij,jk 2x3 3x4 | ij,kj->ki 2x3 4x3 | ji,jk->ik 3x2 3x4 | aB,Bc 2x3 3x4 | ij,jk->ik 1x1 1x3
    ji 2x3 | ij->ji 2x3 | kji->jki 2x3x4 | ij->ij 2x3 | ij-> 2x3 | ij->i 2x3 | ij->j 2x3 | ijk->ki 2x3x4
    ii 3x3 | ii-> 3x3 | ii->i 3x3 | iij->j 3x3x2 | iij->ij 3x3x2 | iji->j 3x2x3 | iji->ji 3x2x3 | iii->i 3x3x3
    iijj-> 2x2x3x3 | iijj->ji 2x2x3x3 | iiii 2x2x2x2 | ijij->ij 2x3x2x3 | ii,ii-> 3x3 3x3 | ii,ij->j 3x3 3x2
    ij,ij->ij 2x3 2x3 | ij,ij-> 2x3 2x3 | ij,ij->i 2x3 2x3 | ij,ji->j 2x3 3x2
    ij,kl->ijkl 2x3 1x2 | ij,kl->ljki 2x3 4x2
    bij,bjk->bik 2x3x4 2x4x2 | bij,bjk->ik 2x3x4 2x4x2 | bij,jk->bki 2x3x4 4x2 | ijkl,kl->ij 2x3x4x2 4x2
    abc,cbd->da 2x3x4 4x3x2 | ab,cd,ef-> 2x3 3x1 2x2 | ij,jk,kl->il 2x3 3x4 4x2 | ij,jk,kl,lm->mi 2x3 3x4 4x2 2x5
    ij,kj,lj->ikl 2x3 4x3 2x3 | ij,ij,ij->j 2x3 2x3 2x3 | ij,ji,ik 2x3 3x2 2x2 | ia,ib,ic->abc 2x2 2x3 2x1
    bqd,bkd,bkv->bqv 2x3x4 2x5x4 2x5x2 | hqd,hkd->hqk 2x3x4 2x5x4 | ij,jk->ik 2x0 0x3 | ij->j 0x3 | ij,kl->ik 0x2 3x2
    ...ij->...ji 2x3x4 | ...ij,...jk->...ik 2x2x3 2x3x4 | ...ij,...jk->...ik 2x3 3x4 | ...ij,...jk->...ik 5x2x3 3x4
    ...ij,jk 5x2x3 3x4 | i...,i...->... 3x2 3x2 | b...,b...->b... 2x3x4 2x3x4 | ...->... 2x3 | ...i->... 2x3x4
"""
einsums = each("case", [" ".join(case.split()) for case in EINSUMS.replace("\n    ", "|").split("|")[1:]])


def parsed(case: str) -> tuple[str, list[Any]]:
    """Return the subscripts and an array for each shape."""
    subscripts, *shapes = case.split()
    return subscripts, arrays([tuple(map(int, shape.split("x"))) for shape in shapes])


@einsums
def test_einsum_is_that_of_numpy(be: Backend, case: str) -> None:
    subscripts, xs = parsed(case)
    expected = two(np.einsum(subscripts, *xs))
    tree = be.einsum(subscripts, *map(be.array, xs))
    assert (tree.shape, tree.dtype) == (expected.shape, "float32")
    np.testing.assert_allclose(be.array(tree).get(), expected, 1e-5, 1e-5)
    out = be.empty(expected.shape)
    assert be.einsum(subscripts, *map(be.array, xs), out=out) is out
    np.testing.assert_allclose(out.get(), expected, 1e-5, 1e-5)


@einsums
def test_the_gradient_of_einsum_is_that_of_finite_differences_of_numpy(be64: Backend, case: str) -> None:
    subscripts, xs = parsed(case)
    tensors = list(map(be64.array, xs))
    tree = 1 * be64.einsum(subscripts, *tensors)
    dz = np.random.default_rng(2).uniform(-2, 2, tree.shape)
    for k, dx in enumerate(Autodiff(tree, be64, be64.array(dz)).get_grad_asnumpyarray(tensors)):
        assert off(dx, gradient_of_operand(lambda *xs: two(np.einsum(subscripts, *xs)), xs, k, dz)) <= 1e-6


def test_einsum_takes_trees_views_arrays_and_one_tensor_twice(be64: Backend) -> None:
    array = np.arange(9.0).reshape(3, 3)
    x = be64.array(array)
    for tree, expected in [
        (be64.einsum("ij,ij->", x, x), (array**2).sum()),
        (be64.einsum(" i j , jk -> ik ", x, x), array @ array),
        (be64.einsum("ij,jk->ik", x + 1, x.T), (array + 1) @ array.T),
        (be64.einsum("ij,jk->ik", x[::2, 1:], array[1:]), array[::2, 1:] @ array[1:]),
    ]:
        np.testing.assert_array_equal(tree.asnumpyarray(), two(expected))
    twice = Autodiff(be64.einsum("ij,ij->", x, x), be64).get_grad_asnumpyarray(x)
    np.testing.assert_array_equal(twice, 2 * array)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_einsum_of_one_tensor_unchanged_is_an_op_tree_too(be: Backend, dtype: str) -> None:
    tree = be.einsum("ij->ij", be.array([[1, 2]], dtype=dtype))
    assert tree.op == "mul"
    assert tree.dtype == dtype
    np.testing.assert_array_equal(tree.get(), [[1, 2]])


def test_einsum_of_ints_is_exact(be: Backend) -> None:
    x = be.array(np.arange(6).reshape(2, 3), dtype="int32")
    tree = be.einsum("ij,kj->ik", x, x)
    assert tree.dtype == "int32"
    np.testing.assert_array_equal(tree.asnumpyarray(), [[5, 14], [14, 50]])


@pytest.mark.parametrize(
    ("sizes", "intermediate"), [((4, 90, 3, 90), 4 * 3), ((90, 3, 90, 4), 3 * 4), ((90, 3, 90, 2), 3 * 2)], ids=str
)
def test_a_chain_is_contracted_along_the_cheapest_path(be: Backend, sizes: Any, intermediate: int) -> None:
    i, j, k, m = sizes
    tree = be.einsum("ij,jk,km->im", be.ones((i, j)), be.ones((j, k)), be.ones((k, m)))
    products = [math.prod(node.shape) for node in postorder(tree) if node.op in ("dot", "matmul")]
    assert products == [intermediate, i * m]
    plan = be.plan(tree)
    assert [stage.kind for stage in plan.stages].count("call") == 2
    assert (tree.asnumpyarray() == j * k).all()


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)], "one size for the label 'j', got 3 and 4"),
        ("ij,jk", [(2, 3)], r"be.einsum\('ij,jk', a tensor \(2, 3\)\).*2.*1"),
        ("i->i", [(3, 1)], "needs two letters"),
        ("ij->iz", [(2, 3)], "'z'"),
        ("ij->ijj", [(2, 3)], "ij->ijj"),
        ("i1->i", [(2, 3)], "expected letters"),
        ("ii", [(2, 3)], "one size for the label 'i', got 2 and 3"),
    ],
)
def test_letters_that_do_not_fit_are_named(be: Backend, subscripts: str, shapes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        be.einsum(subscripts, *map(be.ones, shapes))
