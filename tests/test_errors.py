"""Is every mistake named where it was made, with what was given, what was expected, and the way out?"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import Autodiff, Backend, NervanaObject, OpTreeNode
from neonlite.ops import OPS

RAGGED = [[1, 2], [3]]


@pytest.fixture
def s(be: Backend) -> Iterator[SimpleNamespace]:
    """A stage: tensors of several shapes, a second backend, and one that was cleaned up."""
    ops = set(OPS)
    other, dead = Backend(be.name), Backend(be.name)
    stage = SimpleNamespace(be=be, other=other, dead=dead)
    stage.x, stage.y = be.array([[1, 2, 3], [4, 5, 6]], name="x"), be.ones((4, 5), name="y")
    stage.w, stage.x2 = be.ones((3, 4), name="w"), be.array([[2, 2, 2], [3, 3, 3]], name="x2")
    stage.c, stage.e = be.ones((2, 3, 4), name="c"), be.ones((0, 3), name="e")
    stage.labels = be.array([[0, 1, 5]], dtype="int32", name="labels")
    stage.out, stage.square = be.array([[7, 8, 9], [1, 2, 3]], name="out"), be.ones((3, 3), name="square")
    stage.foreign, stage.gone = other.ones((2, 3), name="foreign"), dead.ones((2, 3), name="gone")
    stage.old = stage.gone + 1
    dead.cleanup_backend()
    yield stage
    for name in set(OPS) - ops:
        del OPS[name]
        delattr(Backend, name)


def assign(target: Any, value: Any) -> None:
    target[:] = value


def put(target: Any, index: Any, value: Any) -> None:
    target[index] = value


def set_batch_size(be: Backend, n: Any) -> None:
    be.bsz = n


def grad(s: SimpleNamespace, tree: Any, of: Any, **options: Any) -> Any:
    return Autodiff(tree, s.be, **options).get_grad_op_tree(of)


def half(s: SimpleNamespace, **rules: Any) -> Any:
    """0.5 x y, an op of the user's, with or without a derivative."""
    return s.be.define_op("half", lambda xp, x, y: 0.5 * x * y, arity=2, **rules)(s.be, s.x, s.x2)


CLEANED_UP = ("cleaned up", r"\.get\(\)", r"gen_backend\(\)")
BATCH_SIZE = ("batch size", "whole number", "got")
X, Y = r"\bx \(2, 3\)", r"\by \(4, 5\)"
BOOLEAN = ("boolean", r"\bx \(2, 3\)", r"be\.where")
NOT_ASSIGNED = ("cannot be assigned to", r"\bx \(2, 3\)", "reshape|broadcast")
OPERANDS = "takes tensors, op-trees, numbers and arrays"

