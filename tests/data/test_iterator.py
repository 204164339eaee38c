"""Tests of ArrayIterator: minibatches, order, values, resuming, errors."""

from __future__ import annotations

import json
from itertools import islice, pairwise

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.minibatches import bits, epoch, in_order, indices, joined, rows, textbook_order
from helpers.runtimes import RUNTIMES

import neonlite as nl
from neonlite.data import ArrayIterator, Flip, NervanaDataIterator, Shift
from neonlite.data.minibatches import Epoch, permutation

SIZES = [(10, 4), (8, 4), (5, 5), (7, 3), (9, 8), (4, 1), (13, 5)]
sizes = pytest.mark.parametrize(("n", "N"), SIZES)


# --- which rows ----------------------------------------------------------------------------------------------------


def test_a_minibatch_is_the_rows_as_columns_with_one_hot_labels(be):
    be.bsz = 4
    X, y = rows(8, 3), np.array([2, 0, 1, 2, 2, 1, 0, 0])
    it = ArrayIterator(X, y, nclass=3)
    assert (it.ndata, it.nbatches, it.shape, it.nclass, it.be) == (8, 2, 3, 3, be)
    for k, (x, t) in enumerate(it):
        here = slice(4 * k, 4 * k + 4)
        np.testing.assert_array_equal(x.get(), X[here].T)
        np.testing.assert_array_equal(t.get(), [[label == c for label in y[here]] for c in range(3)])
        assert x.info.dtype == t.info.dtype == "float32"
    assert k == 1


@sizes
def test_the_last_minibatch_wraps_around_and_the_next_epoch_starts_after_it(cpu, n, N):
    cpu.bsz = N
    it = ArrayIterator(rows(n), np.arange(n), nclass=n)
    for e, expected in enumerate(in_order(n, N, 7)):
        assert it.nbatches == len(expected)
        assert it.start == expected[0][0]
        assert it.epoch == e
        for (x, t), row_indices in zip(it, expected, strict=True):
            assert indices(x) == row_indices == t.get().argmax(axis=0).tolist()


def test_wrapping_around_works_on_every_runtime(be):
    be.bsz = 4
    it = ArrayIterator(rows(10), shuffle=False)
    assert [epoch(it) for _ in range(3)] == in_order(10, 4, 3)


