"""Compiled functions: values, assignments, arguments, errors, methods, threads and failures."""

from __future__ import annotations

import copy
import functools
import pickle
import signal
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
from helpers.runtimes import new_backend

import neonlite as nl
from neonlite.initializers import Gaussian
from neonlite.layers import Activation, BatchNorm, Dropout, Linear, Sequential
from neonlite.optimizers import GradientDescentMomentum
from neonlite.programs import MAX_PROGRAMS
from neonlite.transforms import Rectlin


class Pair(NamedTuple):
    first: object
    second: object


@nl.jit
def squared_distance(x, y):
    return nl.Backend.sum(x.backend, (x - y) * (x - y))


# --- values and assignments ------------------------------------------------------------------------------------------


def test_a_function_is_traced_once_for_each_structure_of_its_arguments(be):
    calls = []

    @nl.jit
    def f(x, n):
        calls.append(x.shape)
        return x * n

    for n in (2.0, 3.0, -0.0):
        assert f(be.ones((1, 2)), n).get().tolist() == [[n, n]]
    assert f(be.ones((1, 2)), 4).get().tolist() == [[4, 4]]  # an integer is a part of the structure
    assert f(be.ones((2, 1)), 2.0).shape == (2, 1)
    assert calls == [(1, 2), (1, 2), (2, 1)]
    assert len(f.programs) == 3
    assert "(2, 1)" in f.programs[-1][0]
    assert "stage" in str(f.programs[0][1])
    f.clear()
    assert f.programs == []
    f(be.ones((1, 2)), 2.0)
    assert len(calls) == 4


def test_the_cache_of_programs_is_bounded(cpu):
    f = nl.jit(lambda x, n: x + n)
    for n in range(2 * MAX_PROGRAMS):
        assert f(cpu.ones((1, 1)), n).get() == 1 + n
    assert MAX_PROGRAMS // 2 <= len(f.programs) <= MAX_PROGRAMS


def numpy_swap(a, b):
    a, b = a.copy(), b.copy()
    a[:], b[:] = b.copy(), a.copy()
    return a, b, a - b


def swap(a, b, be):
    be.assign([a, b], [b, a])
    return a - b


def numpy_twice(a, b):
    a = a + 1
    a = a * b
    return a, b, a + a


def twice(a, b, be):
    a[:] = a + 1
    a[:] = a * b
    return a + a


def numpy_read_between(a, b):
    old = a * 2
    a = a + b
    b = a - old
    return a, b, old + a + b


def read_between(a, b, be):
    old = a * 2
    a[:] = a + b
    b[:] = a - old
    return old + a + b


def numpy_views(a, b):
    a = a * 3
    return a, b, a[:1] @ b.T + a.reshape(3, 2)[2:, :1]


def views(a, b, be):
    a[:] = a * 3
    return be.dot(a[:1], b.T) + a.reshape(3, 2)[2:, :1]


def numpy_flat(a, b):
    a = np.arange(6.0).reshape(2, 3)
    return a, b, a.T


def flat(a, b, be):
    a.reshape(1, 6)[:] = np.arange(6.0)
    return a.T


def numpy_numbers(a, b):
    return np.full((2, 3), 2.5), np.broadcast_to([1.0, 2.0, 3.0], (2, 3)), np.full((2, 3), 3.5)


def numbers(a, b, be):
    a[:] = 2.5
    b[:] = [1, 2, 3]
    return a + 1


CASES = {f.__name__: (f, globals()[f"numpy_{f.__name__}"]) for f in (swap, twice, read_between, views, flat, numbers)}


@pytest.mark.parametrize("name", CASES)
def test_assignments_are_made_in_the_order_of_the_function(be, rng, name):
    traced, expected = CASES[name]
    A, B = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    a, b = be.array(A), be.array(B)
    f = nl.jit(lambda: traced(a, b, be))
    A, B = a.get(), b.get()
    for _ in range(3):  # each run reads what the one before has written
        result = f()
        A, B, Z = expected(A, B)
        for x, y in ((a, A), (b, B), (result, Z)):
            np.testing.assert_allclose(x.get(), y, rtol=1e-5, atol=1e-5)