Do = Callable[[SimpleNamespace], Any]
REFUSED: list[tuple[str, Do, type[Exception], tuple[str, ...]]] = [
    # --- backends ---
    ("1 unknown backend", lambda s: nl.gen_backend("cpuu"), ValueError, (r"one of \('cpu'", "'cpuu'", "did you mean 'cpu'")),
    ("1 no backend name", lambda s: nl.gen_backend(None), ValueError, (r"one of \('cpu'", "None")),
    ("1 allocate", lambda s: Backend.allocate_backend("stric"), ValueError, ("'stric'", "did you mean 'strict'")),
    ("1 option", lambda s: Backend("cpu", colour=1), TypeError, ("option", "colour")),
    ("1 compat mode", lambda s: Backend("cpu", compat_mode="torch"), ValueError, ("compat_mode", "'caffe'", "'torch'")),
    ("5 foreign add", lambda s: s.x + s.foreign, ValueError, (r"be\.add", X, "foreign", "different backends", r"be\.array")),
    ("5 foreign dot", lambda s: s.be.dot(s.foreign, s.w), ValueError, (r"be\.dot", "foreign", r"w \(3, 4\)", r"be\.array")),
    ("5 foreign value", lambda s: assign(s.x, s.foreign), ValueError, ("foreign", X, r"be\.array")),
    ("5 foreign out", lambda s: s.be.exp(s.x, out=s.foreign), ValueError, ("exp", "foreign", r"be\.array")),
    ("5 foreign error", lambda s: grad(s, s.x * s.x, s.x, next_error=s.foreign), ValueError, ("foreign", r"be\.array")),
    ("6 dead assign", lambda s: assign(s.gone, s.old), RuntimeError, CLEANED_UP),
    ("6 dead number", lambda s: assign(s.gone, 1), RuntimeError, CLEANED_UP),
    ("6 dead tree", lambda s: s.old.asnumpyarray(), RuntimeError, CLEANED_UP),
    ("6 dead zeros", lambda s: s.dead.zeros((2, 2)), RuntimeError, CLEANED_UP),
    ("6 dead array", lambda s: s.dead.array(1), RuntimeError, CLEANED_UP),
    ("6 dead mask", lambda s: s.dead.make_binary_mask(s.gone), RuntimeError, CLEANED_UP),
    ("6 dead autodiff", lambda s: Autodiff(s.old, s.dead), RuntimeError, CLEANED_UP),
    *(
        (f"7 batch size {n!r}", lambda s, n=n: Backend("cpu", batch_size=n), ValueError, (*BATCH_SIZE, re.escape(repr(n))))
        for n in (-1, 1.5, 8.0, True, "8", None)
    ),
    ("7 set batch size", lambda s: set_batch_size(s.be, -3), ValueError, (*BATCH_SIZE, "-3")),
    ("7 not set yet", lambda s: s.be.iobuf(5), ValueError, ("batch size", r"gen_backend\(batch_size=N\)", r"be\.bsz = N")),
    ("9 dtype", lambda s: s.be.zeros((2, 2), dtype="float31"), TypeError, ("'float31'", "float32, float64", "int32")),
    ("9 dtype of array", lambda s: s.be.array([1], dtype="complex64"), TypeError, ("'complex64'", "float32, float64")),
    ("9 bool", lambda s: s.be.zeros((2, 2), dtype=bool), TypeError, ("'bool'", "uint8")),
    ("9 default dtype", lambda s: Backend(s.be.name, default_dtype="int32"), ValueError, ("int32", "float32")),
    ("9 misspelt word", lambda s: s.be.zeros((2, 2), nmae="x"), TypeError, ("zeros", "nmae")),
    ("11 device", lambda s: nl.gen_backend(s.be.name, device_id=3), ValueError, ("device_id=3", "number 0")),
    # --- shapes ---
    ("13 add", lambda s: s.x + s.y, ValueError, (r"be\.add", X, Y, "2 and 4", "axis 0", "broadcast")),
    ("13 tree", lambda s: s.be.exp(s.x) * s.y, ValueError, (r"be\.multiply", r"exp-tree \(2, 3\)", Y, "broadcast")),
    ("13 array", lambda s: s.x - np.ones((4, 5)), ValueError, (r"be\.subtract", X, r"\(4, 5\)", "broadcast")),
    ("13 reflected", lambda s: np.ones((4, 5)) / s.x, ValueError, (r"be\.divide", X, r"\(4, 5\)", "broadcast")),
    ("13 n-D", lambda s: s.c + s.y, ValueError, (r"be\.add", r"\bc \(2, 3, 4\)", Y, "broadcast")),
    ("13 where", lambda s: s.be.where(s.x, s.y, 0), ValueError, (r"be\.where", X, Y, "broadcast")),
    ("14 dot", lambda s: s.be.dot(s.x, s.y), ValueError, (r"be\.dot", X, Y, "3 columns", "4 rows", r"\.T")),
    ("14 @", lambda s: s.x @ s.y, ValueError, (r"be\.dot", X, Y, "inner", r"\.T")),
    ("14 stacks", lambda s: s.c @ s.w, ValueError, (r"be\.matmul", r"c \(2, 3, 4\)", r"w \(3, 4\)", "inner", r"\.T")),
    ("15 dot of 3-D", lambda s: s.be.dot(s.c, s.x), ValueError, (r"be\.dot", r"c \(2, 3, 4\)", X, "two matrices", "x @ y")),
    ("15 dot of a number", lambda s: s.be.dot(s.x, 2), ValueError, (r"be\.dot", X, "2", "inner")),
    ("16 reshape", lambda s: s.x.reshape(4, 2), ValueError, (r"\bx \(2, 3\)", "reshape", "6 elements", r"\(4, 2\) has 8")),
    ("16 tree", lambda s: s.be.reshape(s.x + 1, (4, 2)), ValueError, (r"be\.reshape", r"add-tree \(2, 3\)", "6 elements", "8")),
    ("16 -1", lambda s: s.x.reshape(4, -1), ValueError, (X, "6", r"\(4, -1\)", "multiple of 4")),
    ("16 gaps", lambda s: s.x.T.reshape(6, 1), ValueError, ("x", r"\(3, 2\)", "copy", r"be\.array")),
    ("16 fraction", lambda s: s.x.reshape(1.5, 4), TypeError, (X, "whole numbers", r"\(1\.5, 4\)")),
    ("16 share", lambda s: s.x.share((4, 2)), ValueError, (X, r"\(4, 2\)", "8", "6")),
    ("17 two -1", lambda s: s.x.reshape(-1, -1), ValueError, (X, "one size", r"\(-1, -1\)")),
    ("17 two -1 in a tree", lambda s: s.be.reshape(s.x + 1, -1, -1), ValueError, (r"be\.reshape", "add-tree", "one size")),
    ("17 two -2", lambda s: s.x.reshape(-2, -3), ValueError, (X, r"\(-2, -3\)", "negative|from 0")),
    ("18 axes", lambda s: s.be.transpose(s.x, (0, 2)), ValueError, (r"be\.transpose", X, r"\(0, 2\)", "0 to 1")),
    ("18 twice", lambda s: s.be.transpose(s.x + 1, (0, 0)), ValueError, (r"be\.transpose", "add-tree", r"\(0, 0\)", "once")),
    ("18 too few", lambda s: s.be.transpose(s.c, (0, 1)), ValueError, (r"be\.transpose", r"c \(2, 3, 4\)", "0 to 2")),
    ("18 not a tuple", lambda s: s.be.transpose(s.x, 1), TypeError, (r"be\.transpose", X, "axes", "1")),
    ("18 permute", lambda s: s.x.permute((0, 0)), ValueError, (X, r"\(0, 0\)", "once")),
    ("19 axis", lambda s: s.be.sum(s.x, axis=2), IndexError, (r"be\.sum", X, "axis 2", "-2 to 1")),
    ("19 negative", lambda s: s.be.mean(s.x + 1, axis=-3), IndexError, (r"be\.mean", r"add-tree \(2, 3\)", "axis -3", "-2 to 1")),
    ("19 argmax", lambda s: s.be.argmax(s.x, axis=5), IndexError, (r"be\.argmax", X, "axis 5", "-2 to 1")),
    ("19 twice", lambda s: s.be.sum(s.x, axis=(0, -2)), ValueError, (r"be\.sum", X, r"\(0, -2\)", "twice")),
    ("19 var", lambda s: s.be.var(s.x, axis=4), IndexError, (r"be\.var", X, "axis 4", "-2 to 1")),
    ("19 std", lambda s: s.be.std(s.x, axis=4), IndexError, (r"be\.std", X, "axis 4", "-2 to 1")),
    ("19 softmax", lambda s: s.be.softmax(s.x, axis=7), IndexError, (r"be\.softmax", X, "axis 7", "-2 to 1")),
    ("19 take", lambda s: s.be.take(s.x, [0], axis=3), IndexError, (r"be\.take", X, "axis 3", "-2 to 1")),
    ("19 concat", lambda s: s.be.concat([s.x, s.x], axis=2), IndexError, (r"be\.concat", X, "axis 2", "-2 to 1")),
    ("19 stack", lambda s: s.be.stack([s.x, s.x], axis=4), IndexError, (r"be\.stack", X, "axis 4", "-3 to 2")),
    ("20 fraction", lambda s: s.be.sum(s.x, axis=1.0), TypeError, (r"be\.sum", X, "whole number", r"1\.0")),
    ("20 word", lambda s: s.be.max(s.x, axis="rows"), TypeError, (r"be\.max", X, "whole number", "'rows'")),
    ("20 truth", lambda s: s.be.min(s.x, axis=True), TypeError, (r"be\.min", X, "whole number", "True")),
    ("20 take", lambda s: s.be.take(s.x, [0], axis=1.5), TypeError, (r"be\.take", X, "whole number", r"1\.5")),
    ("20 concat", lambda s: s.be.concat([s.x, s.x], axis="a"), TypeError, (r"be\.concat", X, "whole number", "'a'")),
    # --- indices ---
    ("21 row", lambda s: s.x[5], IndexError, (X, "index 5", "axis 0", "2 elements")),
    ("21 column", lambda s: s.x[0, -4], IndexError, (X, "index -4", "axis 1", "3 elements")),
    ("21 assigned", lambda s: put(s.x, 7, 1), IndexError, (X, "index 7", "axis 0", "2 elements")),
    ("22 three", lambda s: s.x[0, 0, 0], IndexError, (X, "3 indices", "2 dimensions")),
    ("22 two ellipses", lambda s: s.x[..., 0, ...], IndexError, (X,)),
    ("23 mask", lambda s: s.x[np.array([True, False])], IndexError, BOOLEAN),
    ("23 wrong length", lambda s: s.x[np.ones(7, dtype=bool)], IndexError, BOOLEAN),
    ("23 truth", lambda s: s.x[True], IndexError, BOOLEAN),
    ("23 list of truths", lambda s: s.x[[True, False]], IndexError, BOOLEAN),
    ("23 comparison", lambda s: s.x[s.x > 2], IndexError, BOOLEAN),
    ("23 masked assignment", lambda s: put(s.x, s.x > 2, 0), IndexError, BOOLEAN),
    ("23 list", lambda s: s.x[[0, 1]], TypeError, (X, r"\[0, 1\]", r"be\.take")),
    ("23 word", lambda s: s.x["a"], TypeError, (X, "'a'", "whole numbers, slices")),
    ("23 fraction", lambda s: s.x[1.0], TypeError, (X, r"1\.0", "whole numbers, slices")),
    # --- assignment ---
    ("24 array", lambda s: assign(s.x, np.ones((3, 2))), ValueError, (*NOT_ASSIGNED, r"array \(3, 2\)")),
    ("24 tensor", lambda s: assign(s.x, s.y), ValueError, (*NOT_ASSIGNED, f"^{Y}")),
    ("24 copy", lambda s: s.x.copy(s.y), ValueError, (*NOT_ASSIGNED, f"^{Y}")),
    ("24 tree", lambda s: assign(s.x, s.y + 1), ValueError, (*NOT_ASSIGNED, r"add-tree \(4, 5\)")),
    ("24 out", lambda s: s.be.exp(s.y, out=s.x), ValueError, (*NOT_ASSIGNED, r"exp-tree \(4, 5\)")),
    ("24 set", lambda s: s.x.set(np.ones((4, 4))), ValueError, (*NOT_ASSIGNED, r"\(4, 4\)")),
    ("24 slice", lambda s: put(s.x, slice(0, 1), s.y), ValueError, ("y", r"\(4, 5\)", "x", r"\(1, 3\)")),
    ("24 word", lambda s: assign(s.x, "hello"), TypeError, ("numbers", "hello")),
    ("24 nothing", lambda s: assign(s.x, None), TypeError, ("numbers", "None")),
    ("24 out is an array", lambda s: s.be.exp(s.x, out=np.ones((2, 3))), TypeError, ("only tensors", "assigned", "array")),
    ("24 counts", lambda s: s.be.assign([s.x], [1, 2]), ValueError, ("2 values", "1 tensor")),
    ("26 tree", lambda s: assign(s.x + 1, 1), TypeError, ("op-tree", r"out\[:\] = tree")),
    ("26 op of a tree", lambda s: put((s.x + 1)[0], "op", "sub"), TypeError, ("op-trees do not change", "replace")),
    ("26 shape", lambda s: setattr(s.x, "shape", (3, 2)), AttributeError, ("shape",)),
    # --- joining, labels, indices in tensors ---
    ("27 concat", lambda s: s.be.concat([s.x, s.y]), ValueError, (r"be\.concat", X, Y, "axis 0")),
    ("27 dimensions", lambda s: s.be.concat([s.x, s.c]), ValueError, (r"be\.concat", X, r"c \(2, 3, 4\)", "axis 0")),
    ("27 the third", lambda s: s.be.concat([s.x, s.x2, s.y]), ValueError, (r"be\.concat", X, r"x2 \(2, 3\)", Y)),
    ("27 nothing", lambda s: s.be.concat([]), ValueError, (r"be\.concat", "nothing")),
    ("27 stack", lambda s: s.be.stack([s.x, s.y]), ValueError, (r"be\.stack", X, Y)),
    ("27 not a list", lambda s: s.be.concat(5), TypeError, (r"be\.concat", "5")),
    ("28 label", lambda s: assign(s.square, s.be.onehot(s.labels, axis=0)), IndexError, ("onehot", "labels", "label 5", "0 to 2")),
    ("28 out", lambda s: s.be.onehot(s.labels, axis=0, out=s.square), IndexError, ("onehot", "labels", "label 5", "0 to 2")),
    ("28 negative", lambda s: s.be.onehot([0, -1], 0, nclass=3).asnumpyarray(), IndexError, ("onehot", "label -1", "0 to 2")),
    ("28 axis", lambda s: s.be.onehot(s.labels, 2), ValueError, (r"be\.onehot", "0 .*1", "got 2")),
    ("28 no nclass", lambda s: s.be.onehot(s.labels, 0).asnumpyarray(), ValueError, ("onehot", "labels", "classes", "nclass")),
    ("28 in a tree", lambda s: assign(s.square, s.be.onehot(s.labels, 0) * 2), ValueError, ("onehot", "labels", "nclass")),
    ("28 bad nclass", lambda s: s.be.onehot(s.labels, 0, nclass=-1), ValueError, (r"be\.onehot", "nclass", "-1")),
    ("28 shape", lambda s: assign(s.w, s.be.onehot(s.labels, 0)), ValueError, ("onehot-tree", r"\(3, 3\)", r"w \(3, 4\)")),
    ("29 floats", lambda s: s.be.onehot(s.x, 0), TypeError, (r"be\.onehot", X, "float32", "whole numbers", "dtype='int32'")),
    ("29 array of floats", lambda s: s.be.onehot([0.5, 1], 0), TypeError, (r"be\.onehot", "float64", r"0\.5")),
    ("30 take", lambda s: assign(s.out, s.be.take(s.x, [0, 1, 3], 1)), IndexError, ("take", X, "index 3", "axis 1", "-3 to 2")),
    ("30 below", lambda s: assign(s.out, s.be.take(s.x, [0, 1, -4], 1)), IndexError, ("take", X, "index -4", "-3 to 2")),
    ("30 in a tree", lambda s: assign(s.out, s.be.take(s.x, [9] * 3, 1) + 1), IndexError, ("take", X, "index 9", r"out \(2, 3\)")),
    ("30 tensor's", lambda s: s.x.take([7], axis=0), IndexError, ("take", X, "index 7", "axis 0", "-2 to 1")),
    ("30 floats", lambda s: s.be.take(s.x, [0.5], axis=0), TypeError, (r"be\.take", "whole numbers", r"0\.5")),
    ("30 truths", lambda s: s.be.take(s.x, [True, False], axis=0), TypeError, (r"be\.take", "whole numbers", "bool")),
    ("30 nothing", lambda s: s.be.take(s.x, None, axis=0), TypeError, (r"be\.take", "whole numbers", "None")),
    # --- einsum ---
    ("31 unknown letter", lambda s: s.be.einsum("ij,jk->il", s.x, s.w), ValueError, (r"be\.einsum\('ij,jk->il'", X, "w", "'l'")),
    ("31 terms", lambda s: s.be.einsum("ij,jk->ik", s.x), ValueError, (r"be\.einsum", X, "2", "1")),
    ("31 letters", lambda s: s.be.einsum("ijk,kl", s.x, s.w), ValueError, (r"be\.einsum", "'ijk'", "3 letters", "2 dimensions")),
    ("31 vector", lambda s: s.be.einsum("i->i", s.x), ValueError, (r"be\.einsum", X, "1 letters", "column", "two letters")),
    ("31 two arrows", lambda s: s.be.einsum("ij->->ij", s.x), ValueError, (r"be\.einsum", X, "->")),
    ("31 no letter", lambda s: s.be.einsum("i!,jk", s.x, s.w), ValueError, (r"be\.einsum", "'i!,jk'", "'!'")),
    ("31 forgotten", lambda s: s.be.einsum(s.x, s.w), TypeError, (r"be\.einsum", "subscripts", "'ij,jk->ik'", X)),
    ("32 sizes", lambda s: s.be.einsum("ij,jk->ik", s.x, s.y), ValueError, (r"be\.einsum", X, Y, "'j'", "3 and for 4")),
    ("32 diagonal", lambda s: s.be.einsum("ii->i", s.x), ValueError, (r"be\.einsum", X, "'i'", "2 and for 3")),
    # --- nothing, truth and numbers ---
    ("33 max", lambda s: s.be.max(s.e, axis=0), ValueError, (r"be\.max", r"e \(0, 3\)", "nothing", r"axis \(?0")),
    ("33 argmin", lambda s: s.be.argmin(s.e, axis=0), ValueError, (r"be\.argmin", r"e \(0, 3\)", "nothing")),
    ("33 mean", lambda s: s.be.mean(s.e), ValueError, (r"be\.mean", r"e \(0, 3\)", "nothing")),
    ("33 var", lambda s: s.be.var(s.e), ValueError, (r"be\.var", r"e \(0, 3\)", "nothing")),
    ("34 bool", lambda s: bool(s.x + 1), TypeError, ("op-tree", "truth value", r"out\[:\] = tree")),
    ("34 equal", lambda s: 1 if s.x == s.x else 0, TypeError, ("truth value", r"out\[:\] = tree")),
    ("34 between", lambda s: 0 < s.x < 2, TypeError, ("truth value", r"out\[:\] = tree")),
    ("34 not", lambda s: not s.x > 0, TypeError, ("truth value", r"out\[:\] = tree")),
    ("36 ragged", lambda s: s.be.array(RAGGED), ValueError, (r"be\.array", "equal lengths", r"\(2,\)")),
    ("36 ragged, assigned", lambda s: assign(s.x, RAGGED), ValueError, ("equal lengths", X)),
    ("36 ragged operand", lambda s: s.be.add(s.x, RAGGED), TypeError, (r"be\.add", OPERANDS, re.escape(str(RAGGED)))),
    ("37 objects", lambda s: s.be.array(np.array([object()])), TypeError, ("numbers", "object")),
    ("37 words", lambda s: s.be.array(["a"]), TypeError, ("numbers", r"<U1", "a")),
    ("37 complex", lambda s: s.be.array(1j), TypeError, ("numbers", "complex128")),
    ("37 none", lambda s: s.be.array(None), TypeError, ("numbers", "None")),
    ("37 object operand", lambda s: s.x + np.full((2, 3), None), TypeError, ("numbers", "object")),
    ("37 word", lambda s: s.x + "a", TypeError, ("Tensor", "str")),
    ("37 + None", lambda s: s.x + None, TypeError, ("None",)),
    ("37 add None", lambda s: s.be.add(s.x, None), TypeError, (r"be\.add", OPERANDS, "got None")),
    ("37 exp None", lambda s: s.be.exp(None), TypeError, (r"be\.exp", OPERANDS, "got None")),
    ("37 sum of a word", lambda s: s.be.sum("a"), TypeError, (r"be\.sum", OPERANDS, "got 'a'")),
    ("37 where", lambda s: s.be.where(s.x, "a", 1), TypeError, (r"be\.where", OPERANDS, "got 'a'")),
    ("37 clip", lambda s: s.be.clip(s.x, "a", 1), TypeError, (r"be\.clip", OPERANDS, "got 'a'")),
    ("37 shape", lambda s: s.be.zeros((1.5, 2)), TypeError, ("whole numbers", r"\(1\.5, 2\)")),
    ("37 negative shape", lambda s: s.be.zeros((-1, 2)), ValueError, ("negative", r"\(-1, 2\)")),
    ("38 word", lambda s: Backend("cpu", rng_seed="a"), TypeError, ("rng_seed", "whole number", "'a'")),
    ("38 negative", lambda s: s.be.gen_rng(-1), ValueError, ("rng_seed", "from 0", "-1")),
    ("38 fraction", lambda s: Backend("cpu", rng_seed=1.5), TypeError, ("rng_seed", "whole number", r"1\.5")),
    ("38 too large", lambda s: Backend("cpu", rng_seed=2**64), ValueError, ("rng_seed", "whole number", str(2**64))),
    ("38 state", lambda s: s.be.rng_set_state("x"), ValueError, ("state", "tuple", "'x'")),
    # --- autodiff ---
    ("40 integers", lambda s: grad(s, s.labels * 2.0, s.labels), TypeError, ("labels", "int32", "only floats", "dtype='float32'")),
    ("41 stranger", lambda s: grad(s, s.x * s.x2, s.y), ValueError, (Y, "not in the tree", "x, x2", "allow_unused=True")),
    ("41 buffers", lambda s: Autodiff(s.x * s.x2, s.be).back_prop_grad([s.x, s.y], [s.out, s.y]), ValueError, (Y, "x, x2")),
    ("42 shape", lambda s: grad(s, s.x * s.x, s.x, next_error=s.y), ValueError, ("next_error", r"\(2, 3\)", Y)),
    ("42 broadcast", lambda s: grad(s, s.x * s.x, s.x, next_error=s.x[:, 0]), ValueError, ("next_error", r"\(2, 3\)", r"\(2, 1\)")),
    ("42 array", lambda s: Autodiff(s.x * s.x, s.be, np.ones((2, 3))), TypeError, ("next_error", "tensor", r"be\.array")),
    ("42 number", lambda s: Autodiff(s.x * s.x, s.be, 3), TypeError, ("next_error", "tensor", "3")),
    ("43 no rule", lambda s: grad(s, s.be.exp(half(s)), s.x), NotImplementedError, ("'half'", "without a derivative", "grad=")),
    ("43 too few", lambda s: grad(s, half(s, grad=lambda be, dz, z, x, y: (dz,)), s.x), ValueError, ("'half'", "1 .*2")),
    ("43 bare tree", lambda s: grad(s, half(s, grad=lambda be, dz, z, x, y: dz * y), s.x), TypeError, ("'half'", "tuple")),
    ("43 taken", lambda s: s.be.define_op("tanh", lambda xp, x: x), ValueError, (r"be\.define_op", "'tanh'", "taken")),
    ("43 no name", lambda s: s.be.define_op("a b", lambda xp, x: x), ValueError, (r"be\.define_op", "'a b'")),
    ("43 kind", lambda s: s.be.define_op("half", abs, kind="odd"), ValueError, (r"be\.define_op", "'elementwise'", "'odd'")),
    ("43 no shape", lambda s: s.be.define_op("half", abs, kind="library"), ValueError, (r"be\.define_op", "shape")),
    ("43 arity", lambda s: s.be.define_op("half", abs, arity=3), ValueError, (r"be\.define_op", "3")),
    ("43 no function", lambda s: s.be.define_op("half", 3), TypeError, (r"be\.define_op", "run", "3")),
    ("44 none", lambda s: Autodiff(s.x * s.x, s.be).back_prop_grad([s.x], []), ValueError, ("1 tensor", "gradients", "got 0")),
    ("44 two", lambda s: Autodiff(s.x * s.x, s.be).back_prop_grad(s.x, [s.x, s.x2]), ValueError, ("1 tensor", "got 2")),
    ("44 shape", lambda s: Autodiff(s.x * s.x2, s.be).back_prop_grad(s.x, s.y), ValueError, (X, Y, "shape")),
    (
        "45 one for two",
        lambda s: Autodiff(s.x * s.x2, s.be).back_prop_grad([s.x, s.x2], [s.out, s.out]),
        ValueError,
        (r"out \(2, 3\)", "share memory"),
    ),
    (
        "45 views of one",
        lambda s: Autodiff(s.x[:1] * s.x2[:1], s.be).back_prop_grad([s.x[:1], s.x2[:1]], [s.out[:1], s.out.reshape(3, 2).reshape(2, 3)[:1]]),
        ValueError,
        (r"out \(1, 3\)", "share memory"),
    ),
    ("46 number", lambda s: grad(s, s.x * s.x, [3]), TypeError, ("gradients", "tensors", "3")),
    ("46 node", lambda s: grad(s, s.x * s.x, s.x * s.x), TypeError, ("gradients", "tensors", "mul")),
    ("46 no tree", lambda s: Autodiff(s.x, s.be), TypeError, ("op-trees", "x")),
    ("46 no backend", lambda s: Autodiff(s.x * s.x, "be"), TypeError, ("backend", "'be'")),
    ("46 buffer", lambda s: Autodiff(s.x * s.x, s.be).back_prop_grad(s.x, np.ones((2, 3))), TypeError, ("written into tensors",)),
    # --- trees by hand ---
    ("unknown op", lambda s: OpTreeNode.build("frob", s.x), TypeError, ("'frob'", "ops are", "tanh")),
    ("unknown op, unchecked", lambda s: OpTreeNode({"op": "frob", "shape": (2, 3)}, s.x), TypeError, ("'frob'", "ops are")),
    ("too few operands", lambda s: OpTreeNode.build("add", s.x), TypeError, (r"be\.add", X, "2 operands", "1")),
    ("too many operands", lambda s: OpTreeNode.build("exp", s.x, s.x2), TypeError, (r"be\.exp", X, "x2", "1 operand", "2")),
    ("no attribute", lambda s: OpTreeNode.build("sum", s.x), TypeError, (r"be\.sum", X, "axis")),
    ("odd attribute", lambda s: OpTreeNode.build("sum", s.x, axis=(1,), odd=1), TypeError, (r"be\.sum", X, "odd")),
    ("no tensor", lambda s: OpTreeNode.build("assign", 1, 2), TypeError, ("1, 2", "tensor")),
    ("execute", lambda s: (s.x + 1).execute(), ValueError, (r"be\.execute", "'assign'", r"add-tree \(2, 3\)", r"out\[:\] = tree")),
    ("form", lambda s: (s.x + 1).draw("png"), ValueError, ("'png'", "'svg'")),
]