@sizes
def test_each_shuffled_row_comes_once_before_any_repeats(cpu, n, N):
    cpu.bsz = N
    it = ArrayIterator(rows(n), np.arange(n), nclass=n, shuffle=True)
    stream, lengths = [], []
    for _ in range(6):
        result = []
        for x, t in it:
            assert indices(x) == t.get().argmax(axis=0).tolist()
            result += indices(x)
        stream += result
        lengths.append(len(result) // N)
    assert lengths == [len(e) for e in in_order(n, N, 6)]
    passes = [stream[i : i + n] for i in range(0, len(stream) - n + 1, n)]
    assert len(passes) >= 4
    assert all(sorted(order) == list(range(n)) for order in passes)
    assert n < 7 or all(a != b for a, b in pairwise(passes))


def test_the_order_of_an_epoch_is_that_of_the_formula(be):
    be.bsz = 5
    it = ArrayIterator(rows(10), shuffle=True)
    for number in range(3):
        assert joined(epoch(it)) == textbook_order(1, number, 10)


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_order_is_the_same_on_every_runtime_and_another_for_another_seed(name):
    be = nl.gen_backend(name, rng_seed=7, batch_size=6)
    assert joined(epoch(ArrayIterator(rows(6), shuffle=True))) == textbook_order(7, 0, 6)
    be.gen_rng(8)
    assert joined(epoch(ArrayIterator(rows(6), shuffle=True))) != textbook_order(7, 0, 6)


def test_data_and_random_streams_do_not_advance_each_other(cpu):
    cpu.bsz = 4
    images = np.zeros((10, 1, 2, 2), np.uint8)
    state = cpu.rng_get_state()
    it = ArrayIterator(rows(10), shuffle=True)
    first = epoch(it)
    list(ArrayIterator(images, augment=Flip()))
    assert cpu.rng_get_state() == state
    cpu.streams.permutation("data", 1000)
    assert epoch(ArrayIterator(rows(10), shuffle=True)) == first


@sizes
def test_a_partial_last_minibatch_is_smaller_and_the_next_epoch_starts_at_row_0(cpu, n, N):
    cpu.bsz = N
    for shuffle in (False, True):
        it = ArrayIterator(rows(n), np.arange(n), nclass=n, partial_last=True, shuffle=shuffle)
        for number in range(3):
            order = textbook_order(1, number, n) if shuffle else list(range(n))
            result = [(indices(x), t.get().argmax(axis=0).tolist()) for x, t in it]
            assert result == [(order[i : i + N], order[i : i + N]) for i in range(0, n, N)]
            assert it.start == 0
            assert it.nbatches == len(result)


def test_with_partial_last_there_may_be_fewer_rows_than_a_minibatch(be):
    be.bsz = 8
    ((x, t),) = ArrayIterator(rows(3), [0, 1, 1], nclass=2, partial_last=True)
    assert (x.shape, t.shape, indices(x)) == ((2, 3), (2, 3), [0, 1, 2])


def test_the_tensors_are_reused(be):
    be.bsz = 4
    wrapped, partial_last = ArrayIterator(rows(10), np.zeros(10, int), 1), ArrayIterator(rows(10), partial_last=True)
    pairs = [pair for _ in range(3) for pair in wrapped]
    assert len({id(x) for x, _ in pairs}) == len({id(t) for _, t in pairs}) == 1
    by_width = [(x.shape[1], id(x)) for _ in range(3) for x, _ in partial_last]
    assert len(set(by_width)) == 2


def test_each_batch_size_has_its_own_tensors(cpu):
    cpu.bsz = 4
    it = ArrayIterator(rows(8))
    (first, _), *_ = it
    cpu.bsz = 2
    assert epoch(it) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    cpu.bsz = 4
    (again, _), *_ = it
    assert again is first
    assert it.nbatches == 2


# --- which values --------------------------------------------------------------------------------------------------


def test_without_targets_the_targets_are_the_inputs(be):
    be.bsz = 2
    for x, t in ArrayIterator(rows(4)):
        assert t is x


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "float16", "float32", "float64", "bool", ">i4", "uint16"])
def test_data_of_any_dtype_is_cast_to_the_default_dtype(be, dtype, shuffle):
    be.bsz = 3
    X = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype) * np.dtype(dtype).type(1)
    ((x, _),) = ArrayIterator(X, shuffle=shuffle)
    order = textbook_order(1, 0, 3) if shuffle else [0, 1, 2]
    assert x.info.dtype == "float32"
    np.testing.assert_array_equal(x.get(), np.array([[0, 1], [1, 1], [1, 0]], np.float32)[order].T)


def test_minibatches_have_the_default_dtype_of_their_backend(be64):
    be64.bsz = 2
    ((x, t),) = ArrayIterator(np.array([[1 / 3], [0.1]]), [0, 1], nclass=2)
    assert x.info.dtype == t.info.dtype == "float64"
    np.testing.assert_array_equal(x.get(), [[1 / 3, 0.1]])


def test_uint8_inputs_are_scaled(be):
    be.bsz = 2
    X = np.array([[0, 255], [51, 102]], np.uint8)
    for scale, factor, offset in ((1 / 255, 1 / 255, 0), ((2 / 255, -1), 2 / 255, -1)):
        it = ArrayIterator(X, [1, 0], nclass=2, scale=scale)
        for _ in range(2):
            ((x, t),) = it
            np.testing.assert_allclose(x.get(), X.T * factor + offset, rtol=1e-6)
            np.testing.assert_array_equal(t.get(), [[0, 1], [1, 0]])


