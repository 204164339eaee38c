"""One-hot columns of token ids (neonlite/backend/tensor.py)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from neonlite.backend.tensor import OneHot
from neonlite.data import Text, TextNMT

V, T, N = 67, 5, 2


def words(be: Any, seed: int = 0, nclass: int = V) -> Any:
    return be.array(np.random.default_rng(seed).integers(0, nclass, (1, T * N)), dtype="int32")


def dense(ids: Any, nclass: int = V) -> Any:
    return (np.arange(nclass)[:, None] == ids.get()).astype(float)


def test_ones_are_where_the_ids_say(be):
    ids = words(be)
    x = OneHot(V, ids, "x").update()
    np.testing.assert_array_equal(x.get(), dense(ids))
    ids[:] = be.array(np.full((1, T * N), 2), dtype="int32")
    np.testing.assert_array_equal(x.update().get(), dense(ids))


def test_a_column_without_a_token_is_zero(be):
    ids = words(be)
    ids[:, :1] = -1
    x = OneHot(V, ids, allow_empty=True).update()
    np.testing.assert_array_equal(x.get(), dense(ids))
    assert not x.get()[:, 0].any()


def test_only_update_writes_them(cpu):
    x = OneHot(V, words(cpu), "letters").update()
    with pytest.raises(ValueError, match=r"tensor letters .*: expected a writable tensor.* copy it with be.array"):
        x[:] = 0
    for write in (lambda: cpu.assign([x], [x * 2]), lambda: x[:3].fill(1), lambda: x.T.set(np.zeros((T * N, V)))):
        with pytest.raises(ValueError, match=r"read-only|expected a writable"):
            write()
    np.testing.assert_array_equal(x.get(), dense(x.ids))
    assert type(copy.deepcopy(x)) is not OneHot


@pytest.mark.parametrize("wrong", [-1, V])
def test_an_id_that_is_no_class_raises(be, wrong):
    ids = words(be)
    x = OneHot(V, ids, "letters", allow_empty=wrong == V).update()
    before = x.get()
    ids[:, 3:4] = wrong
    with pytest.raises(IndexError, match=rf"letters .*: expected ids from -?\d to {V - 1}, got"):
        x.update()
    np.testing.assert_array_equal(x.get(), before)


def test_pairs_of_sentences_have_gaps(cpu, tmp_path):
    cpu.bsz = 2
    letters = [chr(ord("0") + i) for i in range(V)]
    for language in ("a", "b"):
        (tmp_path / f"t.{language}").write_text(" ".join(letters) + "\n1 2 3\n", encoding="utf-8")
    x, _ = next(iter(TextNMT(V + 2, tmp_path, onehot_input=True, dataset="t", languages=("a", "b"))))
    x = x[0] if isinstance(x, list) else x
    assert (x.get().sum(axis=0) == 0).any()


def test_a_text_gives_columns_that_know_their_words(cpu):
    cpu.bsz = N
    alphabet = [chr(ord("0") + i) for i in range(V)]
    text = Text(T, text="".join(np.random.default_rng(0).choice(alphabet, 40)), vocab=alphabet, get_prev_target=True)
    (x, previous), t = next(iter(text))
    for tensor in (x, t, previous):
        ids = tensor.ids.get()[0]
        np.testing.assert_array_equal(tensor.get(), (ids == np.arange(V)[:, None]).astype(np.float32))
    assert (previous.ids.get()[0, :N] == -1).all()  # the first step has none before it


@pytest.mark.parametrize("rows", [1, 3, 3000])
@pytest.mark.parametrize(("n", "size"), [(0, 4), (1, 1), (7, 3), (700, 98), (50, 500)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_columns_are_added_at_their_indices(cpu, dtype, n, size, rows):
    rng = np.random.default_rng(0)
    x, at = rng.integers(-9, 9, (rows, n)), rng.integers(-size, size, (1, n))
    expected = np.zeros((size, rows))
    for column, place in zip(x.T, at[0], strict=True):
        expected[place] += column
    gapped = cpu.zeros((rows, 2 * n + 2), dtype=dtype)[:, 1 : 2 * n + 1 : 2]
    whole = cpu.array(x, dtype=dtype)
    gapped[:] = whole
    for t in (whole, gapped):
        out = cpu.ones((rows, size), dtype=dtype)
        out[:] = cpu.build("scatter_add", t, cpu.array(at, dtype="int64"), axis=1, size=size)
        np.testing.assert_array_equal(out.get(), expected.T)