@pytest.mark.parametrize(("do", "error", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_mistake_is_named_with_the_way_out_and_changes_nothing(
    s: SimpleNamespace, do: Do, error: type[Exception], words: tuple[str, ...]
) -> None:
    tensors = [x for x in vars(s).values() if isinstance(x, nl.Tensor)]
    before, batch_size, current = [x.get() for x in tensors], s.be.bsz, NervanaObject.be
    with pytest.raises(error) as caught:
        do(s)
    message = str(caught.value)
    assert type(caught.value) is error
    assert [word for word in words if not re.search(word, message)] == [], message
    assert len(message) < 800
    for x, values in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(x.get(), values, err_msg=f"{x.name} was changed")
    assert s.be.bsz == batch_size
    assert NervanaObject.be is current


def test_without_a_backend_the_error_says_to_make_one(be: Backend) -> None:
    layer, tree = NervanaObject(), be.ones((2, 2)) * 2
    nl.cleanup_backend()
    for use in (lambda: NervanaObject.be, lambda: layer.be, lambda: Autodiff(tree)):
        with pytest.raises(RuntimeError, match=r"no backend yet: call gen_backend\(\) first"):
            use()


def test_the_values_of_a_backend_that_was_cleaned_up_can_still_be_read_and_moved(s: SimpleNamespace) -> None:
    np.testing.assert_array_equal(s.gone.get(), np.ones((2, 3)))
    np.testing.assert_array_equal((s.be.array(s.gone) + s.x).asnumpyarray(), s.x.get() + 1)


def test_two_backends_of_one_kind_can_be_told_apart_in_the_message(s: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="different backends") as caught:
        s.x + s.foreign
    assert repr(s.be) != repr(s.other)
    assert repr(s.be) in str(caught.value)
    assert repr(s.other) in str(caught.value)


def test_a_wrong_shape_is_reported_by_the_line_that_builds_the_tree(s: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="broadcast") as caught:
        s.out[:] = (
            s.x
            + s.y  # here
        )
    mine = [frame for frame in traceback.extract_tb(caught.tb) if frame.filename == __file__]
    assert [frame.line for frame in mine][-1].startswith(("s.x", "+ s.y", "s.out"))
    assert all("assign" not in frame.name and frame.name != "run" for frame in traceback.extract_tb(caught.tb))


def test_when_one_of_several_results_fails_no_target_is_written(s: SimpleNamespace) -> None:
    first, second = s.be.zeros((2, 3), name="first"), s.be.zeros((2, 1), name="second")
    with pytest.raises(IndexError, match="index 9"):
        s.be.assign([first, second], [s.x * 2, s.be.take(s.x, [9], axis=1)])
    assert not first.get().any()
    assert not second.get().any()


def test_after_a_failed_step_the_same_step_succeeds_with_good_values(s: SimpleNamespace) -> None:
    tree = s.be.take(s.x, s.labels, axis=1) * 2
    for _ in range(2):
        with pytest.raises(IndexError, match="index 5"):
            s.out[:] = tree
    s.labels[:] = np.array([[2, 0, -3]])
    s.out[:] = tree
    np.testing.assert_array_equal(s.out.get(), s.x.get()[:, [2, 0, 0]] * 2)


@pytest.mark.parametrize("operand", ["a", RAGGED, object(), 1j, None])
def test_building_by_hand_leaves_a_foreign_operand_to_pythons_own_protocol(s: SimpleNamespace, operand: Any) -> None:
    assert Operators(s.x).add(operand) is NotImplemented


class Operators:
    def __init__(self, x: Any) -> None:
        self.x = x

    def add(self, other: Any) -> Any:
        return type(self.x).__add__(self.x, other)


# --- rows that work ------------------------------------------------------------------------------------------------


def test_assignment_casts_as_numpys_does(be: Backend) -> None:
    values = np.array([[1.7, -1.7, 2.5, 300.0]])
    for dtype in ("int32", "int16"):
        for value in (values, be.array(values), be.array(values) * 1):
            out = be.zeros((1, 4), dtype=dtype)
            out[:] = value
            np.testing.assert_array_equal(out.get(), [[1, -1, 2, 300]])
            assert out.dtype == dtype


def test_a_read_only_array_of_the_host_is_copied(be: Backend) -> None:
    host = np.ones((2, 3), np.float32)
    host.flags.writeable = False
    x = be.array(host)
    x[:] = x * 2
    np.testing.assert_array_equal(x.get(), np.full((2, 3), 2))
    np.testing.assert_array_equal(host, np.ones((2, 3)))


def test_iterating_ends(s: SimpleNamespace) -> None:
    rows = list(islice(s.x, 100))
    assert [row.shape for row in rows] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(rows[1].get(), [[4, 5, 6]])
    assert len(list(islice(s.x + 1, 100))) == 3  # a node is a triple
    with pytest.raises(StopIteration):
        next(iter(s.e))


def test_arrays_and_scalars_of_numpy_stand_on_either_side(s: SimpleNamespace) -> None:
    array = np.arange(6.0).reshape(2, 3)
    for tree in (s.x + array, array + s.x, array + (s.x * 1)):
        np.testing.assert_array_equal(tree.asnumpyarray(), s.x.get() + array)
    np.testing.assert_array_equal((np.float32(2) * s.x).asnumpyarray(), 2 * s.x.get())
    assert (np.float64(2) * s.x).dtype == np.float32


def test_a_tree_is_not_taken_apart_by_numpy(s: SimpleNamespace) -> None:
    try:
        values = np.asarray(s.x + 1)
    except TypeError as error:
        assert re.search(r"asnumpyarray|astensor", str(error))  # noqa: PT017
    else:
        np.testing.assert_array_equal(values, s.x.get() + 1)


@pytest.mark.parametrize("shift", [1, 3, -1])
def test_a_target_may_overlap_an_operand(be: Backend, shift: int) -> None:
    values = np.arange(4000, dtype=np.float32).reshape(-1, 1)
    x = be.array(values)
    target, source = (slice(shift, None), slice(None, -shift)) if shift > 0 else (slice(None, shift), slice(-shift, None))
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
def test_a_target_may_be_an_operand(be: Backend, tree: Do, expected: Callable[[Any], Any]) -> None:
    values = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    x = be.array(values)
    x[:] = tree(be, x)
    np.testing.assert_allclose(x.get(), expected(values), rtol=1e-6)


def test_gradients_of_broadcast_operands_of_three_dimensions_have_their_shapes(be64: Backend) -> None:
    rng = np.random.default_rng(0)
    host = [rng.normal(size=shape) for shape in ((2, 3, 4), (3, 1), (2, 1, 1))]
    c, row, block = (be64.array(x) for x in host)
    dc, drow, dblock = Autodiff(c * row + block, be64).get_grad_asnumpyarray([c, row, block])
    np.testing.assert_allclose(dc, np.broadcast_to(host[1], (2, 3, 4)))
    np.testing.assert_allclose(drow, host[0].sum((0, 2)).reshape(3, 1))
    np.testing.assert_allclose(dblock, np.full((2, 1, 1), 12.0))


def test_a_tree_100_000_nodes_deep_is_built_run_and_differentiated(be: Backend) -> None:
    x = be.ones((1, 1), name="x")
    tree = x
    for _ in range(100_000):
        tree = tree + x
    assert tree.asnumpyarray().item() == 100_001
    assert Autodiff(tree, be).get_grad_asnumpyarray(x).item() == 100_001


def test_an_unused_tensor_gets_zeros_when_that_is_allowed(s: SimpleNamespace) -> None:
    used, unused = Autodiff(s.x * s.x, s.be, allow_unused=True).get_grad_asnumpyarray([s.x, s.y])
    np.testing.assert_array_equal(used, 2 * s.x.get())
    np.testing.assert_array_equal(unused, np.zeros((4, 5)))
