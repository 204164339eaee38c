"""Tests of conditions, loops and recurrences, in Python and in functions that are compiled, or called for many samples.

Tests ``neonlite/control_flow.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.reference import numerical_gradient
from helpers.tensors import assert_close

import neonlite as nl
from neonlite import Backend

xp = nl.array_api
RNG = np.random.default_rng(5)


def test_a_condition_chooses_one_function_where_it_has_a_value_and_selects_where_it_has_none(be64: Backend) -> None:
    called = []

    def f(x):
        return nl.cond(
            x > 0,
            lambda x: called.append("root") or {"y": xp.sqrt(x)},
            lambda x: called.append("twice") or {"y": 2 * x},
            x,
        )

    assert float(f(xp.asarray(4.0))["y"]) == 2
    assert float(nl.grad(lambda x: f(x)["y"])(4.0)) == 0.25
    assert called == ["root", "root"]
    x = xp.asarray([4.0, 0.0, -3.0])
    for many in (nl.vmap(f), nl.jit(nl.vmap(f))):
        assert_close(many(x), [[2, 0, -6]])
    assert_close(nl.vmap(nl.grad(lambda x: f(x)["y"]))(x), [[0.25, 2, 2]])
    assert_close(nl.jit(lambda x: f(x))(xp.asarray(-1.0)), [-2])
    assert float(nl.grad(lambda x: nl.cond(x > 0, lambda x: x, lambda x: 0.0, x))(-1.0)) == 0
    tensor = be64.array([[9.0]])
    root = nl.jit(lambda x: nl.cond(x > 0, be64.sqrt, lambda x: x * 1, x))
    assert root(tensor).get().tolist() == [[3]]


def test_a_scan_is_the_loop_over_the_steps_and_is_differentiated(be64: Backend) -> None:
    xs = RNG.normal(size=(5, 3))

    def f(a: Any, xs: Any, tanh: Any, steps: Any) -> Any:
        return steps(lambda s, x: ({"s": tanh(a * s["s"] + x)}, 2 * s["s"]), {"s": 0.5 + 0 * xs[0]}, xs)

    def loop(f: Any, state: Any, xs: Any) -> Any:
        outputs = []
        for x in xs:
            state, y = f(state, x)
            outputs.append(y)
        return state, np.stack(outputs)

    expected = f(0.7, xs, np.tanh, loop)
    assert_close(f(0.7, xp.asarray(xs), xp.tanh, nl.scan), [expected[0]["s"], expected[1]], 1e-6)
    a, last = np.array(0.7), lambda a, xs: xp.sum(f(a, xs, xp.tanh, nl.scan)[0]["s"])
    numeric = numerical_gradient(lambda: f(a, xs, np.tanh, loop)[0]["s"].sum(), a)
    for g in (nl.grad(last), nl.jit(nl.grad(last))):
        assert_close(g(xp.asarray(a), xp.asarray(xs)), [numeric], 1e-6)
    state, outputs = nl.scan(lambda s, _: (2 * s, None), 1.0, length=10)
    assert (state, outputs) == (1024, None)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_scan_of_no_steps_returns_the_first_state_and_empty_outputs(cpu: Backend, compiled: bool) -> None:
    def f(xs: Any) -> Any:
        start = xp.asarray([1.0, 2.0])
        return nl.scan(lambda s, x: (s + xp.sum(x), {"s": s, "x": x * 2, "none": None}), start, xs)

    state, outputs = (nl.jit(f) if compiled else f)(xp.zeros((0, 3), dtype=xp.int32))
    assert state.numpy().tolist() == [1, 2]
    assert outputs["none"] is None
    assert [(outputs[k].shape, outputs[k].dtype) for k in ("s", "x")] == [((0, 2), xp.float32), ((0, 3), xp.int32)]
    assert nl.scan(lambda s, x: (s, x), 1.0, np.zeros((0, 2)))[1].shape == (0, 2)


def collatz(n: Any) -> Any:
    """Return the number of steps from n to 1, by halves and 3n + 1."""
    return nl.while_loop(
        lambda s: s["n"] != 1,
        lambda s: {"n": xp.where(s["n"] % 2 == 0, s["n"] // 2, 3 * s["n"] + 1), "k": s["k"] + 1},
        {"n": n, "k": 0},
    )["k"]


def test_a_while_loop_takes_as_many_steps_as_its_values_require(be64: Backend) -> None:
    numbers, expected = xp.asarray([1, 2, 27, 97]), [0, 1, 111, 118]
    assert [int(collatz(n)) for n in numbers] == expected
    assert [int(nl.jit(collatz)(n)) for n in numbers] == expected
    for many in (nl.vmap(collatz), nl.jit(nl.vmap(collatz))):
        assert np.asarray(many(numbers)).tolist() == expected

    def root(x: Any) -> Any:
        return nl.while_loop(lambda y: xp.abs(y * y - x) > 1e-12 * x, lambda y: (y + x / y) / 2, x)

    for f in (root, nl.jit(root)):
        assert_close(f(xp.asarray(2.0)), [math.sqrt(2)], 1e-12)
    assert_close(nl.grad(root)(2.0), [0.5 / math.sqrt(2)], 1e-6)
    with pytest.raises(NotImplementedError, match=r"expected a loop that is not differentiated, in .* Use scan"):
        nl.jit(nl.grad(root))(xp.asarray(2.0))
    last = nl.jit(lambda x: nl.while_loop(lambda s: be64.sum(s) < 100, lambda s: 2 * s, x))
    assert last(be64.array([[3.0, 4.0]])).get().tolist() == [[48, 64]]


def test_a_while_loop_runs_within_a_program_that_has_other_values(be64: Backend) -> None:
    a = RNG.normal(size=(9, 9))
    a = a @ a.T

    def dominant(a: Any, v: Any) -> Any:  # the power method, between products whose results are needed before and after
        b = a @ a

        def step(s: Any) -> Any:
            w = b @ s["v"]
            w = w / xp.sqrt(xp.sum(w * w))
            return {"v": w, "change": xp.max(xp.abs(w - s["v"])), "k": s["k"] + 1}

        s = nl.while_loop(
            lambda s: (s["change"] > 1e-13) & (s["k"] < 1000), step, {"v": v, "change": xp.max(xp.abs(b)), "k": 0}
        )
        return xp.sum(s["v"] * (b @ s["v"])), s["k"], xp.sum(b)

    value, k, total = nl.jit(dominant)(xp.asarray(a), xp.ones(9) / 3)
    assert_close(value, [np.linalg.eigvalsh(a)[-1] ** 2], 1e-9)
    assert_close(total, [(a @ a).sum()], 1e-12)
    assert 1 < int(k) < 1000
    assert int(k) == int(dominant(xp.asarray(a), xp.ones(9) / 3)[1])


def test_a_while_loop_says_what_it_cannot_repeat(be64: Backend) -> None:
    x, w = xp.asarray(1.0), be64.ones((1, 1))

    def assigns(s: Any) -> Any:
        w[:] = w + 1
        return s + 1

    def loop(body: Any, init: Any = 0.0) -> Any:
        return nl.jit(lambda x: nl.while_loop(lambda s: xp.sum(s["n"] if isinstance(s, dict) else s) < x, body, init))

    def assigns_before(x: Any) -> Any:
        w[:] = x * 2
        return nl.while_loop(lambda s: s < 4, assigns, x)

    for f in (lambda x: nl.while_loop(lambda s: s < 4, assigns, x), assigns_before):
        with pytest.raises(TypeError, match="while_loop: expected functions that return values, got one that assigns"):
            nl.jit(f)(be64.ones((1, 1)))
    with pytest.raises(TypeError, match="while_loop: expected a loop without random numbers"):
        nl.jit(lambda x: nl.while_loop(lambda s: s < 4, lambda s: s + be64.rand((1, 1)), x))(w)
    for f in (loop(lambda s: s + 0.5, 0), lambda x: nl.while_loop(lambda s: s < x, lambda s: s + 0.5, 0)):
        with pytest.raises(ValueError, match=r"in the dtypes of the state, got .*64 after an array \(\) of int64"):
            f(x)
    with pytest.raises(ValueError, match=r"expected the next state in the same containers, \*, got \(\*, \*\)"):
        loop(lambda s: (s, s))(x)
    with pytest.raises(ValueError, match=r"expected the next state of the shape \(\), got an array \(2,\)"):
        loop(lambda s: xp.ones(2))(x)
    for compiled in (nl.jit, lambda f: f):
        with pytest.raises(ValueError, match=r"expected the next state in the dtypes of the state, got None"):
            compiled(lambda x: nl.while_loop(lambda s: s < x, lambda s: None, 0.0))(x)
    with pytest.raises(OverflowError, match=r"integers up to 2\*\*53 in a state with floats"):
        loop(lambda s: {"n": s["n"] + 1, "k": s["k"] + 2**60}, {"n": 0.0, "k": 0})(x)
    with pytest.raises(OverflowError, match=r"integers up to 2\*\*53"):
        loop(lambda s: {"n": s["n"] + 1, "k": s["k"] - 2**53 - 1}, {"n": 0.0, "k": 0})(x)
    assert int(loop(lambda s: {"n": s["n"] + 1, "k": s["k"] + 2**53}, {"n": 0.0, "k": 0})(x)["k"]) == 2**53
    assert int(loop(lambda s: {"n": s["n"] + 1, "k": s["k"] + 2**60}, {"n": 0, "k": 0})(x)["k"]) == 2**60


def test_a_while_loop_computes_what_it_reads_from_outside_once(be64: Backend) -> None:
    rng = xp.random.default_rng(3)

    def walk(x: Any) -> Any:
        step, table = rng.uniform(), rng.uniform(size=5)
        last = nl.while_loop(lambda s: s[1] < 5, lambda s: (s[0] + step + table[s[1]], s[1] + 1), (x, 0))
        return last[0] - x, 5 * step + xp.sum(table), nl.while_loop(lambda s: s != step, lambda s: step, x)

    walked = nl.jit(walk)
    totals = []
    for _ in range(2):  # new numbers in each call, and the same in each step
        total, expected, last = map(float, walked(xp.asarray(2.0)))
        assert math.isclose(total, expected, rel_tol=1e-12)
        assert 0 < last < 1
        totals.append(total)
    assert totals[0] != totals[1]
    with pytest.raises(TypeError, match="while_loop: expected a loop without random numbers"):
        nl.jit(lambda x: nl.while_loop(lambda s: s < 9, lambda s: walk(s)[0] + 9, x))(xp.asarray(1.0))
    a = be64.array([[2.0, 1.0], [0.0, 3.0]])
    last = nl.jit(lambda s: nl.while_loop(lambda s: be64.sum(s) < 50, lambda s: be64.dot(a.T, s) + be64.exp(a - a), s))
    for offset in (0, 1):  # the current values of a tensor
        a[:] = a + offset
        s, m = np.ones((2, 2)), a.get().T
        while s.sum() < 50:
            s = m @ s + 1
        assert_close(last(be64.ones((2, 2))), [s], 1e-12)


def test_a_loop_of_integers_or_of_constants_has_the_derivative_0(be64: Backend) -> None:
    def count(x: Any) -> Any:
        return nl.while_loop(lambda n: n < 3 * x, lambda n: n + 1, 0)  # 6, of 2.0

    def power(x: Any) -> Any:
        c = nl.stop_gradient(x)
        return nl.while_loop(lambda y: y < 10, lambda y: y * c, 1.0)  # 16, of 2.0

    x = xp.asarray(2.0)
    for f, value in ((count, 6), (power, 16)):
        for transform in (nl.jit, nl.vmap):
            xs = x if transform is nl.jit else x[None]
            assert xp.sum(transform(nl.grad(lambda x, f=f: x * x * f(x)))(xs)) == 4 * value
            assert xp.sum(transform(lambda x, f=f: nl.jvp(lambda x: x * x * f(x), (x,), (x,))[1])(xs)) == 8 * value
            assert xp.sum(transform(nl.checkpoint(f))(xs)) == value
    with pytest.raises(NotImplementedError, match="expected a loop that is not differentiated"):
        nl.jit(nl.grad(nl.checkpoint(lambda x: nl.while_loop(lambda y: y < 10, lambda y: y * x, x))))(x)


def test_a_condition_is_one_number(be64: Backend) -> None:
    conditions = [lambda x: None, lambda x: (x > 0,), lambda x: x * xp.ones(2) > 0, lambda x: xp.ones(1), lambda x: "x"]
    for condition in conditions:
        for compiled in (nl.jit, lambda f: f):
            for f in (
                lambda x, c=condition: nl.cond(c(x), lambda x: x, lambda x: 2 * x, x),
                lambda x, c=condition: nl.while_loop(c, lambda x: x - 1, x),
            ):
                with pytest.raises(
                    TypeError, match=r": expected one number as the condition, .* Reduce an array by all"
                ):
                    compiled(f)(xp.asarray(1.0))
    with pytest.raises(TypeError, match=r"cond: .*a function.* if_false, got 2.0"):
        nl.cond(True, lambda x: x, 2.0, 1.0)  # type: ignore[arg-type]
    t = be64.ones((1, 1))
    for condition in (True, 1, np.bool_(True), np.array(1.0), xp.asarray(3), t, t > 0):
        assert nl.cond(condition, lambda: "first", lambda: "second") == "first"
