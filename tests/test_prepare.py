"""An assignment that is prepared does what it would do at once, again and again."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from neonlite.backend import Backend
from neonlite.backend.prepared import Habit


def test_a_prepared_assignment_takes_what_the_tensors_hold_then(be):
    x, y, z = (be.array(a) for a in ([[1.0, 2.0]], [[0.0, 0.0]], [[0.0, 0.0]]))
    prepared = be.prepare([y, z], [be.exp(x) + 1, y + x])
    for value in (0.5, -2.0):
        x[:] = value
        before = y.get()
        prepared()
        np.testing.assert_allclose(y.get(), np.full((1, 2), np.exp(value) + 1), rtol=1e-6)
        np.testing.assert_allclose(z.get(), before + value, rtol=1e-6)  # y as it was


def test_one_tensor_will_do(be):
    x = be.array([[1.0, 2.0]])
    double = be.prepare([x], [2 * x])
    double()
    double()
    assert x.get().tolist() == [[4, 8]]


def test_views_are_written(be):
    x = be.zeros((3, 4))
    be.prepare([x[1:2], x[:, 3:]], [be.ones((1, 4)), 5])()
    assert x.get().tolist() == [[0, 0, 0, 5], [1, 1, 1, 5], [0, 0, 0, 5]]


def test_random_numbers_are_drawn_anew(be):
    x = be.zeros((2, 50))
    draw = be.prepare([x], [be.rand(x.shape)])
    draw()
    first = x.get()
    draw()
    assert (first != x.get()).any()


def test_a_tree_with_many_leaves_is_worked_out(be):
    leaves = [be.array([[float(i)]]) for i in range(200)]
    total = be.zeros((1, 1))
    prepared = be.prepare([total], [sum(leaves[1:], leaves[0] * 1)])
    prepared()
    leaves[7][:] = 107
    prepared()
    assert total.get().item() == sum(range(200)) + 100


def test_a_copy_is_for_the_copies_of_its_tensors(be):
    x, y = be.array([[1.0]]), be.array([[2.0]])
    prepared = be.prepare([x], [x + y])
    u, v, other = copy.deepcopy((x, y, prepared))
    other()
    prepared()
    prepared()
    assert (x.get().item(), u.get().item(), v.get().item()) == (5, 3, 2)


def test_mistakes_are_told_at_once_and_those_of_numbers_when_it_is_run(be):
    x, ids = be.zeros((2, 2)), be.array([[0], [1]], dtype="int32")
    with pytest.raises(ValueError, match="do not broadcast"):
        be.prepare([x], [be.ones((3, 3)) * 2])
    taken = be.prepare([x], [be.take(be.ones((2, 2)), ids, axis=0)])
    taken()
    ids[:] = 7
    with pytest.raises(IndexError, match=r"be.take"):
        taken()
    assert x.get().tolist() == [[1, 1], [1, 1]]


# --- what comes again with other numbers, and what comes again as it was ---------------------------------------------


def test_other_numbers_are_taken_without_another_plan(be):
    x, y = be.array([[1.0, 2.0]]), be.zeros((1, 2))
    prepared = be.prepare([y], [x * 0.5 + 100])
    prepared()
    plans = len(be._plans)
    assert prepared.take([x * 0.25 + 200])
    assert y.get().tolist() == [[100.5, 101]]  # taken, and not run yet
    prepared()
    assert y.get().tolist() == [[200.25, 200.5]]
    assert len(be._plans) == plans


@pytest.mark.parametrize(
    "other",
    [
        lambda x, z: z * 0.5 + 100,  # another tensor
        lambda x, z: x * 0.5 - 100,  # another op
        lambda x, z: x * 0.5 + 0.5,  # a number twice
        lambda x, z: x * 0.5 + 1,  # a number that is part of the structure
        lambda x, z: x[:, :1] * 0.5 + 100,  # another shape
    ],
)
def test_what_differs_in_more_than_numbers_is_not_taken(be, other):
    x, z, y = be.array([[1.0, 2.0]]), be.array([[3.0, 4.0]]), be.zeros((1, 2))
    prepared = be.prepare([y], [x * 0.5 + 100])
    assert not prepared.take([other(x, z)])
    prepared()
    assert y.get().tolist() == [[100.5, 101]]


def test_a_number_that_does_not_fit_is_told_when_it_is_run(be):
    x, y = be.array([[1, 2]], dtype="int32"), be.zeros((1, 2), dtype="int32")
    prepared = be.prepare([y], [x + 100])
    assert prepared.take([x + 2**40])
    with pytest.raises(OverflowError, match="does not fit int32"):
        prepared()
    assert y.get().tolist() == [[0, 0]]


def test_what_is_prepared_does_not_run_on_a_backend_that_was_cleaned_up():
    be = Backend("cpu")
    x = be.ones((1, 2))
    double = be.prepare([x], [2 * x])
    double()
    be.cleanup_backend()
    with pytest.raises(RuntimeError, match="clean"):
        double()
    assert x.get().tolist() == [[2, 2]]


def test_a_habit_spells_out_what_is_new_and_prepares_what_comes_again(be):
    x, y, out = be.array([[1.0]]), be.array([[10.0]]), be.zeros((1, 1))
    spelled, habit = [], Habit()

    def run(of, factor):
        def spell():
            spelled.append(factor)
            return [out], [of * factor]

        habit(be, (of, factor), spell)
        return out.get().item()

    two, three = 2.0, 3.0
    assert [run(x, two), run(x, two), run(x, two)] == [2, 2, 2]
    assert spelled == [2]
    x[:] = 5
    assert run(x, two) == 10  # what the tensor holds then
    assert (run(y, two), run(y, two), run(y, three), run(x, two)) == (20, 20, 30, 10)
    assert spelled == [2, 2, 3, 2]


def test_a_habit_that_could_not_begin_begins_anew(be):
    x, out, habit = be.array([[1.0]]), be.zeros((1, 1)), Habit()
    with pytest.raises(ZeroDivisionError):
        habit(be, (x,), lambda: ([out], [x / (1 // 0)]))
    habit(be, (x,), lambda: ([out], [x + 1]))
    habit(be, (x,), lambda: ([out], [x + 1]))
    assert out.get().item() == 2


def test_a_habit_of_nothing_and_one_of_arrays_are_fine(be):
    x, array, nothing, arrays = be.zeros((1, 2)), np.zeros((1, 2)), Habit(), Habit()
    for n in range(3):
        array[:] = n
        nothing(be, (x,), lambda: ([], []))
        arrays(be, (x,), lambda: ([x], [array]))
        assert x.get().tolist() == [[n, n]]  # what the array holds then


def test_a_copy_of_a_habit_begins_anew(be):
    x, out, habit = be.array([[1.0]]), be.zeros((1, 1)), Habit()
    for _ in range(2):
        habit(be, (x,), lambda: ([out], [x + 1]))
    other, z = copy.deepcopy((habit, x))
    assert other.operands == ()
    other(be, (z,), lambda: ([out], [z + 10]))
    assert out.get().item() == 11
    assert habit.operands == (x,)