def test_data_may_be_lists_tensors_views_or_images(be):
    be.bsz = 2
    values = np.arange(24.0).reshape(4, 6)
    images = values.reshape(4, 1, 2, 3)
    arrays = [
        (values.tolist(), {}, 6),
        ([*values], {}, 6),
        ([values], {}, 6),
        (be.array(values), {}, 6),
        (np.asfortranarray(values), {}, 6),
        (np.repeat(values, 2, axis=1)[:, ::2], {}, 6),
        (images, {}, (1, 2, 3)),
        (values, {"lshape": (1, 2, 3)}, (1, 2, 3)),
        (values, {"lshape": [3, 2, 1]}, (3, 2, 1)),
        (values, {"lshape": 6}, 6),
        (images, {"lshape": (6,)}, 6),
        (images[:, 0], {"lshape": (1, 2, 3)}, (1, 2, 3)),
    ]
    for X, options, shape in arrays:
        it = ArrayIterator(X, **options)
        assert it.shape == shape
        result = np.concatenate([x.get() for x, _ in it], axis=1)
        np.testing.assert_array_equal(result, values.T)


def test_with_time_steps_column_t_times_N_plus_n_is_step_t_of_row_n(be):
    be.bsz = 2
    X, y = np.arange(24.0).reshape(4, 2, 3), np.arange(60.0).reshape(4, 5, 3)
    it = ArrayIterator(X, y, lshape=(2, 3), make_onehot=False)
    assert it.shape == (2, 3)
    for k, (x, t) in enumerate(it):
        assert (x.shape, t.shape) == ((2, 6), (5, 6))
        for step in range(3):
            for n in range(2):
                np.testing.assert_array_equal(x.get()[:, step * 2 + n], X[2 * k + n, :, step])
                np.testing.assert_array_equal(t.get()[:, step * 2 + n], y[2 * k + n, :, step])


def test_several_arrays_give_several_inputs(be):
    be.bsz = 2
    X = [rows(5, 2), rows(5, 3).astype("float64"), np.ones((5, 1, 2, 2))]
    it = ArrayIterator(X, np.arange(5), nclass=5, shuffle=True)
    assert it.shape == [2, 3, (1, 2, 2)]
    for x, t in it:
        assert isinstance(x, list)
        assert [a.shape for a in x] == [(2, 2), (3, 2), (4, 2)]
        assert indices(x[0]) == indices(x[1]) == t.get().argmax(axis=0).tolist()
    both = ArrayIterator([X[0], X[0]], lshape=(1, 2, 1))
    assert both.shape == [(1, 2, 1)] * 2
    arrays = ArrayIterator((X[0], X[2]), lshape=[(2, 1, 1), 4])
    assert arrays.shape == [(2, 1, 1), 4]
    x, t = next(iter(arrays))
    assert t is x


def test_targets_are_unchanged_without_one_hot(be):
    be.bsz = 2
    X = rows(4)
    for y, expected in [
        (np.array([3.5, -1, 0, 2]), [[3.5, -1, 0, 2]]),
        (np.array([[3], [9], [0], [2]]), [[3, 9, 0, 2]]),
        ([7, 8, 9, 10], [[7, 8, 9, 10]]),
        (np.arange(12).reshape(4, 3), np.arange(12).reshape(4, 3).T),
    ]:
        it = ArrayIterator(X, y, nclass=3, make_onehot=False)
        assert it.nclass == 3
        np.testing.assert_array_equal(np.concatenate([t.get() for _, t in it], axis=1), expected)


def test_labels_are_n_or_n_by_1_and_of_any_integer_dtype(be):
    be.bsz = 3
    for y in ([2, 0, 1], [[2], [0], [1]], np.array([2, 0, 1], "uint8"), be.array([2, 0, 1], dtype="int32")):
        ((_, t),) = ArrayIterator(rows(3), y, nclass=np.int64(4))
        np.testing.assert_array_equal(t.get(), np.eye(4)[:, [2, 0, 1]])


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"partial_last": True}], ids=str)
def test_data_on_a_device_gives_the_same_bits(be, options, monkeypatch):
    be.bsz = 4
    arrays = [rows(10), rows(10).astype("uint8"), np.arange(20, dtype=np.uint32).reshape(10, 2)]

    def everything():
        result = []
        for X in arrays:
            for y in (np.arange(10) % 3, None):
                it = ArrayIterator([X, X], y, nclass=3, scale=0.5, **options)
                result += [[*bits(x), *(bits(t) if y is None else bits([t]))] for _ in range(3) for x, t in it]
        return result

    on_host = everything()
    monkeypatch.setattr(be.runtime, "numpy_view", lambda array: (_ for _ in ()).throw(BufferError()))
    it = ArrayIterator(arrays[0])
    arrays[0] += 100  # data on a device is a copy
    assert indices(next(iter(it))[0]) == [0, 1, 2, 3]
    arrays[0] -= 100
    monkeypatch.setattr(type(be), "write", reject_writes_in_the_loop(be, arrays))
    assert everything() == on_host


