"""Dry runs count the bytes and the floating-point operations of a program exactly, and allocate nothing."""

from __future__ import annotations

import copy
import inspect
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES_WITH_ARENA, assert_same_memory, back

from neonlite import Autodiff, Backend
from neonlite.name_hints import MissingAttribute
from neonlite.ops import OP_TABLE, OPS, SYNONYMS
from neonlite.ops.functions import build_variadic
from neonlite.optree import OpTreeNode


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# --- dry runs ------------------------------------------------------------------------------------------------------

N = 4


def elementwise(be: Backend) -> None:
    x, y, out = be.array(array(60, 50)), be.ones((60, 1)), be.empty((60, 50))
    out[:] = be.where(x > y, be.exp(x) * y - be.tanh(x), x * x) + be.safelog(abs(x))
    out[:] = be.shift(x, out) / 3 + be.maximum(x, 0.5) ** 2
    x[:] = x.T[:50].T if x.shape[0] == 50 else x * 2
    whole = be.astype(x, "int32").astensor()
    for op in OP_TABLE:
        if op.kind == "elementwise" and op.method not in ("where", "astype", "shift", "stop_gradient"):
            operands = (whole, 3) if op.integers_only else (x, y)
            getattr(be, op.method)(*operands[: op.arity]).astensor()
    x[1:] = x[:-1]
    x[:: back(be)][:10] = x[10:20] * 1.5


def reductions(be: Backend) -> None:
    x = be.array(array(40, 30))
    be.evaluate([be.sum(x, axis=0), be.max(x, axis=1), be.mean(x), be.var(x, axis=0), be.argmax(x, axis=0)])
    be.softmax(x, axis=0).astensor()
    be.logsumexp(x, axis=1).astensor()
    be.relu(be.round(x, 1)).astensor()
    be.sum(be.reshape(x, 4, 10, 30), axis=(0, 2), keepdims=False).astensor()
    be.sum(be.ones((50, 50), dtype="int32"), axis=0).astensor()


def large(be: Backend) -> None:
    x, y, out = be.ones((700, 900)), be.ones((900, 700)), be.empty((700, 900))
    out[:] = be.exp(x) * be.tanh(x) + y.T
    out[:] = be.softmax(x * 2, axis=0)
    out[:] = be.softmax(y.T, axis=1) - be.mean(x)
    be.evaluate([be.sum(x * x, axis=0), be.sum(x > y.T), be.max(x - 1, axis=1)])
    be.sum(be.ones((900, 700), dtype="int16"), axis=1).astensor()
    if "float16" in be.runtime.dtypes:
        be.sum(be.ones((700, 500), dtype="float16") * 2, axis=0).astensor()


def several_targets(be: Backend) -> None:
    x, w = be.array(array(50, 20)), be.array(array(50, 50))
    tree = be.tanh(be.dot(w, x)) * x
    dx, dw = be.empty_like(x), be.empty_like(w)
    Autodiff(tree, be).back_prop_grad([x, w], [dx, dw])
    be.assign([x, dx], [dx, x * 2])
    be.assign([x[1:], x[:-1]], [x[:-1], x[1:] + be.sum(x, axis=0)])
    be.compile([x, dx], [dx + 1, x * dx])()


