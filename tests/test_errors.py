"""Tests of error messages: what was expected, what was passed, the tensors, and how to fix it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

import neonlite as nl
from neonlite import Autodiff, Backend, NervanaObject
from neonlite.ops import OPS


@pytest.fixture
def stage(be: Backend) -> Iterator[SimpleNamespace]:
    """Return the objects that the mistakes use: tensors, a second backend, and one that was cleaned up."""

    def half(**rules: Any) -> Any:  # a user-defined op
        return be.define_op("halve", lambda xp, x, y: 0.5 * x * y, arity=2, **rules)(be, s.x, s.x2)

    ops = set(OPS)
    s = SimpleNamespace(be=be, other=Backend(be.name), dead=Backend(be.name), half=half)
    s.x, s.x2 = be.array([[1, 2, 3], [4, 5, 6]], name="x"), be.array([[2, 2, 2], [3, 3, 3]], name="x2")
    s.y, s.w, s.c = be.ones((4, 5), name="y"), be.ones((3, 4), name="w"), be.ones((2, 3, 4), name="c")
    s.out, s.square, s.none = be.array(s.x, name="out"), be.ones((3, 3), name="square"), be.ones((0, 3), name="none")
    s.labels = be.array([[0, 1, 5]], dtype="int32", name="labels")
    s.foreign, s.gone = s.other.ones((2, 3), name="foreign"), s.dead.ones((2, 3), name="gone")
    s.old = s.gone + 1
    s.dead.cleanup_backend()
    yield s
    for name in set(OPS) - ops:
        del OPS[name]
        delattr(Backend, name)


DEAD = "closed by cleanup_backend() at | test_errors.py: | .get() | gen_backend() | be.array(t)"
OPERANDS = "tensors, op-trees, scalars or arrays"
TRUTH = "truth value | out[:] = tree"
MASK = "x (2, 3) | mask"
UNFIT = "assignment to x (2, 3) | a value that broadcasts to (2, 3)"

# The code of the user, and the texts that the message must contain.
# fmt: off
REFUSED: list[tuple[type[Exception], str, str]] = [
    # --- backends ---
    (ValueError, "nl.gen_backend('cpuu')", "one of ('cpu' | 'cpuu' | Did you mean 'cpu'"),
    (TypeError, "nl.gen_backend(3)", "expected a name or an instance of Runtime, got 3 | such as 'cpu'"),
    (ValueError, "Backend.allocate_backend('stric')", "'stric' | Did you mean 'strict'"),
    (TypeError, "Backend('cpu', colour=1)", "Backend: expected the options runtime | default_dtype | got colour"),
    (TypeError, "nl.gen_backend('cpu', default_dtype='f16')", "gen_backend: | options backend | datatype | default_"),
    (TypeError, "be.bsz = 2.5", "be.bsz | expected an integer >= 0 | batch size | got 2.5"),
    (TypeError, "be.bsz = np.array([3])", "be.bsz | expected an integer >= 0 | batch size | [3]"),
    (TypeError, "be.batch_size(2.5).__enter__()", "be.bsz | expected an integer >= 0 | batch size | got 2.5"),
    (ValueError, "Backend('cpu', compat_mode='torch')", "compat_mode | 'caffe' | 'torch'"),
    (ValueError, "x + foreign", "be.add | x (2, 3) | foreign | one backend | be.array"),
    (ValueError, "be.dot(foreign, w)", "be.dot | foreign | w (3, 4) | be.array"),
    (ValueError, "x[:] = foreign", "foreign | x (2, 3) | be.array"),
    (ValueError, "be.exp(x, out=foreign)", "exp | foreign | be.array"),
    (ValueError, "Autodiff(x * x, be, foreign)", "foreign | be.array"),
    (RuntimeError, "gone[:] = old", DEAD),
    (RuntimeError, "gone[:] = 1", DEAD),
    (RuntimeError, "old.asnumpyarray()", DEAD),
    (RuntimeError, "dead.zeros((2, 2))", DEAD),
    (RuntimeError, "dead.array(1)", DEAD),
    (RuntimeError, "dead.make_binary_mask(gone)", DEAD),
    (RuntimeError, "Autodiff(old, dead)", DEAD),
    (ValueError, "be.bsz = -3", "be.bsz | expected an integer >= 0 | batch size | got -3"),
    (ValueError, "be.iobuf(5)", "batch size | gen_backend(batch_size=N) | be.bsz = N"),
    (TypeError, "be.zeros((2, 2), dtype='float31')", "'float31' | float32, float64 | int32"),
    (TypeError, "be.array([1], dtype='complex64')", "'complex64' | float32, float64"),
    (TypeError, "be.zeros((2, 2), dtype=bool)", "'bool' | uint8"),
    (ValueError, "Backend(be.name, default_dtype='int32')", "int32 | float32"),
    (TypeError, "be.zeros((2, 2), nmae='x')", "zeros | nmae"),
    (TypeError, "be.zeros(2, 3)", "dtypes | got '3' | shape as one tuple: be.zeros((2, 3))"),
    (TypeError, "be.iobuf('5')", "expected integers as sizes, got '5'"),
    (ValueError, "nl.gen_backend(be.name, device_id=3)", "expected 0 for device_id | got 3"),
    # --- shapes ---
    (ValueError, "x + y", "be.add | x (2, 3) | y (4, 5) | 2 and 4 | axis 0 | broadcast"),
    (ValueError, "be.exp(x) * y", "be.multiply | exp-tree (2, 3) | y (4, 5) | broadcast"),
    (ValueError, "x - np.ones((4, 5))", "be.subtract | x (2, 3) | (4, 5) | broadcast"),
    (ValueError, "np.ones((4, 5)) / x", "be.divide | x (2, 3) | (4, 5) | broadcast"),
    (ValueError, "c + y", "be.add | c (2, 3, 4) | y (4, 5) | broadcast"),
    (ValueError, "be.where(x, y, 0)", "be.where | x (2, 3) | y (4, 5) | broadcast"),
    (ValueError, "be.dot(x, y)", "be.dot | x (2, 3) | y (4, 5) | 3 columns | 4 rows | .T"),
    (ValueError, "x @ y", "be.dot | x (2, 3) | y (4, 5) | inner | .T"),
    (ValueError, "c @ w", "be.matmul | c (2, 3, 4) | w (3, 4) | inner | .T"),
    (ValueError, "be.dot(c, x)", "be.dot | c (2, 3, 4) | x (2, 3) | two matrices | x @ y"),
    (ValueError, "be.dot(x, 2)", "be.dot | x (2, 3) | 2 | inner"),
    (ValueError, "x.reshape(4, 2)", "x (2, 3) | reshape | 6 elements | (4, 2) with 8"),
    (ValueError, "be.reshape(x + 1, (4, 2))", "be.reshape | add-tree (2, 3) | 6 elements | 8"),
    (ValueError, "x.reshape(4, -1)", "x (2, 3) | 6 | (4, -1) | multiple of 4"),
    (ValueError, "x.T.reshape(6, 1)", "x | (3, 2) | contiguous | Copy it | be.array"),
    (TypeError, "x.reshape(1.5, 4)", "x (2, 3) | expected integers as sizes | (1.5, 4)"),
    (ValueError, "x.share((4, 2))", "x (2, 3) | (4, 2) | 8 | 6"),
    (ValueError, "x.reshape(-1, -1)", "x (2, 3) | one size | (-1, -1)"),
    (ValueError, "be.reshape(x + 1, -1, -1)", "be.reshape | add-tree | one size"),
    (ValueError, "x.reshape(-2, -3)", "x (2, 3) | (-2, -3) | negative"),
    (ValueError, "be.transpose(x, (0, 2))", "be.transpose | x (2, 3) | (0, 2) | 0 to 1"),
    (ValueError, "be.transpose(x + 1, (0, 0))", "be.transpose | add-tree | (0, 0) | permutation"),
    (ValueError, "be.transpose(c, (0, 1))", "be.transpose | c (2, 3, 4) | 0 to 2"),
    (TypeError, "be.transpose(x, 1)", "be.transpose | x (2, 3) | axes | 1"),
    (ValueError, "x.permute((0, 0))", "x (2, 3) | (0, 0) | permutation"),
    (IndexError, "be.sum(x, axis=2)", "be.sum | x (2, 3) | axis 2 | -2 to 1"),
    (IndexError, "be.mean(x + 1, axis=-3)", "be.mean | add-tree (2, 3) | axis -3 | -2 to 1"),
    (IndexError, "be.argmax(x, axis=5)", "be.argmax | x (2, 3) | axis 5 | -2 to 1"),
    (ValueError, "be.sum(x, axis=(0, -2))", "be.sum | x (2, 3) | (0, -2) | distinct"),
    (IndexError, "be.var(x, axis=4)", "be.var | x (2, 3) | axis 4 | -2 to 1"),
    (IndexError, "be.std(x, axis=4)", "be.std | x (2, 3) | axis 4 | -2 to 1"),
    (IndexError, "be.softmax(x, axis=7)", "be.softmax | x (2, 3) | axis 7 | -2 to 1"),
    (IndexError, "be.take(x, [0], axis=3)", "be.take | x (2, 3) | axis 3 | -2 to 1"),
    (IndexError, "be.concat([x, x], axis=2)", "be.concat | x (2, 3) | axis 2 | -2 to 1"),
    (IndexError, "be.stack([x, x], axis=4)", "be.stack | x (2, 3) | axis 4 | -3 to 2"),
    (TypeError, "be.sum(x, axis=1.0)", "be.sum | x (2, 3) | integer | 1.0"),
    (TypeError, "be.max(x, axis='rows')", "be.max | x (2, 3) | integer | 'rows'"),
    (TypeError, "be.min(x, axis=True)", "be.min | x (2, 3) | integer | True"),
    (TypeError, "be.take(x, [0], axis=1.5)", "be.take | x (2, 3) | integer | 1.5"),
    (TypeError, "be.concat([x, x], axis='a')", "be.concat | x (2, 3) | integer | 'a'"),
    # --- indices ---
    (IndexError, "x[5]", "x (2, 3) | index from -2 to 1 | axis 0 | got 5"),
    (IndexError, "x[0, -4]", "x (2, 3) | index from -3 to 2 | axis 1 | got -4"),
    (IndexError, "x[7] = 1", "x (2, 3) | index from -2 to 1 | axis 0 | got 7"),
    (IndexError, "x[0, 0, 0]", "x (2, 3) | at most 2 indices | got 3"),
    (IndexError, "x[..., 0, ...]", "x (2, 3)"),
    (IndexError, "x[np.array([True] * 3)]", f"{MASK} | mask of 2 elements for axis 0 | (3,)"),
    (IndexError, "x[np.ones(7, dtype=bool)]", f"{MASK} | mask of 2 elements for axis 0 | (7,)"),
    (IndexError, "x[:, [True, False]]", f"{MASK} | mask of 3 elements for axis 1 | (2,)"),
    (IndexError, "x[True]", f"{MASK} | True"),
    (IndexError, "x[y > 2]", f"{MASK} | a vector | (4, 5)"),
    (IndexError, "x[x]", f"{MASK} | 0 and 1 | float32 | x > 0 | astype('int32')"),
    (IndexError, "x[[0, 2]]", "x (2, 3) | index from -2 to 1 | axis 0 | got 2"),
    (IndexError, "x[[0, 1], [0, 1, 2]]", "x (2, 3) | index arrays of one length"),
    (TypeError, "x[[0.5]]", "x (2, 3) | integers or booleans | [0.5]"),
    (ValueError, "x[[0, 1]] = np.ones((3, 3))", "(2, 3) | (3, 3)"),
    (TypeError, "x['a']", "x (2, 3) | 'a' | integers, slices"),
    (TypeError, "x[1.0]", "x (2, 3) | 1.0 | integers, slices"),
    (TypeError, "x[None]", "x (2, 3) | None | integers, slices | t.reshape to add an axis"),
    # --- assignment ---
    (ValueError, "x[:] = np.ones((3, 2))", f"{UNFIT} | array (3, 2)"),
    (ValueError, "x[:] = y", f"{UNFIT} | y (4, 5)"),
    (ValueError, "x.copy(y)", f"{UNFIT} | y (4, 5)"),
    (ValueError, "x[:] = y + 1", f"{UNFIT} | add-tree (4, 5)"),
    (ValueError, "be.exp(y, out=x)", f"{UNFIT} | exp-tree (4, 5)"),
    (ValueError, "x.set(np.ones((4, 4)))", f"{UNFIT} | (4, 4)"),
    (ValueError, "x[0:1] = y", "y | (4, 5) | x | (1, 3)"),
    (TypeError, "x[:] = 'hello'", "numbers | hello"),
    (TypeError, "x[:] = None", "numbers | None"),
    (TypeError, "be.exp(x, out=np.ones((2, 3)))", "expected tensors as targets | array"),
    (ValueError, "be.assign([x], [1, 2])", "2 values | 1 tensor"),
    (ValueError, "be.compile([x], [1, 2])", "be.compile | 2 values | 1 tensor"),
    (TypeError, "be.assign(x, [x, x])", "be.assign | a list of tensors | x (2, 3) | out[:] = tree"),
    (TypeError, "be.assign([x, x2, out], x + 1)", "be.assign | a list of values | add-tree (2, 3) | out[:] = tree"),
    (TypeError, "be.compile(x, x + 1)", "be.compile | a list of tensors | x (2, 3) | out[:] = tree"),
    (TypeError, "be.compile([3], [x])", "be.compile | tensors as targets | 3"),
    (TypeError, "be.evaluate(x + 1)", "be.evaluate | a list of op-trees | add-tree (2, 3)"),
    (TypeError, "be.evaluate([3])", "be.evaluate | a list of op-trees | 3"),
    (TypeError, "be.evaluate(3)", "be.evaluate | a list of op-trees | 3"),
    (TypeError, "be.plan(x + 1, out=x.get())", "be.plan | a list of tensors | array"),
    (ValueError, "be.plan(x + 1, out=[x, x2])", "be.plan | 1 values | 2 tensors"),
    (TypeError, "be.compound_dot(x.get(), w, out)", "be.compound_dot | a tensor for A | array | be.array(x)"),
    (TypeError, "be.compound_dot(x + 1, w, out)", "be.compound_dot | a tensor for A | add-tree | tree.astensor()"),
    (OverflowError, "labels[:] = 2**31", "labels (1, 3) | -2147483648 to 2147483647 for int32 | got 2147483648"),
    (OverflowError, "labels.fill(float('inf'))", "labels (1, 3) | for int32 | got inf"),
    (ValueError, "labels[:] = float('nan')", "labels (1, 3) | for int32 | got nan"),
    (OverflowError, "labels.set([[0, 1, -1e10]])", "labels (1, 3) | for int32 | got -10000000000.0"),
    (OverflowError, "be.assign([x, labels], [1, 2**31])", "labels (1, 3) | for int32 | got 2147483648"),
    (OverflowError, "be.array([[1, 256]], dtype='uint8')", "be.array | 0 to 255 for uint8 | got 256 | another dtype"),
    (TypeError, "(x + 1)[:] = 1", "op-tree | out[:] = tree"),
    (TypeError, "(x + 1)[0]['op'] = 'sub'", "immutable | replace"),
    (AttributeError, "setattr(x, 'shape', (3, 2))", "shape"),
    # --- joining, labels, indices in tensors ---
    (ValueError, "be.concat([x, y])", "be.concat | x (2, 3) | y (4, 5) | axis 0"),
    (ValueError, "be.concat([x, c])", "be.concat | x (2, 3) | c (2, 3, 4) | axis 0"),
    (ValueError, "be.concat([x, x2, y])", "be.concat | x (2, 3) | x2 (2, 3) | y (4, 5)"),
    (TypeError, "be.concat([])", "be.concat | one or more operands | []"),
    (ValueError, "be.stack([x, y])", "be.stack | x (2, 3) | y (4, 5)"),
    (TypeError, "be.concat(5)", "be.concat | 5"),
    (IndexError, "square[:] = be.onehot(labels, axis=0)", "onehot | labels | label 5 | 0 to 2"),
    (IndexError, "be.onehot(labels, axis=0, out=square)", "onehot | labels | label 5 | 0 to 2"),
    (IndexError, "be.onehot([0, -1], 0, nclass=3).asnumpyarray()", "onehot | label -1 | 0 to 2"),
    (ValueError, "be.onehot(labels, 2)", "be.onehot | 0 (a row per class) or 1 | got 2"),
    (ValueError, "be.onehot(labels, 0).asnumpyarray()", "onehot | labels | classes | nclass"),
    (ValueError, "square[:] = be.onehot(labels, 0) * 2", "onehot | classes | nclass="),
    (ValueError, "be.onehot(labels, 0, nclass=-1)", "be.onehot | nclass | -1"),
    (ValueError, "w[:] = be.onehot(labels, 0)", "onehot-tree | (3, 3) | w (3, 4)"),
    (TypeError, "be.onehot(x, 0)", "be.onehot | x (2, 3) | float32 | integers | dtype='int32'"),
    (TypeError, "be.onehot([0.5, 1], 0)", "be.onehot | float64 | 0.5"),
    (IndexError, "out[:] = be.take(x, [0, 1, 3], 1)", "take | x (2, 3) | index 3 | axis=1 | -3 to 2"),
    (IndexError, "out[:] = be.take(x, [0, 1, -4], 1)", "take | x (2, 3) | index -4 | -3 to 2"),
    (IndexError, "out[:] = be.take(x, [9] * 3, 1) + 1", "take | x (2, 3) | index 9 | out (2, 3)"),
    (IndexError, "x.take([7], axis=0)", "take | x (2, 3) | index 7 | axis=0 | -2 to 1"),
    (TypeError, "be.take(x, [0.5], axis=0)", "be.take | integers | 0.5"),
    (TypeError, "be.take(x, [True, False], axis=0)", "be.take | integers | bool"),
    (TypeError, "be.take(x, None, axis=0)", "be.take | integers | None"),
    # --- einsum ---
    (ValueError, "be.einsum('ij,jk->il', x, w)", "be.einsum('ij,jk->il' | x (2, 3) | w | 'l'"),
    (ValueError, "be.einsum('ij,jk->ik', x)", "be.einsum | x (2, 3) | 2 | 1"),
    (ValueError, "be.einsum('ijk,kl', x, w)", "be.einsum | 'ijk' | 3 letters | shape (2, 3)"),
    (ValueError, "be.einsum('i->i', x)", "be.einsum | x (2, 3) | 1 letters | column | two letters"),
    (ValueError, "be.einsum('ij->->ij', x)", "be.einsum | x (2, 3) | ->"),
    (ValueError, "be.einsum('i!,jk', x, w)", "be.einsum | 'i!,jk' | '!'"),
    (TypeError, "be.einsum(x, w)", "be.einsum | subscripts | 'ij,jk->ik' | x | (2, 3)"),
    (ValueError, "be.einsum('ij,jk->ik', x, y)", "be.einsum | x (2, 3) | y (4, 5) | 'j' | 3 and 4"),
    (ValueError, "be.einsum('ii->i', x)", "be.einsum | x (2, 3) | 'i' | 2 and 3"),
    # --- None, booleans and scalars ---
    (ValueError, "be.max(none, axis=0)", "be.max | none (0, 3) | non-empty | axis"),
    (ValueError, "be.argmin(none, axis=0)", "be.argmin | none (0, 3) | non-empty"),
    (ValueError, "be.mean(none)", "be.mean | none (0, 3) | at least one element"),
    (ValueError, "be.var(none)", "be.var | none (0, 3) | at least one element"),
    (TypeError, "bool(x + 1)", TRUTH),
    (TypeError, "1 if x == x else 0", TRUTH),
    (TypeError, "0 < x < 2", TRUTH),
    (TypeError, "not x > 0", TRUTH),
    (ValueError, "be.array([[1, 2], [3]])", "be.array | equal lengths | (2,)"),
    (ValueError, "x[:] = [[1, 2], [3]]", "equal lengths | x (2, 3)"),
    (TypeError, "be.add(x, [[1, 2], [3]])", f"be.add | {OPERANDS} | [[1, 2], [3]]"),
    (TypeError, "be.array(np.array([object()]))", "numbers | object"),
    (TypeError, "be.array(['a'])", "numbers | <U1 | a"),
    (TypeError, "be.array(1j)", "numbers | complex128 | NumPy's array"),
    (TypeError, "be.array(None)", "numbers | None"),
    (TypeError, "x + np.full((2, 3), None)", "numbers | object"),
    (TypeError, "x + 'a'", "Tensor | str"),
    (TypeError, "x + None", "None"),
    (TypeError, "be.add(x, None)", f"be.add | {OPERANDS} | got None"),
    (TypeError, "be.exp(None)", f"be.exp | {OPERANDS} | got None"),
    (TypeError, "be.sum('a')", f"be.sum | {OPERANDS} | got 'a'"),
    (TypeError, "be.where(x, 'a', 1)", f"be.where | {OPERANDS} | got 'a'"),
    (TypeError, "be.clip(x, 'a', 1)", f"be.clip | {OPERANDS} | got 'a'"),
    (TypeError, "be.zeros((1.5, 2))", "expected integers as sizes | (1.5, 2)"),
    (ValueError, "be.zeros((-1, 2))", "negative | (-1, 2)"),
    (ValueError, "be.gen_rng(-1)", "rng_seed | from 0 | -1"),
    (ValueError, "be.rng_set_state('x')", "state | tuple | 'x'"),
    # --- autodiff ---
    (TypeError, "Autodiff(labels * 2.0, be).get_grad_op_tree(labels)", "labels | int32 | float tensor | 'float32'"),
    (ValueError, "Autodiff(x * x2, be).get_grad_op_tree(y)", "y (4, 5) | of the tree, x, x2 | allow_unused=True"),
    (ValueError, "Autodiff(x * x2, be).back_prop_grad([x, y], [out, y])", "y (4, 5) | x, x2"),
    (ValueError, "Autodiff(x * x, be, next_error=y)", "next_error | (2, 3) | y (4, 5)"),
    (ValueError, "Autodiff(x * x, be, next_error=x[:, 0])", "next_error | (2, 3) | (2, 1)"),
    (TypeError, "Autodiff(x * x, be, np.ones((2, 3)))", "next_error | tensor | be.array"),
    (TypeError, "Autodiff(x * x, be, 3)", "next_error | tensor | 3"),
    (NotImplementedError, "Autodiff(be.exp(half()), be).get_grad_op_tree(x)", "'halve' | without a derivative | grad="),
    (ValueError, "Autodiff(half(grad=lambda be, dz, z, x, y: (dz,)), be).get_grad_op_tree(x)", "'halve' | 1 | 2"),
    (ValueError, "Autodiff(half(grad=lambda be, dz, z, x, y: dz * y), be).get_grad_op_tree(x)", "'halve' | tuple"),
    (ValueError, "be.define_op('tanh', lambda xp, x: x)", "be.define_op | 'tanh' | taken"),
    (ValueError, "be.define_op('a b', lambda xp, x: x)", "be.define_op | 'a b'"),
    (ValueError, "be.define_op('half', abs, kind='odd')", "be.define_op | 'elementwise' | 'odd'"),
    (ValueError, "be.define_op('half', abs, kind='library')", "be.define_op | shape"),
    (ValueError, "be.define_op('half', abs, arity=3)", "be.define_op | 3"),
    (ValueError, "be.define_op('class', abs)", "be.define_op | identifier | 'class'"),
    (TypeError, "be.define_op('half', 3)", "be.define_op | run | 3"),
    (ValueError, "Autodiff(x * x, be).back_prop_grad([x], [])", "1 gradients | got 0"),
    (ValueError, "Autodiff(x * x, be).back_prop_grad(x, [x, x2])", "1 gradients | got 2"),
    (ValueError, "Autodiff(x * x2, be).back_prop_grad(x, y)", "x (2, 3) | y (4, 5) | shape"),
    (ValueError, "Autodiff(x * x2, be).back_prop_grad([x, x2], [out, out])", "out (2, 3) | do not overlap"),
    (ValueError, "Autodiff(x * x2, be).back_prop_grad([x, x2], [out, out[:]])", "out | do not overlap"),
    (TypeError, "Autodiff(x * x, be).get_grad_op_tree([3])", "expected a tensor | 3"),
    (TypeError, "Autodiff(x * x, be).get_grad_op_tree(x * x)", "expected a tensor | mul"),
    (TypeError, "Autodiff(x, be)", "op-tree | x"),
    (TypeError, "Autodiff(x * x, 'be')", "backend | 'be'"),
    (TypeError, "Autodiff(x * x, be).back_prop_grad(x, np.ones((2, 3)))", "tensors to write"),
    # --- trees built by hand ---
    (TypeError, "OpTreeNode.build('frob', x)", "'frob' | the name of an op | docs/ops.md"),
    (TypeError, "OpTreeNode({'op': 'frob', 'shape': (2, 3)}, x)", "'frob' | the name of an op"),
    (TypeError, "OpTreeNode.build('add', x, 'a')", f"be.add | {OPERANDS} | got 'a'"),
    (TypeError, "OpTreeNode.build('add', x)", f"be.add | {OPERANDS} | got None"),
    (TypeError, "OpTreeNode.build('exp', x, x2)", "be.exp | x (2, 3) | x2 | 1 operand | 2"),
    (TypeError, "OpTreeNode.build('sum', x, axis=(1,), odd=1)", "sum | odd"),
    (TypeError, "OpTreeNode.build('assign', 1, 2)", "1, 2 | tensor"),
    (ValueError, "(x + 1).execute()", "be.execute | 'assign' | add-tree (2, 3) | out[:] = tree"),
    (ValueError, "(x + 1).draw('png')", "'png' | 'svg'"),
]
# fmt: on


@each("error, code, words", REFUSED)
def test_a_mistake_is_reported_with_a_hint_and_changes_nothing(
    stage: SimpleNamespace, error: type[Exception], code: str, words: str
) -> None:
    tensors = [x for x in vars(stage).values() if isinstance(x, nl.Tensor)]
    before, batch_size, current = [x.get() for x in tensors], stage.be.bsz, NervanaObject.be
    with pytest.raises(error) as caught:
        exec(code, vars(nl) | {"nl": nl, "np": np}, vars(stage))
    message = str(caught.value)
    assert type(caught.value) is error
    assert [word for word in words.split(" | ") if word not in message] == [], message
    assert len(message) < 800
    for x, values in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(x.get(), values, err_msg=f"{x.name} was changed")
    assert stage.be.bsz == batch_size
    assert NervanaObject.be is current


LARGE = {
    "a stranger to a thousand tensors": lambda be, x, many, tree: Autodiff(tree, be).get_grad_op_tree(x),
    "a gradient in a large tree": lambda be, x, many, tree: Autodiff(tree, be).get_grad_op_tree(tree),
    "a large tree for a shape": lambda be, x, many, tree: be.zeros(tree),
    "a large tree for an index": lambda be, x, many, tree: x[0, tree],
    "one part of many": lambda be, x, many, tree: be.concat([*many, x]),
    "one layer of many": lambda be, x, many, tree: be.stack([*many, x]),
    "a long list": lambda be, x, many, tree: be.exp([1] * 10_000),
    "a long index": lambda be, x, many, tree: x[[9] * 10_000],
    "a long axis": lambda be, x, many, tree: be.sum(x, axis=[0] * 10_000),
    "many labels": lambda be, x, many, tree: be.onehot([0.5] * 10_000, 0),
    "a long word": lambda be, x, many, tree: be.exp("a" * 10_000),
    "a large array": lambda be, x, many, tree: be.exp(x, out=np.ones((500, 500))),
    "a large error": lambda be, x, many, tree: Autodiff(tree, be, np.ones((500, 500))),
}


@pytest.mark.parametrize("mistake", LARGE.values(), ids=LARGE)
def test_a_message_is_short_however_large_the_argument_is(cpu: Backend, mistake: Any) -> None:
    many, x = [cpu.ones((1, 1), name=f"w{i}") for i in range(1000)], cpu.ones((2, 3), name="x")
    tree = many[0]
    for w in many[1:]:
        tree = tree + w
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        mistake(cpu, x, many, tree)
    assert 10 < len(str(caught.value)) < 800


@pytest.mark.parametrize("seed", ["a", 1.5, -1, 2**64, True])
def test_an_invalid_seed_is_rejected(seed: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="rng_seed: expected an integer from 0") as caught:
        Backend("cpu", rng_seed=seed)
    assert repr(seed) in str(caught.value)


@pytest.mark.parametrize("size", [-1, 1.5, 8.0, True, "8", None])
def test_an_invalid_batch_size_is_rejected_at_once(size: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="expected an integer >= 0 for the batch size") as caught:
        Backend("cpu", batch_size=size)
    assert repr(size) in str(caught.value)


def test_the_values_of_a_backend_that_was_cleaned_up_can_still_be_read_and_moved(stage: SimpleNamespace) -> None:
    np.testing.assert_array_equal(stage.gone.get(), np.ones((2, 3)))
    np.testing.assert_array_equal((stage.be.array(stage.gone) + stage.x).asnumpyarray(), stage.x.get() + 1)


def test_the_message_distinguishes_two_backends_of_one_runtime(stage: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="operands of one backend") as caught:
        stage.x + stage.foreign
    assert repr(stage.be) != repr(stage.other)
    assert repr(stage.be) in str(caught.value)
    assert repr(stage.other) in str(caught.value)


def test_a_wrong_shape_is_reported_by_the_line_that_builds_the_tree(stage: SimpleNamespace) -> None:
    x, y = stage.x, stage.y
    with pytest.raises(ValueError, match="broadcast") as caught:
        stage.out[:] = (
            x  # a line for each operand, so that the traceback shows which
            * (x + y)
        )
    frames = traceback.extract_tb(caught.tb)
    assert [frame.line for frame in frames if frame.filename == __file__][-1] == "* (x + y)"


def test_when_one_of_several_results_fails_no_target_is_written(stage: SimpleNamespace) -> None:
    be, x = stage.be, stage.x
    first, second = be.zeros((2, 3)), be.zeros((2, 1))
    with pytest.raises(IndexError, match="index 9"):
        be.assign([first, second], [x * 2, be.take(x, [9], axis=1)])
    assert not first.get().any()
    assert not second.get().any()


def test_after_a_failed_step_the_same_tree_works_with_good_values(stage: SimpleNamespace) -> None:
    tree = stage.be.take(stage.x, stage.labels, axis=1) * 2
    for _ in range(2):
        with pytest.raises(IndexError, match="index 5"):
            stage.out[:] = tree
    stage.labels[:] = np.array([[2, 0, -3]])
    stage.out[:] = tree
    np.testing.assert_array_equal(stage.out.get(), stage.x.get()[:, [2, 0, 0]] * 2)


# --- cases that look invalid and are valid -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int16", "int32"])
@pytest.mark.parametrize("form", [lambda x: x.get(), lambda x: x, lambda x: x * 1], ids=["array", "tensor", "tree"])
def test_floats_assigned_to_ints_are_truncated(be: Backend, dtype: str, form: Callable[[Any], Any]) -> None:
    out = be.zeros((1, 4), dtype=dtype)
    out[:] = form(be.array([[1.7, -1.7, 2.5, 300.0]]))
    np.testing.assert_array_equal(out.get(), [[1, -1, 2, 300]])
    assert out.dtype == dtype


@pytest.mark.parametrize("value", [-1, 256, -1.5, 256.0, 1e30, [[300, 1]], (0.0, -7)])
def test_python_scalars_out_of_range_are_not_wrapped(be: Backend, value: Any) -> None:
    u = be.ones((1, 2), dtype="uint8")
    for write in (lambda: u.set(value), lambda: u.fill(value), lambda: be.assign([u, u[:, :1]], [value, 2])):
        with pytest.raises(OverflowError, match="expected an integer from 0 to 255 for uint8, got"):
            write()
    assert u.get().tolist() == [[1, 1]]


def test_scalars_in_range_and_arrays_are_cast_as_by_numpy(be: Backend) -> None:
    u, wanted = be.zeros((1, 2), dtype="uint8"), np.zeros((1, 2), np.uint8)
    for value in (0, 255, 255.9, -0.9, True, [[3, 4.5]], np.int64(300), np.array([[300, -1]])):
        u[:] = value
        wanted[:] = value
        np.testing.assert_array_equal(u.get(), wanted)


def test_several_scalars_are_assigned_in_the_dtypes_of_their_targets(be: Backend) -> None:
    n, x = be.zeros((1, 1), dtype="int32"), be.zeros((1, 1), dtype="float64")
    be.assign([n, x], [2**24 + 1, 0.1])
    assert (n.item(), x.item()) == (2**24 + 1, 0.1)


def test_a_read_only_array_of_the_host_is_copied(be: Backend) -> None:
    host = np.ones((2, 3), np.float32)
    host.flags.writeable = False
    x = be.array(host)
    x[:] = x * 2
    np.testing.assert_array_equal(x.get(), np.full((2, 3), 2))
    np.testing.assert_array_equal(host, np.ones((2, 3)))


def test_iterating_ends(stage: SimpleNamespace) -> None:
    rows = list(islice(stage.x, 100))
    assert [row.shape for row in rows] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(rows[1].get(), [[4, 5, 6]])
    assert list(islice(stage.none, 100)) == []
    assert len(list(islice(stage.x + 1, 100))) == 3  # a node is a triple


def test_arrays_and_scalars_of_numpy_are_operands_on_either_side(stage: SimpleNamespace) -> None:
    x, array = stage.x, np.arange(6.0).reshape(2, 3)
    for tree in (x + array, array + x, array + x * 1):
        np.testing.assert_array_equal(tree.asnumpyarray(), x.get() + array)
    for two in (np.float32(2), np.float64(2), np.int64(2), np.array(2)):
        np.testing.assert_array_equal((two * x).asnumpyarray(), 2 * x.get())
        assert (two * x).dtype == np.float32


def test_numpy_converts_a_tree_to_its_value_and_not_to_a_tuple(stage: SimpleNamespace) -> None:
    np.testing.assert_array_equal(np.asarray(stage.x + 1), stage.x.get() + 1)


@pytest.mark.parametrize("shift", [1, 3, -1])
def test_a_target_may_overlap_an_operand(be: Backend, shift: int) -> None:
    values = np.arange(4000, dtype=np.float32).reshape(-1, 1)
    x = be.array(values)
    late, early = slice(abs(shift), None), slice(None, -abs(shift))
    target, source = (late, early) if shift > 0 else (early, late)
    x[target] = 2 * x[source] + 1
    values[target] = 2 * values[source].copy() + 1
    np.testing.assert_array_equal(x.get(), values)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (lambda be, x: x.T, lambda x: x.T),
        (lambda be, x: x.T + x, lambda x: x.T + x),
        (lambda be, x: be.dot(x, x), lambda x: x @ x),
        (lambda be, x: x / be.sum(x, axis=1), lambda x: x / x.sum(1, keepdims=True)),
    ],
    ids=["transpose", "transpose plus itself", "its own square", "over its own sum"],
)
def test_a_target_may_be_an_operand(be: Backend, tree: Any, expected: Callable[[Any], Any]) -> None:
    values = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    x = be.array(values)
    x[:] = tree(be, x)
    np.testing.assert_allclose(x.get(), expected(values), rtol=1e-6)


def test_tensors_are_exchanged_in_one_step(be: Backend) -> None:
    a, b = be.array([[1.0, 2.0]]), be.array([[3.0, 4.0]])
    be.assign([a, b], [b, a])
    np.testing.assert_array_equal([a.get(), b.get()], [[[3, 4]], [[1, 2]]])


def test_gradients_of_broadcast_operands_of_three_dimensions_have_their_shapes(be64: Backend) -> None:
    rng = np.random.default_rng(0)
    host = [rng.normal(size=shape) for shape in ((2, 3, 4), (3, 1), (2, 1, 1))]
    c, row, block = (be64.array(x) for x in host)
    dc, drow, dblock = Autodiff(c * row + block, be64).get_grad_asnumpyarray([c, row, block])
    np.testing.assert_allclose(dc, np.broadcast_to(host[1], (2, 3, 4)))
    np.testing.assert_allclose(drow, host[0].sum((0, 2)).reshape(3, 1))
    np.testing.assert_allclose(dblock, np.full((2, 1, 1), 12.0))


def test_an_unused_tensor_gets_zeros_when_that_is_allowed(stage: SimpleNamespace) -> None:
    x, y = stage.x, stage.y
    used, unused = Autodiff(x * x, stage.be, allow_unused=True).get_grad_asnumpyarray([x, y])
    np.testing.assert_array_equal(used, 2 * x.get())
    np.testing.assert_array_equal(unused, np.zeros((4, 5)))


@pytest.mark.parametrize("other", ["a", [[1, 2], [3]], object()])
def test_an_operator_leaves_unknown_types_to_the_other_operand(stage: SimpleNamespace, other: Any) -> None:
    for x in (stage.x, stage.x + 1):
        assert x.__add__(other) is NotImplemented
        assert x.__rmul__(other) is NotImplemented
