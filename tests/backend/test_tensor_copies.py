"""Copies of tensors, views and op-trees: what they share, and that backends are never copied."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES, back

from neonlite import Autodiff, Backend, Tensor
from neonlite.backend.measure import ThreadEnd
from neonlite.optree import OpTreeNode
from neonlite.typing import FLOAT_DTYPES


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# --- deep copies -----------------------------------------------------------------------------------------------------


def test_views_that_are_copied_together_stay_views_of_one_copy(be: Backend) -> None:
    flat = be.array(array(24, 1), name="flat")
    w, b = flat[:18].reshape(6, 3), flat[18:]
    w.name, b.name = "W", "b"
    odd_rows, part = w[1::2].T, flat.reshape(2, 3, 4)[:, 1, ::2]
    copies = copy.deepcopy([w, b, {"odd": odd_rows}, part, flat])
    for copied, x in zip([*copies[:2], copies[2]["odd"], *copies[3:]], [w, b, odd_rows, part, flat], strict=True):
        assert copied is not x
        assert (copied.name, copied.shape, copied.strides, copied.storage_offset) == (
            x.name,
            x.shape,
            x.strides,
            x.storage_offset,
        )
        assert (copied.backend, copied.root, copied.view_op) == (be, copies[-1], x.view_op)
        np.testing.assert_array_equal(copied.get(), x.get())
    before = [x.get() for x in (w, b, odd_rows, part)]
    copies[-1][:] = np.arange(24)
    np.testing.assert_array_equal(copies[0].get(), np.arange(18).reshape(6, 3))
    np.testing.assert_array_equal(copies[2]["odd"].get(), np.arange(18).reshape(6, 3)[1::2].T)
    np.testing.assert_array_equal(copies[3].get(), np.arange(24).reshape(2, 3, 4)[:, 1, ::2])
    for x, held in zip((w, b, odd_rows, part), before, strict=True):
        np.testing.assert_array_equal(x.get(), held)


@pytest.mark.parametrize(
    "view",
    [
        lambda be, t: t[:: back(be)],
        lambda be, t: t.permute((2, 0, 1)),
        lambda be, t: t[:, 1:2, :].permute((1, 2, 0))[:, ::2],
        lambda be, t: t[1, 2],
        lambda be, t: t[:, :, 1],
        lambda be, t: t[..., 3:4].T[:, :, 0],
        lambda be, t: t[0].reshape(-1, 2)[1:],
        lambda be, t: t[:0],
    ],
)
def test_a_copy_of_any_view_is_the_same_view(be: Backend, view: Any) -> None:
    x = view(be, be.array(array(2, 3, 4), name="x"))
    copied = copy.deepcopy(x)
    assert (copied.shape, copied.storage_offset, copied.span, copied.name) == (
        x.shape,
        x.storage_offset,
        x.span,
        x.name,
    )
    assert [s for n, s in zip(x.shape, copied.strides, strict=True) if n != 1] == [
        s for n, s in zip(x.shape, x.strides, strict=True) if n != 1
    ]
    assert copied.allocation is not x.allocation
    np.testing.assert_array_equal(copied.get(), x.get())


def test_copies_keep_bits_dtypes_and_marks(be: Backend) -> None:
    """But for the bits of NaN in 16 bits, of which a GPU writes one kind."""
    for dtype in be.runtime.dtypes:
        x = be.ones((2, 3), dtype=dtype, name=dtype, persist_values=False)
        x[0, 0] = np.nan if dtype in FLOAT_DTYPES else 7
        copied = copy.deepcopy(x)
        assert (copied.dtype, copied.name, copied.persist_values) == (x.dtype, dtype, False)
        assert copied[0, 1:].get().tobytes() == copied[1, 1:].get().tobytes() == x[0, 1:].get().tobytes()
        np.testing.assert_array_equal(copied.get().astype(float), x.get().astype(float))


def test_a_copy_of_a_tree_is_the_same_tree_over_copies(be: Backend) -> None:
    x, y = be.array(array(3, 3), name="x"), be.array(array(3, 3) + 2, name="y")
    shared = be.exp(x[1:])
    tree = be.where(x > 0, be.concat([shared, y[:1]]), 2 * be.sum(shared, axis=0)) @ y + 1.5
    copied, again, (z,) = copy.deepcopy((tree, [tree], [x]))
    assert copied is again[0]
    assert str(copied) == str(tree)
    assert copied.info is tree.info
    leaves = [t for t in copied.traverse() if isinstance(t, Tensor)]
    assert {t.name for t in leaves} == {"x", "y"}
    assert not {id(t.allocation) for t in leaves} & {id(x.allocation), id(y.allocation)}
    assert z in {t.root: 1 for t in leaves}
    before = tree.asnumpyarray()
    np.testing.assert_array_equal(copied.asnumpyarray(), before)
    x[:] = 0
    np.testing.assert_array_equal(copied.asnumpyarray(), before)
    np.testing.assert_allclose(Autodiff(be.sum(copied), be).get_grad_asnumpyarray(z).shape, (3, 3))


def test_a_copy_of_a_deep_tree_needs_no_recursion(be: Backend) -> None:
    x = tree = be.array([[1.0]])
    for _ in range(3000):
        tree = tree + x
    assert copy.deepcopy(tree).asnumpyarray().item() == 3001


def test_draws_of_a_copied_tree_are_separate_and_shared_within_it(be: Backend) -> None:
    u = be.rand(4, 4)
    again = OpTreeNode.from_postfix(u.traverse())  # another node of the same draw
    for same in copy.deepcopy([u - u, u - again]):
        assert not same.asnumpyarray().any()
    other = copy.deepcopy(u - be.rand(4, 4))
    assert other.asnumpyarray().any()
    r = copy.deepcopy(u, {id(be): (to := be.dry_run())})
    assert r.backend is to
    r.astensor()
    assert to.rng_get_state() != be.rng_get_state()


def test_a_backend_is_never_copied(be: Backend) -> None:
    layer = be.conv_layer("float32", 1, 1, 1, W=2)
    x = be.ones((2, 2))
    for thing in (be, be.runtime, x.info, (x + 1).info):
        assert copy.deepcopy(thing) is thing
    assert copy.deepcopy(layer).backend is be
    assert copy.deepcopy({"be": be, "x": x})["x"].backend is be


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_memo_copies_to_another_backend(be: Backend, name: str) -> None:
    other = Backend(name)
    flat = be.array(array(4, 3), name="flat")
    layer = be.conv_layer("float32", 1, 1, 1, W=2)
    copied, tree, moved, held = copy.deepcopy([flat[1:], be.exp(flat) + 2, layer, be], {id(be): other})
    assert copied.backend is tree.backend is moved.backend is held is other
    assert copied.base.name == "flat"
    assert tree.operands[0].operands[0] is copied.base
    np.testing.assert_allclose(tree.asnumpyarray(), np.exp(flat.get()) + 2, rtol=1e-6)
    np.testing.assert_array_equal(copied.get(), flat.get()[1:])


def test_a_token_of_a_thread_that_an_interrupt_kept_from_being_initialized_is_deleted_in_silence():
    ThreadEnd.__new__(ThreadEnd).__del__()