def test_parts_of_one_memory_are_assigned_in_any_order(be, rng):
    expected, order = rng.normal(size=(20, 2)), rng.permutation(40) % 20
    w = be.array(expected)
    rows = [w[i : i + 1] for i in range(20)]

    def assign_rows():
        for i in order:
            rows[i][:] = rows[i] + 2 * w[(7 * i) % 20 : (7 * i) % 20 + 1]
        return rows[3] * 2

    result = nl.jit(assign_rows)()
    for i in order:
        expected[i] += 2 * expected[(7 * i) % 20]
    np.testing.assert_allclose(w.get(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.get(), expected[3:4] * 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", [slice(3, 5), slice(4, 6), slice(2, 7), slice(0, 20)])
def test_a_tensor_of_which_a_part_was_assigned_cannot_be_read_or_written(be, part):
    w = be.zeros((20, 2))

    def assign_part(use):
        for i in (8, 4, 0, 12):
            w[i : i + 1] = 1
        use(w[part])
        return w[13:20] + 1

    for use in (lambda x: x + 1, lambda x: x.__setitem__(slice(None), 2)):
        with pytest.raises(ValueError, match="expected tensors that are written as a whole"):
            nl.jit(lambda use=use: assign_part(use))()
    np.testing.assert_array_equal(nl.jit(lambda: assign_part(lambda x: None))().get(), 1)


def test_an_assignment_is_compared_with_what_it_may_overlap_only(be, monkeypatch):
    w, compared = be.zeros((200, 2)), []
    overlap = nl.programs.overlap
    monkeypatch.setattr(nl.programs, "overlap", lambda x, y: (compared.append(x), overlap(x, y))[1])

    @nl.jit
    def assign_rows():
        for i in range(200):
            w[i : i + 1] = i
        return be.zeros((1, 1))

    assign_rows()
    assert len(compared) <= 400
    np.testing.assert_array_equal(w.get()[:, 0], range(200))


def test_a_tensor_that_the_function_creates_is_new_in_each_call(be):
    @nl.jit
    def f(x):
        total = be.zeros((1, 1))
        for i in range(3):
            total[:] = total + be.sum(x[i : i + 1])
        copy_of_x = x.copy()
        copy_of_x[:] = copy_of_x * 2
        return total, copy_of_x, be.ones((1, 2))

    x = be.array([[1], [2], [3]])
    first = f(x)
    first[2][:] = 7
    for _ in range(2):
        total, twice, ones = f(x)
        assert total.get() == 6
        assert twice.get().tolist() == [[2], [4], [6]]
        assert ones.get().tolist() == [[1, 1]]


def test_results_share_no_memory_with_those_of_another_call(be):
    w = be.array([[1.0, 2.0]])

    @nl.jit
    def f(x):
        w[:] = w + x
        return w, w * 2, {"x": x}

    first = f(be.ones((1, 2)))
    values = [first[0].get(), first[1].get()]
    second = f(be.ones((1, 2)))
    assert [x.get().tolist() for x in first[:2]] == [x.tolist() for x in values] == [[[2, 3]], [[4, 6]]]
    assert second[0].get().tolist() == w.get().tolist() == [[3, 4]]
    w[:] = 0
    assert second[0].get().tolist() == [[3, 4]]


def test_a_gradient_is_not_passed_through_an_assigned_tensor_as_without_jit(be):
    w, m = be.array([[3.0]]), be.array([[1.0]])

    def f():
        m[:] = w * w
        return nl.Autodiff(w * m, be).get_grad_op_tree(w)

    assert f().get() == nl.jit(f)().get() == 9


def test_gradients_of_an_expression_built_before_an_assignment_read_the_values_before_it(be):
    w = be.array([[3.0]])

    @nl.jit
    def f():
        cost = be.exp(w) * w * w
        w[:] = w * 0
        return nl.Autodiff(cost, be).get_grad_op_tree(w)

    assert f().get() == pytest.approx(np.exp(3) * (9 + 6), rel=1e-5)
    assert w.get() == 0


def test_several_steps_in_one_function_are_those_of_a_loop(be64):
    be, rate = be64, 0.1
    w = be.array([[2.0, -1.0]])
    optimizer = GradientDescentMomentum(rate, 0.5)

    @nl.jit
    def three_steps():
        for _ in range(3):
            cost = be.sum(w * w * w)
            optimizer.step([w], [nl.Autodiff(cost, be).get_grad_op_tree(w)])
        return cost

    value, velocity = w.get(), 0
    for _ in range(2):
        cost = three_steps()
        for _ in range(3):
            expected = (value**3).sum()
            velocity = 0.5 * velocity - rate * 3 * value**2
            value = value + velocity
        np.testing.assert_allclose(cost.get(), expected, rtol=1e-12)
        np.testing.assert_allclose(w.get(), value, rtol=1e-12)
    assert w.updates[1] == 6


def test_random_numbers_are_new_in_each_call_and_those_of_the_streams(be):
    @nl.jit
    def f(x):
        noise = be.rand((2, 3))
        return noise + x, noise, be.randn((2, 3)) * 1

    x = be.zeros((2, 3))
    be.rng_reset()
    calls = [[y.get() for y in f(x)] for _ in range(2)]
    be.rng_reset()
    plain = [be.evaluate([noise := be.rand((2, 3)), noise * 1, be.randn((2, 3)) * 1]) for _ in range(2)]
    for call, expected in zip(calls, plain, strict=True):
        assert (call[0] == call[1]).all()
        assert sorted(call[0].ravel()) == sorted(expected[0].get().ravel())
    assert (calls[0][0] != calls[1][0]).any()


# --- arguments and results -------------------------------------------------------------------------------------------


def test_arguments_and_results_are_nested_lists_tuples_named_tuples_and_dicts(be):
    @nl.jit
    def f(data, *rest, scale=2, **more):
        first, second = data["pair"]
        return {"sum": first + second, "pair": Pair(first * scale, [rest[0], None, "text"]), "more": more}

    one, two = be.ones((1, 2)), be.array([[2, 2]])
    result = f({"pair": Pair(one, two)}, 3, a=one)
    assert result["sum"].get().tolist() == [[3, 3]]
    assert type(result["pair"]) is Pair
    assert result["pair"].first.get().tolist() == [[2, 2]]
    assert result["pair"].second == [3, None, "text"]
    assert result["more"]["a"] is one
    g = nl.jit(lambda d: d["a"] - d["b"])
    assert g({"a": one, "b": two}).get().tolist() == g({"b": two, "a": one}).get().tolist() == [[-1, -1]]


def test_arguments_are_tensors_op_trees_numpy_arrays_and_floats(be):
    f = nl.jit(lambda x, y: x * 2 + y)
    x = be.array([[1, 2]])
    for first in (x, x * 1, x.get()):
        for second in (0.5, np.float32(0.5), x.get() * 0 + np.float32(0.5)):
            if isinstance(first, np.ndarray) and not isinstance(second, np.ndarray):
                continue
            assert f(first, second).get().tolist() == [[2.5, 4.5]]


def test_numpy_arrays_of_one_dimension_are_arrays_beside_arrays_and_ambiguous_without(be):
    f = nl.jit(lambda x, y: x * 2 + y)
    result = f(be.array_api.asarray([1.0, 2.0]), np.array([3.0, 4.0]))
    assert result.shape == (2,)
    assert result.tolist() == [5, 8]
    with pytest.raises(ValueError, match=r"expected arrays of two dimensions or more.* Pass x.reshape\(1, -1\)"):
        f(be.ones((1, 2)), np.array([3.0, 4.0]))


def test_strided_arguments_are_read_where_they_are(be, rng):
    values = rng.normal(size=(4, 6)).astype("float32")
    x, f = be.array(values), nl.jit(lambda x: x * 2 + 1)
    for part, expected in ((x[::2, 1:4], values[::2, 1:4]), (x[1::2, 2:5], values[1::2, 2:5]), (x.T, values.T)):
        np.testing.assert_array_equal(f(part).get(), expected * 2 + 1)
    assert len(f.programs) == 2


def test_an_argument_may_share_memory_with_what_is_written(be):
    w = be.array([[1.0, 2.0, 3.0]])

    @nl.jit
    def f(x, y):
        w[:, 1:] = x + y
        return x * 10

    assert f(w[:, :2], w[:, 1:]).get().tolist() == [[10, 20]]
    assert w.get().tolist() == [[1, 3, 5]]
    assert f(w[:, 1:], w[:, 1:]).get().tolist() == [[30, 50]]
    assert w.get().tolist() == [[1, 6, 10]]


def test_arrays_of_the_array_api_keep_their_shapes_and_are_variables(be):
    xp = be.array_api

    @nl.jit
    def f(a, b, rate):
        cost = xp.sum(a * b * rate)
        return cost, a * rate, a[1:], nl.Autodiff(cost).get_grad_op_tree(a)

    a, b = xp.asarray([1.0, 2.0, 3.0]), xp.asarray([2.0, 2.0, 2.0])
    cost, scaled, tail, gradient = f(a, b, 0.5)
    assert float(cost) == 6
    assert [x.shape for x in (cost, scaled, tail, gradient)] == [(), (3,), (2,), (3,)]
    assert scaled.tolist() == [0.5, 1.0, 1.5]
    assert tail.tolist() == [2, 3]
    assert gradient.tolist() == [1, 1, 1]


def test_a_boolean_array_is_boolean_in_the_function(be):
    xp = be.array_api
    f = nl.jit(lambda mask, x: xp.where(~mask, x, 0.0))
    assert f(xp.asarray([True, False]), xp.asarray([1.0, 2.0])).tolist() == [0, 2]


def test_boolean_arrays_and_bytes_are_two_structures_and_whether_one_is_evaluated_is_no_part_of_it(be):
    xp = be.array_api
    inverted = nl.jit(lambda x: ~x)
    assert np.asarray(inverted(xp.asarray([True, False]))).tolist() == [False, True]
    assert np.asarray(inverted(xp.asarray([1, 0], dtype=xp.uint8))).tolist() == [254, 255]
    pending = xp.asarray([1, 0], dtype=xp.uint8) + xp.asarray([1, 0], dtype=xp.uint8)
    assert np.asarray(inverted(pending)).tolist() == [253, 255]
    assert len(inverted.programs) == 2
    assert isinstance(pending.operand, nl.backend.Tensor)  # computed once


def test_an_array_reads_what_the_function_has_assigned_to_its_tensor(be):
    t = be.array([[1.0, 2.0]])
    a = be.array_api.asarray(t, copy=False)

    @nl.jit
    def f():
        t[:] = t + 1
        return a * 2, be.square(a)

    for n in (1, 2):
        double, square = f()
        assert double.tolist() == [[2 * (1 + n), 2 * (2 + n)]]
        assert square.get().tolist() == [[(1 + n) ** 2, (2 + n) ** 2]]


def test_static_arguments_are_a_part_of_the_structure(be):
    @functools.partial(nl.jit, static=["power", "options"])
    def f(x, power=1.0, *, options=()):
        return 1 / x if power == 0 and str(power)[0] == "-" else x**power + len(options)

    x = be.array([[2.0]])
    assert [f(x, power).get().item() for power in (2.0, 3.0, 0.0, -0.0)] == [4, 8, 1, 0.5]
    assert f(x, options=[1, {"a": 2.0}]).get() == f(x, options=[1, {"a": 2.0}]).get() == 4
    assert len(f.programs) == 5
    with pytest.raises(ValueError, match="expected the names of parameters in static, got speed"):
        nl.jit(lambda x: x, static="speed")
    with pytest.raises(TypeError, match="static argument power that is no tensor"):
        f(x, x)


def test_a_function_calls_another_compiled_one_as_a_part_of_itself(be):
    w = be.array([[1.0]])

    @nl.jit
    def inner(x):
        w[:] = w + x
        return w * 1

    @nl.jit
    def outer(x):
        return inner(x) + inner(x)

    assert outer(be.ones((1, 1))).get() == 5
    assert w.get() == 3
    assert inner.programs == []


def test_a_signature_and_a_docstring_are_those_of_the_function(be):
    import inspect

    @nl.jit
    def f(x, *, scale=2.0):
        """Scale."""
        return x * scale

    assert str(inspect.signature(f)) == "(x, *, scale=2.0)"
    assert (f.__name__, f.__doc__) == ("f", "Scale.")
    assert "jit(f)" in repr(f)
    with pytest.raises(TypeError, match="positional argument"):
        f(be.ones((1, 1)), 3.0)


def test_methods_are_compiled_for_each_object(be):
    class Average:
        def __init__(self):
            self.value = be.zeros((1, 1))

        @nl.jit
        def add(self, x):
            """Add."""
            self.value[:] = 0.5 * self.value + x
            return self.value

    one, two = Average(), Average()
    for n in (1, 1.5, 1.75):
        assert one.add(be.ones((1, 1))).get() == n
    assert two.add(be.ones((1, 1))).get() == 1
    assert len(Average.add.programs) == len(one.add.programs) == 2


def test_compiled_functions_are_copied_and_pickled(be):
    x = be.array([[1.0, 2.0]])
    assert squared_distance(x, x * 0).get() == 5
    assert pickle.loads(pickle.dumps(squared_distance)) is squared_distance

    class Scaled:
        def __init__(self):
            self.factor = 2
            self.run = nl.jit(self.scale)

        def scale(self, x):
            return x * self.factor

    first = Scaled()
    first.run(x)
    second = copy.deepcopy(first)
    second.factor = 3
    assert second.run(x).get().tolist() == [[3, 6]]
    assert first.run(x).get().tolist() == [[2, 4]]


# --- threads, failures, backends -------------------------------------------------------------------------------------


def test_threads_share_a_function_and_no_step_is_lost(cpu):
    w = cpu.zeros((1, 1))

    @nl.jit
    def f(x):
        w[:] = w + x
        return x * 2

    f(cpu.zeros((1, 1)))
    plan, results, running = f.programs[0][1].plan, [], []
    run = plan.run

    def run_alone(targets, values):
        running.append(None)
        time.sleep(0.0002)
        assert len(running) == 1
        run(targets, values)
        running.pop()

    plan.run = run_alone

    def work(n):
        results.extend(float(f(cpu.array([[float(n)]])).get()) for _ in range(50))

    workers = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert w.get() == 50 * 6
    assert sorted(results) == [2.0] * 50 + [4.0] * 50 + [6.0] * 50
    assert len(f.programs) == 1


def test_another_thread_evaluates_at_once_while_one_traces(cpu):
    x, inside = cpu.ones((1, 1)), []

    @nl.jit
    def f(x):
        worker = threading.Thread(target=lambda: inside.append((cpu.ones((1, 2)) + 1).get()))
        worker.start()
        worker.join()
        return x + 1

    assert f(x).get() == 2
    assert inside[0].tolist() == [[2, 2]]


def test_a_function_that_raises_leaves_nothing_behind(be):
    w = be.ones((1, 1))
    optimizer = GradientDescentMomentum(0.1, 0.9)

    @nl.jit
    def f(x):
        w[:] = 5
        optimizer.step([w], [x])
        raise KeyError("from the function")

    with pytest.raises(KeyError):
        f(be.ones((1, 1)))
    assert w.get() == 1
    assert (w.states, w.updates, f.programs) == (None, None, [])
    w[:] = w + 1  # is evaluated at once
    assert w.get() == 2


def test_a_run_that_fails_leaves_weights_states_and_counts_as_before(be):
    if be.name in ("gpu", "simulated"):
        pytest.skip("a GPU reports an index out of range later")
    w, table = be.array([[1.0]]), be.array([[1.0], [2.0]])
    optimizer = GradientDescentMomentum(0.1, 0.9)

    @nl.jit
    def f(i):
        cost = be.sum(be.take(table, i, 0)) * w
        optimizer.step([w], [nl.Autodiff(cost, be).get_grad_op_tree(w)])
        return cost

    good, bad = be.array([[0]], dtype="int32"), be.array([[5]], dtype="int32")
    f(good)
    before = w.get(), w.states[0].get(), w.updates, optimizer.t
    with pytest.raises(IndexError):
        f(bad)
    assert (w.get(), w.states[0].get(), w.updates, optimizer.t) == before
    f(good)
    assert w.updates[1] == 2


def test_without_memory_for_a_result_nothing_is_written(cpu, monkeypatch):
    w = cpu.ones((1, 1))
    optimizer = GradientDescentMomentum(0.1, 0.9)

    @nl.jit
    def f(x):
        optimizer.step([w], [x])
        return w * 1

    f(cpu.ones((1, 1)))
    before, x = (w.get(), w.updates, optimizer.t), cpu.ones((1, 1))

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cpu.runtime, "empty", fail)
    with pytest.raises(MemoryError):
        f(x)
    monkeypatch.undo()
    assert (w.get(), w.updates, optimizer.t) == before


def test_ctrl_c_in_a_step_is_raised_after_the_step(cpu):
    w, optimizer, x = cpu.ones((1, 1)), GradientDescentMomentum(1.0, 0.5), cpu.ones((1, 1))
    f = nl.jit(lambda x: optimizer.step([w], [x]))
    f(x)
    plan = f.programs[0][1].plan
    run = plan.run

    def interrupted(targets, values):
        signal.raise_signal(signal.SIGINT)
        run(targets, values)

    plan.run = interrupted
    with pytest.raises(KeyboardInterrupt):
        f(x)
    plan.run = run
    assert w.updates[1] == optimizer.t == 2
    assert w.get() == 1 - 1 - 1.5


def test_an_argument_that_shares_memory_is_copied_for_images_in_other_layouts_too(cpu, rng):
    images, filters = rng.normal(size=(2, 5, 5, 4)), cpu.array(rng.normal(size=(2, 3, 3, 2)))
    w = cpu.array(images)

    @nl.jit
    def f(x, y):
        w[:] = cpu.conv(x, filters, padding=1)
        return y * 2

    expected = cpu.conv(cpu.array(images), filters, padding=1).get()
    np.testing.assert_allclose(f(w, w).get(), images * 2, rtol=1e-5)
    np.testing.assert_allclose(w.get(), expected, rtol=1e-4, atol=1e-5)
    again = cpu.conv(cpu.array(expected), filters, padding=1).get()
    np.testing.assert_allclose(f(w, w).get(), expected * 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(w.get(), again, rtol=1e-3, atol=1e-4)


def test_a_function_is_compiled_again_on_another_backend(be):
    f = nl.jit(lambda x: x * 2)
    assert f(be.ones((1, 1))).get() == 2
    x = be.ones((1, 1))
    nl.cleanup_backend()
    assert f.programs == []
    other = new_backend(be.name)
    assert f(other.ones((1, 1))).get() == 2
    with pytest.raises((RuntimeError, ValueError), match="closed"):
        f(x)


def test_states_that_were_replaced_are_the_ones_that_are_updated(be):
    w = be.array([[1.0]])
    optimizer = GradientDescentMomentum(0.1, 0.9)
    f = nl.jit(lambda x: optimizer.step([w], [x]))
    one = be.ones((1, 1))
    f(one)
    w.states[:] = [be.array([[5.0]])]
    f(one)
    assert w.states[0].get() == pytest.approx(0.9 * 5 - 0.1)
    w.states = w.updates = None
    f(one)
    assert w.states[0].get() == pytest.approx(-0.1)
    assert len(f.programs) == 1


# --- changed attributes ----------------------------------------------------------------------------------------------


def test_a_changed_attribute_of_a_layer_is_seen_in_the_next_call(be):
    net = Sequential([Linear(3, init=Gaussian()), Activation(Rectlin(slope=0.5)), Dropout(0.25)])
    calls = []

    @nl.jit
    def outputs(x):
        calls.append(x)
        return net(x)

    x = be.array([[1.0, -1.0], [2.0, -3.0]])
    for slope, inference_scale in [(0.5, 0.25), (0.5, 0.25), (0.1, 0.25), (0.1, 2.0)]:
        net[1].transform.slope, net[2].inference_scale = slope, inference_scale
        y = outputs(x).get()
        z = net[0].W.get() @ x.get()
        np.testing.assert_allclose(y, np.where(z > 0, z, slope * z) * inference_scale, rtol=1e-5, atol=1e-6)
    assert len(calls) == 3
    net[0].W[:] = 0
    assert not outputs(x).get().any()
    assert len(calls) == 3  # values of weights are read in each call


def test_a_frozen_layer_is_frozen_in_the_next_call(be):
    net = Sequential([Linear(2, init=Gaussian()), BatchNorm()])
    x = be.array([[1.0, -1.0, 4.0], [2.0, -3.0, 5.0]])
    train = nl.jit(lambda x: net(x, training=True))
    train(x)
    before = net[1].gmean.get()
    net[1].trainable = False
    train(x)
    np.testing.assert_array_equal(net[1].gmean.get(), before)
    net[1].trainable = True
    train(x)
    assert (net[1].gmean.get() != before).all()


def test_a_changed_attribute_of_an_optimizer_is_seen_and_its_rate_needs_no_new_program(be):
    def run(momenta, rates, compiled):
        w, optimizer, calls = be.array([[4.0]], name="w"), GradientDescentMomentum(0.1, 0.5), []

        def step():
            calls.append(1)
            cost = w * w
            optimizer.step([w], [nl.Autodiff(cost).get_grad_op_tree(w)])
            return cost

        step = nl.jit(step) if compiled else step
        values = []
        for optimizer.momentum_coef, optimizer.learning_rate in zip(momenta, rates, strict=True):
            step()
            values.append(w.get().item())
        return values, len(calls)

    momenta, rates = [0.5, 0.5, 0.9, 0.9], [0.1, 0.2, 0.2, 0.3]
    values, count = run(momenta, rates, True)
    np.testing.assert_allclose(values, run(momenta, rates, False)[0], rtol=1e-5)
    assert count == 2


# --- errors ----------------------------------------------------------------------------------------------------------

KEPT: list[object] = []


def if_positive(x, w, be):
    return x if be.sum(x) > 0 else -x


def kept_in_a_list(x, w, be):
    KEPT.append(x)
    return x


def compiled_inside(x, w, be):
    return be.compile([w], [w + x])()


def optimized_by_layers(x, w, be):
    layer = Linear(2, Gaussian()).configure(2)
    layer(x)
    be.bsz = 1
    GradientDescentMomentum(0.1).optimize([layer], 0)


def assigned_in_parts(x, w, be):
    w[:1] = 1
    return w * 2


def fprop_inside(x, w, be):
    be.bsz = 1
    net = Sequential([Dropout(0.5)])
    net.configure(2)
    net.allocate()
    return net.fprop(x)


READ = r"expected expressions while the function is traced, got a value of .* Use be.where\(condition, a, b\)"
REFUSED = {
    "if": (if_positive, TypeError, READ),
    "float": (lambda x, w, be: float(be.sum(x)), TypeError, READ),
    "bool": (lambda x, w, be: bool(be.sum(w)), TypeError, READ),
    "print a weight": (lambda x, w, be: print(w), TypeError, READ),
    "get": (lambda x, w, be: x.get(), TypeError, READ),
    "get of a weight": (lambda x, w, be: (w * 1).get(), TypeError, READ),
    "numpy": (lambda x, w, be: np.asarray(x), TypeError, READ),
    "numpy of a weight": (lambda x, w, be: w.numpy(), TypeError, READ),
    "dlpack": (lambda x, w, be: np.from_dlpack(w), TypeError, READ),
    "index array": (lambda x, w, be: x[[0, 1]], TypeError, r"expected integers and slices .* Use be.take"),
    "share": (lambda x, w, be: x.share((1, 1)), TypeError, "expected no view of a part of x, .* Use reshape"),
    "mask": (lambda x, w, be: x[x > 0], TypeError, r"expected integers and slices .* be.where"),
    "argument": (lambda x, w, be: x.__setitem__(slice(None), 1), TypeError, "an assignment to a tensor that is no arg"),
    "parts": (assigned_in_parts, ValueError, "written as a whole, got .* Join the parts with be.concat"),
    "primitive": (lambda x, w, be: be.compound_dot(w, w, be.empty((2, 2))), TypeError, "got be.compound_dot. Use op-t"),
    "mask drawn": (lambda x, w, be: be.make_binary_mask(be.empty((2, 1))), TypeError, "random numbers"),
    "normal": (lambda x, w, be: be.fill_normal(be.empty((2, 1))), TypeError, "random numbers .*Use op-trees: be.rand"),
    "be.compile": (compiled_inside, TypeError, r"got be.compile. Assign in the function: out\[:\] = tree"),
    "optimize": (optimized_by_layers, (TypeError, RuntimeError), r"optimizer.step\(parameters, gradients\)"),
    "fprop": (fprop_inside, (TypeError, RuntimeError), r"a network's fprop. Use layer\(x\)"),
    "bprop": (lambda x, w, be: Sequential([Dropout(0.5)]).bprop(x), TypeError, r"a network's bprop. Use layer\(x\)"),
    "fit": (lambda x, w, be: nl.Model([Dropout(0.5)]).fit(x, x), TypeError, "fit. Call it outside of the compiled f"),
    "max": (lambda x, w, be: max(be.sum(x), 1), TypeError, "be.maximum instead of max"),
}


def test_an_error_names_an_argument_as_its_parameter_or_by_its_place_in_a_container(be):
    def f(first, *rest, pair, others):
        return first @ pair[1], others["w"] @ rest[0]

    x, wrong = be.ones((2, 3)), be.ones((2, 2))
    with pytest.raises(ValueError, match=r"first \(2, 3\), pair\[1\] \(2, 3\)"):
        nl.jit(f)(x, x, pair=[x, x], others={"w": x})
    with pytest.raises(ValueError, match=r"others\['w'\] \(2, 3\), x1 \(2, 2\)"):
        nl.jit(f)(x, wrong, pair=(x, x.T), others={"w": x})
    with pytest.raises(ValueError, match=r"weight \(2, 3\)"):  # the name of a tensor comes first
        nl.jit(f)(be.ones((2, 3), name="weight"), x, pair=[x, x], others={"w": x})


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_cannot_do_is_an_error_with_a_way_out(be, name):
    function, kind, message = REFUSED[name]
    w = be.array([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(kind, match=message):
        nl.jit(lambda x: function(x, w, be))(be.ones((2, 1)))
    assert w.get().tolist() == [[1, 2], [3, 4]]
    assert (w + 1).get().tolist() == [[2, 3], [4, 5]]


def test_a_compiled_assignment_cannot_be_called_inside(be):
    a = be.zeros((1, 1))
    add = be.compile([a], [a + 1])
    with pytest.raises(TypeError, match=r"got a compiled assignment. Assign in the function"):
        nl.jit(lambda x: add() or x)(be.ones((1, 1)))
    assert a.get() == 0


def test_a_tensor_that_the_function_keeps_has_no_values_after_the_call(be):
    kept = []

    @nl.jit
    def f(x):
        state = be.zeros((1, 1))
        state[:] = state + x
        kept.extend([x, x * 2, state])
        return state

    assert f(be.ones((1, 1))).get() == 1
    for x in kept:
        with pytest.raises(RuntimeError, match=r"used in one call of its function.* Return its value, or create"):
            (x + 1).get()
    assert "without values" in repr(kept[0])


@pytest.mark.parametrize(
    ("argument", "error"),
    [({1, 2}, "objects that can be hashed"), (np.array([["text"]]), "numeric|number"), (1j, "real|complex|number")],
)
def test_arguments_that_are_not_supported_are_refused(be, argument, error):
    with pytest.raises((TypeError, ValueError), match=error):
        nl.jit(lambda x, y: x * y)(be.ones((1, 1)), argument)


def test_generators_async_functions_and_classes_are_refused():
    async def wait(x):
        return x

    def generate(x):
        yield x

    for f in (wait, generate, Pair):
        with pytest.raises(TypeError, match="jit: expected a function that returns its results"):
            nl.jit(f)
    with pytest.raises(TypeError, match="expected a function for jit, got 3"):
        nl.jit(3)