def products(be: Backend) -> None:
    x, y, out = be.array(array(120, 110)), be.array(array(110, 130)), be.empty((120, 130))
    out[:] = be.dot(x, y) + 1
    out[:] = be.dot(x * 2, be.dot(y, be.dot(y.T, y)))
    for alpha, beta in [(1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (0.5, -2.0)]:
        be.compound_dot(x, y, out, alpha, beta, bsum=be.empty((120, 1)))
        parent = be.zeros((200, 300))
        be.compound_dot(x, y, parent[20:140, 30:160], alpha, beta)
        be.compound_dot(y.T, x.T, parent[20:150, ::2][:, :120], alpha, beta)
    be.compound_dot(x, y, out, 1.0, 0.5, relu=True)
    square = be.ones((110, 110))
    be.compound_dot(square, square, square, 0.5)
    be.compound_dot(be.ones((1, 9)), be.ones((9, 1)), be.empty((1, 1)), 2.0, 1.0)


def stacks(be: Backend) -> None:
    A, B, C = be.array(array(100, 30)), be.array(array(7, 30, 110)), be.empty((7, 100, 110))
    for alpha, beta in [(1.0, 0.0), (0.5, 0.5)]:
        be.batched_dot(A, B, C, alpha, beta)
        be.batched_dot(A.T, C, be.empty((7, 30, 110)), alpha, beta)
        be.batched_dot(C, B.T, A, alpha, beta)
    (B.T @ B).astensor()
    be.einsum("ijk,lk->ijl", B, be.ones((5, 110))).astensor()


def recurrent(be: Backend) -> None:
    class Tanh:
        def __call__(self, x: Any) -> Any:
            return be.tanh(x)

        def bprop(self, x: Any) -> Any:
            return 1 - x * x

    steps, n = 3, 20
    W, b, h = be.ones((n, n)), be.ones((n, 1)), be.zeros((n, (steps + 1) * N))
    s = [h[:, k * N : (k + 1) * N] for k in range(steps + 1)]
    ff = be.ones((n, steps * N))
    f = [ff[:, k * N : (k + 1) * N] for k in range(steps)]
    for fprop in (be.compound_rnn_unroll_fprop, be.compound_rnn_unroll_fprop_bibnrnn):
        fprop(W, s[:-1], f, s[1:], b, n, steps, steps, Tanh())
    errors = be.ones((n, (steps + 1) * N))
    e = [errors[:, k * N : (k + 1) * N] for k in range(steps + 1)]
    for bprop in (be.compound_rnn_unroll_bprop, be.compound_rnn_unroll_bprop_bibnrnn):
        bprop(W, e[:-1], e[1:], s[1:], n, steps, steps, Tanh())
    be.add_fc_bias(h, b)
    be.update_fc_bias(h, b)
    be.xnor_compound_dot(W, W.T, be.empty((n, n)), beta=0.5)


def token_ids(be: Backend) -> None:
    x, y = be.array(array(20, 30)), be.array(array(20, 30) + 4)
    two = [be.add, be.subtract, be.multiply, be.divide, be.true_divide, be.power, be.equal, be.not_equal, be.less]
    for f in [*two, be.less_equal, be.greater, be.greater_equal]:
        f(x, y).astensor()
    one = [be.negative, be.fabs, be.sgn, be.exp2, be.log, be.finite, be.reciprocal, be.sig, be.sig2, be.tanh2, be.std]
    for f in one:
        f(y).astensor()
    be.evaluate([be.argmin(x, axis=0), be.broadcast_to(x[:1], (20, 30)), be.matmul(x, y.T), be.zeros_like(x) + 1])
    be.execute(OpTreeNode({"op": "assign", "shape": x.shape}, x, be.ones_like(x) * 2))
    be.plan(x * 2, out=x)
    be.kernel(x * 2, out=x)


def bookkeeping(be: Backend) -> None:
    be.bsz = N
    buffer = be.iobuf((3, 5))
    be.iobuf(be.shared_iobuf_size(8), shared=be.empty((40, N)))
    be.revert_tensor(be.distribute_data(buffer, "Data"))
    start, end = be.init_mark(), be.init_mark()
    for mark in (start, end):
        be.record_mark(mark)
        be.synchronize_mark(mark)
    be.get_time(start, end)
    be.begin(0, 0)
    be.end(0, 0)
    be.set_hist_buffers(32, -16)
    buffer.hist("buffer")
    be.rng_set_state(be.rng_get_state())
    be.rng_reset()
    be.gen_rng(3).normal(size=4)
    be.numpy_dtype("float32")
    be.reset_peak()


def tables(be: Backend) -> None:
    token_ids = be.array([[1, 2, 0, 1]], dtype="int32")
    W, error, dW = be.array(array(9, 5)), be.array(array(5, 4)), be.zeros((9, 5))
    be.take(W.T, token_ids, axis=1).astensor()
    be.onehot(token_ids, axis=0, nclass=9).astensor()
    be.compound_bprop_lut(1, token_ids, error, be.empty((4, 5)), dW, 0, 0.5, 0.5)
    be.take(W, [2, -1], axis=0).astensor()
    W.hist("W")
    be.dump_hist_data()


def order_and_linear_algebra(be: Backend) -> None:
    x = be.array(array(6, 4))
    for method in (be.cumulative_sum, be.cumulative_prod, be.sort, be.argsort, be.prod, be.tril, be.triu):
        method(x).astensor()
    be.searchsorted(be.sort(x[:1]), x).astensor()
    be.take_along_axis(x, be.argsort(x, axis=0), axis=0).astensor()
    a = be.dot(x.T, x) + be.tril(be.triu(be.ones((4, 4))))
    be.solve(a, x.T).astensor()
    be.pinv(x, 0.0).astensor()
    be.build("cofactors_backward", a, a).astensor()
    for op in OP_TABLE:
        if op.compute_dtypes and op.arity == 1:
            getattr(be, op.method)(a).astensor()


def convolutions(be: Backend) -> None:
    for C, K, H, pad, stride, more in [
        (3, 8, 9, 1, 1, {}),
        (20, 6, 11, 2, 2, {}),
        (64, 4, 8, 0, 1, {}),
        (17, 5, 12, 1, 3, {"dil_h": 2, "dil_w": 2}),
        (2, 3, 5, 1, 2, {"D": 4, "T": 2, "pad_d": 1, "str_d": 2}),
    ]:
        layer = be.conv_layer(
            "float32", N, C, K, H=H, W=H, R=3, S=3, pad_h=pad, pad_w=pad, str_h=stride, str_w=stride, **more
        )
        I, F, O = be.array(array(*layer.dimI)), be.array(array(*layer.dimF)), be.empty(layer.dimO)
        bias, bsum = be.ones((K, 1)), be.empty((K, 1))
        be.fprop_conv(layer, I, F, O, bias=bias, bsum=bsum, relu=True, slope=0.1)
        be.fprop_conv(layer, I, F, O, alpha=0.5, beta=2.0)
        be.bprop_conv(layer, F, O, be.empty(layer.dimI), alpha=0.5)
        be.bprop_conv(layer, F, O, I, beta=1.0)
        be.update_conv(layer, I, O, F, alpha=0.5, beta=0.5, grad_bias=bias)
        be.update_conv(layer, I, O, be.empty(layer.dimF[::-1]).permute((4, 3, 2, 1, 0)))
    be.set_caffe_compat()
    layer = be.deconv_layer("float32", N, 3, 8, P=be.output_dim(9, 3, 1, 2), Q=5, R=3, S=3, pad_h=1, pad_w=1, str_h=2)
    be.bprop_conv(layer, be.ones(layer.dimF), be.ones(layer.dimO), be.empty(layer.dimI))


def pools(be: Backend) -> None:
    for op in ("max", "avg", "l2"):
        layer = be.pool_layer("float32", op, N, 4, 1, 7, 9, R=3, S=3, pad_h=1, pad_w=1, str_h=2, str_w=2)
        I, O, D = be.array(array(*layer.dimI)), be.empty(layer.dimO), be.empty(layer.dimI)
        argmax = be.empty(layer.dimO, dtype="int32")
        for beta in (0.0, 0.5):
            be.fprop_pool(layer, I, O, argmax, beta)
            be.fprop_pool(layer, I, O, None, beta)
            be.bprop_pool(layer, I, O, D, 0.5, beta)
            if op == "max":
                be.bprop_pool(layer, O, D, argmax=argmax, beta=beta)
    layer = be.pool_layer("float32", "max", N, 4, J=2, str_c=2, H=6, W=6)
    be.fprop_pool(layer, be.ones(layer.dimI), be.empty(layer.dimO))


def image_trees(be: Backend) -> None:
    I, f = be.array(array(4, 7, 8, N)), be.array(array(4, 3, 3, 6))
    for options in ({}, {"padding": "same", "strides": 2}, {"padding": ((0, 1), (2, 0)), "dilation": 2}):
        e = be.conv(I, f, **options).astensor()
        assert be.deconv(e, f, groups=2).astensor().shape[0] == 8
        _ = [x.astensor() for x in Autodiff(be.conv(I, f, **options), be, e).get_grad_op_tree([I, f])]
    _ = be.conv(I, f[:2], groups=2).astensor()
    for op in ("max", "avg", "l2"):
        tree = be.pool(be.relu(I), 3, op, strides=2, padding=1)
        _ = Autodiff(tree, be, tree.astensor()).get_grad_op_tree([I])[0].astensor()
    _ = be.lrn(I, 5, 0.5, 0.75).astensor()


def normalizations(be: Backend) -> None:
    layer = be.lrn_layer("float32", N, 8, H=5, W=6, J=5)
    I, O, denom, D = (be.array(array(*layer.dimI)) for _ in range(4))
    be.fprop_lrn(layer, I, O, denom, None, None, 0.5, 0.75)
    be.bprop_lrn(layer, I, O, I, D, denom, 0.5, 0.5, 0.5, 0.75)
    x, y = be.array(array(20, 64)), be.empty((20, 64))
    columns = [be.ones((20, 1)) for _ in range(6)]
    be.compound_fprop_bn(x, *columns, y, 1e-3, 0.9, relu=True)
    grads = [be.empty((20, 1)) for _ in range(2)]
    be.compound_bprop_bn(y, *grads, y, x, columns[0], columns[1], columns[4], 1e-3)


def regions(be: Backend) -> None:
    rois = be.zeros((3, 5))
    I, O, argmax = be.ones((4, 6 * 6 * N)), be.empty((4 * 4, 3)), be.empty((4 * 4, 3), dtype="int32")
    be.roipooling_fprop(I, rois, O, argmax, 3, 4, 6, 6, 2, 2, 0.5)
    be.roipooling_bprop(O, rois, I, argmax, 3, 4, 6, 6, 2, 2, 0.5)


def draws(be: Backend) -> None:
    mask = be.empty((30, 40))
    be.make_binary_mask(mask, 0.4)
    be.fill_normal(mask, 1.0, 0.5)
    mask[:] = be.rand(30, 40) + be.randn(30, 40) * be.random_mask(30, 40)
    be.binarize(mask).astensor()
    mask[:] = be.streams.uniform("weights", (30, 40)) * 2 - 1
    mask[:] = be.streams.normal("weights", (30, 40), "float64")


def moves(be: Backend) -> None:
    x, y = be.array(array(12, 8)), be.empty((8, 12))
    y[:] = x.T
    be.copy_transpose(x, y)
    be.transpose(x, out=y)
    y[:] = array(8, 12)
    y.fill(2)
    be.concat([x, x], axis=1).astensor()
    be.stack([x, x]).astensor()
    x.set(np.ones((12, 8))).take([0, 1], 0)
    be.array(x), be.array(x + 1), copy.deepcopy([x[1:], x])
    (x + np.ones((12, 8))).asnumpyarray()
    total = x
    for k in range(150):
        total = total + be.array([[k]])
    x[:] = total
    repr(x), x._repr_html_(), np.asarray(x), x.get()
    list((x * 2 + 1).step())


def composites(be: Backend) -> None:
    x, column = be.array(np.arange(24.0).reshape(4, 6) / 9), be.ones((4, 1))
    for name in ("log_softmax", "logsumexp", "silu", "gelu", "elu", "leaky_relu", "softplus", "rms_norm"):
        getattr(be, name)(x).astensor()
    for name in ("layer_norm", "batch_norm", "shift_batch_norm", "group_norm", "instance_norm"):
        getattr(be, name)(x, column).astensor()
    be.attention(x, x, x, be.masked_softmax(x[:, :4], x[:, :4])).astensor()
    for name, rows in (("rnn", 2), ("lstm", 8), ("gru", 6)):
        h, *weights = (be.ones(shape) for shape in [(2, 3), (rows, 4), (rows, 2), (rows, 1)])
        sequence = be.ones((4, 6)), *weights, *[h] * (1 + (name == "lstm"))
        y = getattr(be, name)(*sequence, steps=2)
        y.astensor()
        if name == "lstm":
            be.evaluate([y, build_variadic(be, "lstm_state", y, *sequence, **y.attrs)])
    Autodiff(be.cross_entropy(x, be.softmax(x)), be).get_grad_tensor(x)


WORK = {
    f.__name__: f
    for f in (
        elementwise, reductions, large, several_targets, products, stacks, recurrent, token_ids, tables, convolutions,
        order_and_linear_algebra, pools, image_trees, normalizations, regions, draws, moves, bookkeeping, composites,
    )
}  # fmt: skip


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_dry_run_allocates_the_bytes_that_its_backend_does(
    be: Backend, threads: Any, work: Any, workers: int
) -> None:
    threads(workers)
    if work not in (large, convolutions) and workers > 1:
        return
    dry_run = be.dry_run()
    work(dry_run)
    work(be)
    assert_same_memory(be, dry_run.memory(), be.memory())
    assert dry_run.memory().peak > 0
    assert dry_run.rng_get_state() == be.rng_get_state()


def test_a_dry_run_agrees_after_each_piece_of_a_long_program(be: Backend, threads: Any) -> None:
    threads(2)
    dry_run = be.dry_run()
    for work in WORK.values():
        for each in (be, dry_run):
            work(each)
        assert_same_memory(be, dry_run.memory(), be.memory())
    if be.name in RUNTIMES_WITH_ARENA:
        assert all(be.memory()[1:])
    elif be.name not in ("gpu", "simulated"):
        assert be.memory()[1:3] == (0, 0)


def test_dry_runs_of_other_dtypes_agree_as_well(be64: Backend) -> None:
    dry_run = be64.dry_run()
    assert dry_run.default_dtype == np.float64
    for work in (elementwise, reductions, large, products, several_targets):
        for each in (be64, dry_run):
            work(each)
        assert dry_run.memory() == be64.memory()


def test_a_dry_run_is_like_its_backend_and_starts_without_allocations() -> None:
    be = Backend("cpu", rng_seed=7, default_dtype="float64", compat_mode="caffe", batch_size=5)
    be.rand(3, 3).astensor()
    x = be.ones((300, 300))
    be.softmax(x).astensor()
    for r in (be.dry_run(), be.dry_run().dry_run()):
        assert isinstance(r, Backend)
        assert r.name == r.device_type == be.name == "cpu"
        assert (r.bsz, r.default_dtype_name, r.compat_mode, r.runtime.dtypes) == (
            5,
            "float64",
            "caffe",
            be.runtime.dtypes,
        )
        assert r.rng_get_state() == be.rng_get_state()
        assert (r.memory(), r.flops) == ((0, 0, 0, 0), 0)
        assert repr(r).startswith("<dry run ")
    assert x.get().sum() == 90_000


def test_tensors_of_a_dry_run_are_zeros_and_do_not_mix_with_others(be: Backend) -> None:
    r = be.dry_run()
    x = r.ones((2, 3), dtype="int32", name="x")
    assert x.get().tolist() == np.asarray(x + 1).tolist() == [[0, 0, 0]] * 2
    assert x.get().dtype == np.int32
    assert "'x', (2, 3), int32" in repr(x)
    with pytest.raises(ValueError, match="expected operands of"):
        x + be.ones((2, 3))
    np.testing.assert_array_equal(be.array(x).get(), np.zeros((2, 3)))
    assert r.array(be.ones((2, 3))).get().sum() == 0


def test_the_mistakes_of_a_program_are_mistakes_of_its_dry_run(be: Backend) -> None:
    r = be.dry_run()
    for mistake, error in [
        (lambda be: be.ones((2, 3)) @ be.ones((2, 3)), ValueError),
        (lambda be: be.ones((2, 3)).__setitem__(slice(None), np.ones((4, 4))), ValueError),
        (lambda be: be.zeros((2, 2), dtype="complex64"), TypeError),
        (lambda be: be.array("word"), TypeError),
        (lambda be: be.array([[1, 2], [3]]), ValueError),
        (lambda be: (be.ones((2, 2), dtype="int8") + 1000).astensor(), OverflowError),
        (lambda be: be.make_binary_mask(be.ones((2, 2)), 1.5), ValueError),
        (lambda be: be.ones((2, 2))[5], IndexError),
        (lambda be: be.ones((4, 3)).T.reshape(2, 6), ValueError),
    ]:
        messages = []
        for each in (be, r):
            with pytest.raises(error) as caught:
                mistake(each)
            messages.append(str(caught.value).replace(repr(each), "be"))
        assert messages[0] == messages[1]
    r.cleanup_backend()
    with pytest.raises(RuntimeError, match="closed by cleanup_backend"):
        r.ones((2, 2))


def test_arrays_of_a_dry_run_are_joined_along_an_axis_from_either_end(be: Backend) -> None:
    x = be.dry_run().ones((2, 3)).storage
    for axis, shape in ((0, (4, 3)), (1, (2, 6)), (-1, (2, 6)), (-2, (4, 3))):
        assert x.__array_namespace__().concat([x, x], axis=axis).shape == shape


def test_operations_that_depend_on_values_are_rejected(be: Backend) -> None:
    r = be.dry_run()
    x = r.ones((4, 5))
    for act in (lambda: r.nms(x, 0.5), lambda: r.check_grad(x * 2)):
        with pytest.raises(RuntimeError, match=r"expected a backend with values, got <dry run"):
            act()
    with pytest.raises(BufferError, match="expected a tensor with memory, got one of a dry run"):
        np.from_dlpack(x)


def test_arrays_of_other_libraries_cost_nothing_in_a_dry_run_either(be: Backend) -> None:
    if be.name == "gpu":
        return
    a, r = array(40, 50), be.dry_run()
    for each in (be, r):
        t = each.from_dlpack(a[::2])
        t[1:] = t[:-1] * 2 + each.sum(t, axis=0)
        assert t.shape == (20, 50)
        assert each.memory().tensors == 0
    assert r.memory() == be.memory()


def test_a_dry_run_of_a_hundred_gigabytes_needs_a_few_megabytes(be: Backend) -> None:
    r = be.dry_run()
    tracemalloc.start()
    try:
        x = r.zeros((100_000, 100_000))
        y = r.dot(x, x).astensor()
        y[:] = r.softmax(x * 2, axis=0) + 1
        layer = r.conv_layer("float32", 128, 3, 64, H=600, W=600, R=3, S=3, pad_h=1, pad_w=1)
        O = r.fprop_conv(layer, r.zeros(layer.dimI), r.zeros(layer.dimF), r.zeros(layer.dimO))
        r.make_binary_mask(x, 0.5)
        x[:] = r.streams.normal("weights", x.shape)
        copied = copy.deepcopy(x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert x.nbytes == y.nbytes == copied.nbytes == 40_000_000_000
    assert O.nbytes == 64 * 600 * 600 * 128 * 4
    assert r.memory().tensors == 3 * x.nbytes + O.nbytes
    assert peak < 5_000_000


TESTED_ELSEWHERE = {"allocate_backend", "backend_choices", "cleanup_backend", "memory", "dry_run"}  # without tensors
TESTED_ELSEWHERE |= {
    "check_grad",
    "derivation",
    "nms",
    "from_dlpack",
    "define_op",
    "elementwise_kernel",
    "raw_kernel",
}  # separate tests
TESTED_ELSEWHERE |= {"batch_size", "replay", "device_memory"}


def test_every_public_method_is_called_in_a_dry_run(be: Backend) -> None:
    called = set()

    class RecordingBackend(Backend):
        def __getattribute__(self, name: str) -> Any:
            called.add(name)
            return super().__getattribute__(name)

    dry_run = RecordingBackend(be.dry_run().runtime, batch_size=be.bsz)
    for work in WORK.values():
        work(dry_run)
    members = inspect.getmembers(Backend, lambda x: inspect.isroutine(x) and not isinstance(x, MissingAttribute))
    public = {name for name, _ in members if not name.startswith("_")}
    public -= OPS.keys() - {op.name for op in OP_TABLE}  # those that doctests defined
    called |= {alias for name in called for alias in SYNONYMS.get(name, ())}
    assert public - called == TESTED_ELSEWHERE - called


def test_a_user_defined_op_exists_on_all_backends_and_runs_in_a_dry_run() -> None:
    r, ran = Backend("cpu").dry_run(), []
    method = r.define_op("seen", lambda xp, x: ran.append(1) or x + 1, None)
    try:
        assert method(r, r.ones((5, 5))).astensor().shape == (5, 5)
        assert (ran, r.flops) == ([], 25)
        assert hasattr(Backend, "seen")
    finally:
        del OPS["seen"], Backend.seen  # type: ignore[attr-defined]


# --- floating-point operations ---------------------------------------------------------------------------------------


def convolution_gradients(be: Backend) -> list[Any]:
    x, f = be.ones((3, 5, 5, N)), be.ones((3, 3, 3, 6))
    return Autodiff(be.conv(x, f), be).get_grad_op_tree([x, f])


FLOPS: dict[str, tuple[Callable[[Backend], Any], int]] = {
    "one for each element": (lambda be: (be.ones((30, 40)) * 2 + 1).astensor(), 2 * 1200),
    "of the result, when operands stretch": (lambda be: (be.ones((30, 1)) * be.ones((1, 40))).astensor(), 1200),
    "a part that is used twice counts once": (lambda be: ((x := be.exp(be.ones((5, 5)))) * x).astensor(), 50),
    "of the operand of a reduction": (lambda be: be.sum(be.ones((30, 40)), axis=0).astensor(), 1200),
    "softmax: max, less, exp, sum, divided": (lambda be: be.softmax(be.ones((30, 40))).astensor(), 5 * 1200),
    "casts, copies and views count nothing": (
        lambda be: be.astype(be.ones((30, 40)).T, "int32").astensor().copy(be.ones((40, 30))),
        0,
    ),
    "2 m n k for a product": (lambda be: be.dot(be.ones((3, 4)), be.ones((4, 5))).astensor(), 2 * 3 * 4 * 5),
    "of stacks": (lambda be: (be.ones((7, 3, 4)) @ be.ones((7, 4, 5))).astensor(), 7 * 2 * 3 * 4 * 5),
    "compound_dot, whatever alpha and beta": (
        lambda be: be.compound_dot(be.ones((3, 4)), be.ones((4, 5)), be.ones((3, 5)), 0.5, 0.5),
        2 * 3 * 4 * 5,
    ),
    "batched_dot": (
        lambda be: be.batched_dot(be.ones((3, 4)), be.ones((7, 4, 5)), be.ones((7, 3, 5)), 0.5, 0.5),
        7 * 2 * 3 * 4 * 5,
    ),
    "batched_dot, summed": (
        lambda be: be.batched_dot(be.ones((7, 3, 4)), be.ones((7, 5, 4)).T, be.ones((3, 5)), 0.5, 0.5),
        7 * 2 * 3 * 4 * 5,
    ),
    "a large product, which MKL takes": (
        lambda be: be.compound_dot(be.ones((200, 300)), be.ones((300, 400)), be.ones((200, 400)), 0.5, 0.5),
        2 * 200 * 300 * 400,
    ),
    "2 c r s for each pixel of a convolution": (
        lambda be: be.conv(be.ones((4, 5, 5, N)), be.ones((2, 3, 3, 6)), groups=2).astensor(),
        2 * 2 * 9 * 6 * 3 * 3 * N,
    ),
    "and of its gradients": (
        lambda be: [x.astensor() for x in convolution_gradients(be)],
        2 * 2 * 3 * 9 * 6 * 3 * 3 * N,
    ),
    "scatter_add: an addition for each": (
        lambda be: be.build("scatter_add", be.ones((6, 5)), be.zeros((6, 1), dtype="int32"), axis=0, size=3).astensor(),
        30,
    ),
}


@pytest.mark.parametrize(("work", "flops"), FLOPS.values(), ids=FLOPS)
def test_flops_are_counted(be: Backend, work: Any, flops: int) -> None:
    r = be.dry_run()
    work(r)
    assert r.flops == flops
    work(r)
    assert r.flops == 2 * flops


@pytest.mark.parametrize("C", [3, 64])
def test_a_convolution_counts_its_products(be: Backend, C: int) -> None:
    r, K, side = be.dry_run(), 8, 6
    layer = r.conv_layer("float32", N, C, K, H=side, W=side, R=3, S=3, pad_h=1, pad_w=1)
    I, F, O = r.zeros(layer.dimI), r.zeros(layer.dimF), r.zeros(layer.dimO)
    r.fprop_conv(layer, I, F, O)
    assert r.flops == 2 * K * C * 9 * side * side * N
    r.update_conv(layer, I, O, F)
    assert r.flops == 2 * 2 * K * C * 9 * side * side * N


def test_flops_are_counted_in_all_threads(cpu: Backend) -> None:
    r = cpu.dry_run()
    x = r.ones((30, 40))

    def work() -> None:
        for _ in range(50):
            r.compound_dot(x, x.T, r.empty((30, 30)), 0.5, 0.5)
            (x + 1).astensor()

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert r.flops == 300 * (2 * 30 * 30 * 40 + 1200)