def reject_writes_in_the_loop(be, arrays):
    """Return ``be.write``, which copies arrays to tensors, with a check that data on a device is not copied again."""
    write = type(be).write

    def wary(self, target, value):
        assert isinstance(value, nl.Tensor | int | float), "an array is copied to the device for each minibatch"
        write(self, target, value)

    return wary


def test_data_is_not_copied_on_the_host(cpu):
    cpu.bsz = 2
    X = rows(4)
    it = ArrayIterator(X)
    X += 4
    assert epoch(it) == [[4, 5], [6, 7]]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "scale": 0.5}], ids=str)
def test_a_minibatch_allocates_no_large_arrays(cpu, options):
    cpu.bsz = 128
    it = ArrayIterator(np.zeros((512, 100), np.uint8), np.zeros((512, 3)), make_onehot=False, **options)
    list(it)
    loop = iter(it)
    next(loop)
    assert buffers(lambda: next(loop)) == []


# --- resuming --------------------------------------------------------------------------------------------------


def create_iterator(be, **options):
    be.bsz = 4
    return ArrayIterator(rows(10).reshape(10, 1, 1, 2), np.arange(10), nclass=10, **options)


OPTIONS = [
    {},
    {"shuffle": True},
    {"partial_last": True, "shuffle": True},
    {"shuffle": True, "augment": [Flip(), Shift(1)]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_iterator_resumes_after_every_minibatch_with_the_same_bits(options):
    it = create_iterator(nl.gen_backend("cpu", rng_seed=3), **options)
    whole, states = [], [it.get_state()]
    for _ in range(4):
        for pair in it:
            whole.append(bits(pair))
            states.append(it.get_state())
    for k, state in enumerate(states):
        other = create_iterator(nl.gen_backend("cpu", rng_seed=99), **options)
        other.set_state(json.loads(json.dumps(state)))
        assert other.get_state() == state
        result = [bits(pair) for _ in range(5) for pair in other]
        assert result[: len(whole) - k] == whole[k:]
        assert len(result) > len(whole) - k


def test_an_abandoned_loop_resumes_by_its_state_and_restarts_without(be):
    it = create_iterator(be, shuffle=True)
    first = epoch(it)
    assert first != epoch(it)
    second = in_second = []
    for k, (x, _) in enumerate(it):
        second = [*second, indices(x)]
        if k == 1:
            break
    state = it.get_state()
    assert (state["epoch"], state["minibatch"]) == (2, 2)
    in_second = epoch(it)
    assert in_second[:2] == second
    it.set_state(state)
    assert second + epoch(it) == in_second
    assert it.epoch == 3


def test_a_state_after_the_last_minibatch_leaves_an_empty_rest_of_the_epoch(cpu):
    it = create_iterator(cpu, shuffle=True)
    list(islice(it, it.nbatches))
    state = it.get_state()
    assert state["minibatch"] == it.nbatches == 3
    following = epoch(create_iterator(cpu, shuffle=True)), None
    it.set_state(state)
    assert epoch(it) == []
    assert (it.epoch, it.start) == (1, 2)
    assert following


def test_reset_returns_to_the_first_row_and_keeps_the_epoch_count(be):
    it = create_iterator(be, shuffle=True)
    first = epoch(it)
    assert it.start == 2
    it.reset()
    assert (it.start, it.epoch) == (0, 1)
    assert epoch(it) != first
    plain = create_iterator(be)
    list(plain)
    next(iter(plain))
    plain.reset()
    assert epoch(plain) == in_order(10, 4, 1)[0]


def test_a_state_of_another_iterator_is_rejected_and_leaves_this_one_unchanged(cpu):
    it = create_iterator(cpu, shuffle=True)
    state = it.get_state()
    wrong = [
        ({"ndata": 11}, "ndata = 11, here 10"),
        ({"batch_size": 5}, "batch_size = 5, here 4"),
        ({"shuffle": False}, "shuffle = False, here True"),
        ({"partial_last": True}, "partial_last = True, here False"),
        ({"seed": None}, "seed = None, here 1"),
        ({"epoch": -1}, "integers within the data"),
        ({"epoch": 1.0}, "integers within the data"),
        ({"seed": "1"}, "integers within the data"),
        ({"start": 10}, "within the data"),
        ({"minibatch": 4}, "within the data"),
        ({"more": 1}, "dict of get_state"),
    ]
    for change, words in wrong:
        with pytest.raises(ValueError, match=words):
            it.set_state({**state, **change})
    for nothing in (None, {}, [1]):
        with pytest.raises(ValueError, match="dict of get_state"):
            it.set_state(nothing)
    assert it.get_state() == state


# --- errors --------------------------------------------------------------------------------------------------------

X = rows(6)
Y = np.arange(6) % 3
REFUSED = [
    (lambda: ArrayIterator([]), ValueError, r"at least one row, got \(0,\)"),
    (lambda: ArrayIterator(np.zeros((0, 3))), ValueError, r"at least one row, got \(0, 3\)"),
    (lambda: ArrayIterator(np.zeros(5)), ValueError, r"got \(5,\). Use X\[None\] for one row"),
    (
        lambda: ArrayIterator(X[:3]),
        ValueError,
        "at most 3, the number of rows, got 4. Set be.bsz = 3 or less",
    ),
    (lambda: ArrayIterator(X, Y[:5], 3), ValueError, "the same number of rows everywhere; X has 6, y has 5"),
    (lambda: ArrayIterator(X, Y[:5], make_onehot=False), ValueError, "X has 6, y has 5"),
    (lambda: ArrayIterator([X, X[:5]], Y, 3), ValueError, r"X\[0\] has 6, X\[1\] has 5, y has 6"),
    (lambda: ArrayIterator([X] * 9, np.arange(9), 9), ValueError, r"np.stack\(images\)"),
    (lambda: ArrayIterator(X, Y), AttributeError, "nclass=10 for example, or make_onehot=False"),
    (lambda: ArrayIterator(X, Y, nclass=2), ValueError, "from 0 to 1, as nclass=2, got 2 in row 2"),
    (lambda: ArrayIterator(X, Y - 1, nclass=3), ValueError, "got -1 in row 0"),
    (lambda: ArrayIterator(X, Y, nclass=0), ValueError, "expected an integer >= 1 for nclass, got 0"),
    (lambda: ArrayIterator(X, Y, nclass=3.0), TypeError, "got 3.0"),
    (lambda: ArrayIterator(X, Y + 0.5, nclass=3), ValueError, r"got float64. Convert them by y.astype\(int\)"),
    (lambda: ArrayIterator(X, Y * np.nan, nclass=3), ValueError, "got float64 with NaN"),
    (
        lambda: ArrayIterator(X, [1, 2, np.nan, 0, 0, np.nan], make_onehot=False),
        ValueError,
        "y: expected finite values, got nan in row 2, column 0",
    ),
    (lambda: ArrayIterator(X, np.eye(3, dtype=int)[Y], nclass=3), ValueError, r"\(6, 3\). .* make_onehot=False"),
    (lambda: ArrayIterator(X, np.zeros((6, 1, 1, 1)), make_onehot=False), ValueError, r"got \(6, 1, 1, 1\)"),
    (
        lambda: ArrayIterator(X, lshape=(1, 2, 2)),
        ValueError,
        r"2 features, .* \(6, 2\) has, got lshape=\(1, 2, 2\)",
    ),
    (lambda: ArrayIterator(X, lshape=(2, 1.0)), ValueError, "lshape to be a shape of 2 features"),
    (lambda: ArrayIterator(X, lshape=(-1, -2)), ValueError, "lshape to be a shape of 2 features"),
    (lambda: ArrayIterator(X, lshape=()), ValueError, "lshape to be a shape of 2 features"),
    (lambda: ArrayIterator([X, X], lshape=[2, 2, 2]), ValueError, "lshape to be a list of 2 shapes"),
    (lambda: ArrayIterator([X, X], lshape=[2, 3]), ValueError, "a shape of 2 features, .* got lshape=3"),
    (
        lambda: ArrayIterator(np.zeros((6, 2, 3))),
        ValueError,
        r"lshape=\(1, 2, 3\) for images .* \(2, 3\) for 2 features",
    ),
    (lambda: ArrayIterator([[1.0], [1.0, 2.0]]), ValueError, "rows of X to have one length"),
    (lambda: ArrayIterator([["a", "b"]] * 6), TypeError, "X to be a numeric array"),
    (lambda: ArrayIterator(X, ["cat"] * 6, 3), TypeError, "y to be a numeric array"),
    (lambda: ArrayIterator(X, scale="1"), TypeError, "expected a number for scale"),
    (lambda: ArrayIterator(X, scale=(1, np.inf)), ValueError, "expected a finite number for .*offset of scale"),
]


@pytest.mark.parametrize(("make", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_invalid_data_is_rejected_with_a_hint(cpu, make, error, words):
    cpu.bsz = 4
    with pytest.raises(error, match=words):
        make()


def test_the_batch_size_may_be_set_later_and_is_then_checked(be):
    it = ArrayIterator(rows(6), name="train")
    with pytest.raises(
        ValueError, match=r"train: expected a batch size, got none. Set it with gen_backend\(batch_size=N\)"
    ):
        print(it.nbatches)
    be.bsz = 7
    with pytest.raises(ValueError, match="train: expected a batch size of at most 6, the number of rows, got 7"):
        next(iter(it))
    be.bsz = 3
    assert epoch(it) == [[0, 1, 2], [3, 4, 5]]


def test_a_custom_iterator_defines_its_minibatches(cpu):
    class Noise(NervanaDataIterator):
        def __init__(self):
            super().__init__()
            self.nbatches, self.ndata, self.shape = 2, 8, 3

        def __iter__(self):
            for _ in range(self.nbatches):
                x = self.be.ones((3, 4))
                yield x, x

    noise = Noise()
    noise.reset()
    assert len(list(noise)) == noise.nbatches
    assert noise.name == "Noise_0"
    assert noise.be is cpu
    with pytest.raises(NotImplementedError, match="NervanaDataIterator: expected a method __iter__ that"):
        next(iter(NervanaDataIterator()))


def test_an_iterator_keeps_the_backend_that_it_was_created_on():
    first = nl.Backend("cpu", batch_size=2)
    nl.NervanaObject.be = first
    it = ArrayIterator(rows(4), name="mine")
    nl.NervanaObject.be = nl.Backend("cpu", batch_size=4)
    assert it.be is first
    assert it.name == "mine"
    assert epoch(it) == [[0, 1], [2, 3]]


def test_the_cached_order_of_an_epoch_cannot_be_written():
    before = permutation(3, 1, 10).copy()
    epoch = Epoch(1, 0, 10, 4, partial_last=False, seed=3)
    for order in (permutation(3, 1, 10), epoch.spans(0)[0][1], epoch.spans(2)[1][1]):
        with pytest.raises(ValueError, match="read-only"):
            order[0] = 5
    np.testing.assert_array_equal(permutation(3, 1, 10), before)


# --- numbers that are not finite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("shape", "position", "words"),
    [
        ((7, 3), (5, 2), "row 5, column 2"),
        ((400_000, 3), (399_999, 0), "row 399999, column 0"),  # beyond the first block
        ((2, 600_000), (1, 599_999), "row 1, column 599999"),
        ((4, 2, 3, 3), (3, 1, 0, 2), r"row 3, column \(1, 0, 2\)"),
    ],
)
def test_nonfinite_inputs_are_named_by_row_and_column(cpu, value, shape, position, words):
    cpu.bsz = 2
    X = np.ones(shape, np.float32)
    X[position] = value
    with pytest.raises(
        ValueError, match=rf"rows: X: expected finite values, got {value} in {words}. .*check_finite=False skips"
    ):
        ArrayIterator(X, name="rows")
    with pytest.raises(ValueError, match=rf"rows: X\[1\]: expected finite values, got {value} in {words}"):
        ArrayIterator([np.ones(shape), X], name="rows")
    with pytest.raises(ValueError, match=words):
        ArrayIterator(np.asfortranarray(X))
    ArrayIterator(X, check_finite=False)


def test_nonfinite_targets_and_series_are_named(cpu):
    cpu.bsz = 2
    X, y = np.ones((6, 3)), np.ones((6, 2))
    y[4, 1] = np.inf
    with pytest.raises(ValueError, match="y: expected finite values, got inf in row 4, column 1"):
        ArrayIterator(X, y, make_onehot=False)
    ArrayIterator(X, y, make_onehot=False, check_finite=False)
    with pytest.raises(ValueError, match="X: expected finite values, got inf in row 4, column 1"):
        nl.data.TimeSeries(y, 2)
    nl.data.TimeSeries(y, 2, check_finite=False)


@pytest.mark.parametrize(("name", "dtype"), [("cpu", "float16"), ("torch", "float16"), ("torch", "bfloat16")])
@pytest.mark.parametrize("check_finite", [True, False])
def test_inputs_are_scaled_before_they_are_cast_to_16_bits(name, dtype, check_finite):
    for module in ("torch", "ml_dtypes") if name == "torch" else ():
        pytest.importorskip(module)
    nl.gen_backend(name, batch_size=2, datatype=dtype)
    X = np.array([[65_535, 0], [65_534, 32_768]], np.uint16)
    ((x, _),) = ArrayIterator(X, scale=1 / 65_535, check_finite=check_finite)
    np.testing.assert_allclose(x.get().astype(float), X.T / 65_535, rtol=2**-8)
    if dtype == "float16":
        with pytest.raises(ValueError, match="got 255 in row 0, column 1, infinite in float16 after scaling"):
            ArrayIterator(np.array([[1, 255]], np.uint8), scale=1000)


@pytest.mark.parametrize(
    ("dtype", "array", "words"),
    [
        ("float32", np.array([[1.0], [1e39]]), "got 1e[+]39 in row 1, column 0, infinite in float32"),
        ("float16", np.array([[1], [70_000]]), "got 70000 in row 1, column 0, infinite in float16"),
        ("float64", np.array([[1.0], [1e39]]), None),
        ("float32", np.array([[1], [2**40]]), None),
    ],
)
def test_a_value_beyond_the_range_of_the_dtype_is_named(dtype, array, words):
    nl.gen_backend("cpu", batch_size=2, datatype=dtype)
    if words is None:
        ArrayIterator(array)
    else:
        with pytest.raises(ValueError, match=words):
            ArrayIterator(array)


# --- two loops -------------------------------------------------------------------------------------------------------


def test_two_loops_over_one_iterator_at_a_time_are_an_error(cpu):
    cpu.bsz = 4
    message = "expected one loop at a time, got another one during minibatch 0"
    it = ArrayIterator(rows(12), shuffle=True)
    with pytest.raises(RuntimeError, match=message):
        [_ for _ in it for _ in it]
    with pytest.raises(RuntimeError, match=message):
        list(zip(it, it, strict=True))
    for _ in it:  # a loop that was left early is no other loop
        break
    assert len(epoch(it)) == 3


def test_a_loop_whose_position_is_restored_continues(cpu):
    cpu.bsz = 4
    it, alone = (ArrayIterator(rows(12), shuffle=True) for _ in range(2))
    for _ in range(2):
        expected, seen = epoch(alone), []
        for x, _ in it:
            seen.append(indices(x))
            state = it.get_state()
            for _ in it:
                pass
            it.set_state(state)
        assert seen == expected
