"""Tests of time series and synthetic sequence tasks: minibatches, targets, masks, and resuming."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.runtimes import RUNTIMES
from helpers.token_minibatches import bits

import neonlite as nl
from neonlite.data import CopyTask, PrioritySortTask, RepeatCopyTask, Reversal, Task, Ticker, TimeSeries
from neonlite.data.sequences import TokenBuffers
from neonlite.layers import Affine, GeneralizedCostMask, Sequential
from neonlite.models import Model
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import CrossEntropyBinary, Logistic, SequenceAccuracy


def by_step(x, N):
    """A tensor (F, T * N) as (N, T, F), read column by column."""
    a = x.get()
    return np.array([[a[:, t * N + n] for t in range(a.shape[1] // N)] for n in range(N)])


# --- tokens --------------------------------------------------------------------------------------------------------


def test_tokens_are_written_as_ids_and_one_hot_in_the_same_tensors(be):
    ids = np.array([[4, 0], [1, 3], [2, 2]], np.int32)
    onehot, plain = TokenBuffers(be, 5, 3, True, "x"), TokenBuffers(be, 5, 3, False, "x")
    assert (onehot.shape, plain.shape) == ((5, 3), (1, 3))
    every = slice(0, 2)
    x, i = onehot.fill(2, [(every, ids)]), plain.fill(2, [(every, ids)])
    np.testing.assert_array_equal(x.get(), [[c == token for token in (4, 0, 1, 3, 2, 2)] for c in range(5)])
    assert i.get().tolist() == [[4, 0, 1, 3, 2, 2]]
    assert (x.info.dtype, i.info.dtype, x.name) == ("float32", "int32", "x")
    assert onehot.fill(2, [(every, ids[::-1])]) is x
    assert x.get().argmax(axis=0).tolist() == [2, 2, 1, 3, 4, 0]
    assert onehot.fill(1, [(slice(0, 1), ids[:, :1])]) is not x


def test_no_token_is_a_column_of_zeros_or_id_0_and_steps_may_come_late(be):
    ids = np.array([[4, -1], [1, 3], [2, 2]], np.int32)
    onehot, plain = TokenBuffers(be, 5, 3, True, "x"), TokenBuffers(be, 5, 3, False, "x")
    for _ in range(2):
        x = onehot.fill(2, [(slice(0, 1), ids[:, :1]), (slice(1, 2), ids[:, 1:])], delay=1).get()
        assert x.sum(axis=0).tolist() == [0, 0, 1, 0, 1, 1]
        assert x.argmax(axis=0).tolist() == [0, 0, 4, 0, 1, 3]
        assert plain.fill(2, [(slice(0, 2), abs(ids))], delay=2).get().tolist() == [[0, 0, 0, 0, 4, 1]]


# --- series --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "F", "T", "N", "forward"), [(9, 1, 2, 2, 1), (40, 3, 4, 3, 2), (13, 2, 1, 4, 5)])
def test_each_column_reads_its_part_of_a_series_contiguously(be, n, F, T, N, forward):
    be.bsz = N
    X = np.arange(n * F).reshape(n, F) / 4
    it = TimeSeries(X, T, forward)
    batches = (n - forward) // (T * N)
    assert (it.shape, it.nbatches, it.ndata) == ((F, T), batches, batches * N)
    for _ in range(2):
        for k, (x, t) in enumerate(it):
            xs, ts = by_step(x, N), by_step(t, N)
            for row in range(N):
                for step in range(T):
                    at = (row * batches + k) * T + step
                    np.testing.assert_array_equal(xs[row, step], X[at])
                    np.testing.assert_array_equal(ts[row, step], X[at + forward])
        assert k == batches - 1
    assert it.epoch == 2


@pytest.mark.parametrize("forward", [1, 3])
def test_all_windows_are_used_and_targets_are_ahead(be, forward):
    be.bsz = 4
    X = np.random.default_rng(1).normal(size=(12, 2)).astype("float32")
    it = TimeSeries(X, 3, forward, return_sequences=False)
    count = 12 - 3 - forward + 1
    assert (it.ndata, it.shape, it.nbatches) == (count, (2, 3), -(-count // 4))
    at = 0
    for x, t in it:
        assert t.shape == (2, 4)
        for n in range(4):
            first = (at + n) % count
            np.testing.assert_array_equal(by_step(x, 4)[n], X[first : first + 3])
            np.testing.assert_array_equal(t.get()[:, n], X[first + 3 + forward - 1])
        at += 4
    assert it.start == at % count


def test_windows_may_be_shuffled_and_each_comes_once(cpu):
    cpu.bsz = 5
    X = np.arange(13.0).reshape(13, 1)
    it = TimeSeries(X, 3, return_sequences=False, shuffle=True)
    firsts = []
    for x, t in it:
        assert (x.get()[0].reshape(3, 5) == x.get()[0, :5] + [[0], [1], [2]]).all()
        assert (t.get()[0] == x.get()[0, :5] + 3).all()
        firsts += x.get()[0, :5].tolist()
    assert sorted(firsts) == list(range(10))
    assert firsts != sorted(firsts)


def test_a_series_is_not_copied_and_a_minibatch_allocates_nothing_of_size(cpu):
    cpu.bsz = 16
    X = np.zeros((4000, 3))
    it = TimeSeries(X, 16)
    loop = iter(it)
    next(loop)
    assert buffers(lambda: next(loop)) == []
    X += 1
    assert (next(iter(it))[0].get() == 1).all()


SERIES = [
    (lambda: TimeSeries(np.zeros(9), 2), ValueError, r"got \(9,\)\. Use X.reshape\(-1, 1\)"),
    (lambda: TimeSeries(np.zeros((0, 2)), 2), ValueError, r"got \(0, 2\)"),
    (lambda: TimeSeries([["a"], ["b"]], 1), TypeError, "expected X as a real-valued array"),
    (
        lambda: TimeSeries([[0.0], [np.nan], [1]], 1),
        ValueError,
        "X: expected finite values, got nan in row 1, column 0",
    ),
    (lambda: TimeSeries(np.zeros((9, 1)), 0), ValueError, "expected an integer >= 1 for time_steps, got 0"),
    (lambda: TimeSeries(np.zeros((9, 1)), 2, 0), ValueError, "expected an integer >= 1 for forward, got 0"),
    (lambda: TimeSeries(np.zeros((9, 1)), 2, shuffle=True), ValueError, "return_sequences=False"),
    (
        lambda: TimeSeries(np.zeros((8, 1)), 2),
        ValueError,
        "at least 8 steps with a target, for batch size 4 and 2 time steps, got 7. .* be.bsz = 3 or less",
    ),
    (lambda: TimeSeries(np.zeros((8, 1)), 2, 20), ValueError, "with a target, .* got 0. Use"),
    (
        lambda: TimeSeries(np.zeros((8, 1)), 8, return_sequences=False),
        ValueError,
        "expected X of at least 9 rows, .* got 8",
    ),
    (
        lambda: TimeSeries(np.zeros((8, 1)), 5, return_sequences=False),
        ValueError,
        "batch size of at most 3, the number of rows",
    ),
]


@pytest.mark.parametrize(("make", "error", "words"), SERIES, ids=[words for _, _, words in SERIES])
def test_a_series_that_cannot_be_is_refused(cpu, make, error, words):
    cpu.bsz = 4
    with pytest.raises(error, match=words):
        make()


# --- tasks ---------------------------------------------------------------------------------------------------------


def said(x, size):
    """The sequence in inputs (nin, T) of one row, read as a network reads it: from the start's mark to the end's."""
    (start,), (end,) = np.flatnonzero(x[size]), np.flatnonzero(x[size + 1])
    assert start == 0
    assert not x[:size, end:].any()
    assert set(np.unique(x[: size + 2])) <= {0, 1}
    return [x[:size, t].tolist() for t in range(1, end)], end


def answers(t, mask, end):
    """The targets where the mask is, which must be one run behind the end's mark; they are 0 elsewhere."""
    places = np.flatnonzero(mask)
    assert places.tolist() == list(range(end + 1, end + 1 + len(places)))
    assert not t[:, mask == 0].any()
    return [t[:, at].tolist() for at in places]


def copied(task, x, t, mask):
    sequence, end = said(x, task.vec_size)
    assert answers(t, mask, end) == sequence
    return len(sequence)


def repeated(task, x, t, mask):
    sequence, end = said(x, task.vec_size)
    numbers = range(1, task.repeat_count_max + 1)
    copies = x[-1, end] * np.std(numbers) + np.mean(numbers)
    assert copies == pytest.approx(round(copies), abs=1e-4)
    assert np.count_nonzero(x[-1]) <= 1
    again = [[*bits, 0] for bits in sequence] * round(copies)
    assert answers(t, mask, end) == [*again, [0] * task.vec_size + [1]]
    return len(sequence), round(copies)


def ranked(task, x, t, mask):
    sequence, end = said(x, task.vec_size)
    priorities = x[-1, 1:end].tolist()
    assert all(-1 <= p <= 1 for p in priorities)
    assert not x[-1, end:].any()
    assert x[-1, 0] == 0
    best = sorted(range(len(sequence)), key=lambda i: -priorities[i])[: task.top_k]
    assert answers(t, mask, end) == [sequence[i] for i in best]
    return len(sequence)


def copied_once(task, x, t, mask):
    """With one copy alone there is nothing to tell."""
    sequence, end = said(x, task.vec_size)
    assert not x[-1].any()
    assert answers(t, mask, end) == [*([*bits, 0] for bits in sequence), [0] * task.vec_size + [1]]
    return len(sequence)


TASKS = [
    (CopyTask(5, 8), copied, set(range(1, 6))),
    (CopyTask(20, 3, 18), copied, {18, 19, 20}),
    (RepeatCopyTask(3, 4, 4), repeated, {(n, r) for n in (1, 2, 3) for r in (1, 2, 3, 4)}),
    (RepeatCopyTask(2, 1, 2, 2), copied_once, {2}),
    (PrioritySortTask(), ranked, {20}),
    (PrioritySortTask(9, 5, 4, 2), ranked, set(range(2, 10))),
    (PrioritySortTask(1, 1, 1), ranked, {1}),
]


@pytest.mark.parametrize(("task", "check", "kinds"), TASKS, ids=lambda x: type(x).__name__)
def test_the_answers_of_a_task_follow_from_its_inputs(cpu, task, check, kinds):
    cpu.bsz = 32
    it = Ticker(task, 192)
    assert (it.shape, it.nclass, it.ndata, it.nbatches) == ((task.nin, task.time_steps), task.nout, 192, 6)
    found, ones, total = set(), 0, 0
    for x, (t, mask) in it:
        assert mask.shape == (1, task.time_steps * 32)
        assert t.shape == (task.nout, task.time_steps * 32)
        for rows in zip(*(by_step(part, 32) for part in (x, t, mask)), strict=True):
            found.add(check(task, rows[0].T, rows[1].T, rows[2][:, 0]))
            ones, total = ones + rows[1].sum(), total + rows[2].sum() * task.nout
    assert found == kinds
    if not isinstance(task, RepeatCopyTask) and total > 5000:
        assert 0.47 < ones / total < 0.53


@pytest.mark.parametrize(("size", "blocks"), [(3, 1), (10, 2)])
def test_a_row_depends_on_the_random_bits_of_its_index(be, size, blocks):
    be.bsz = 4
    it = Ticker(CopyTask(30, size, 30), 8)  # a word for the length, and one for 64 bits
    for number in range(2):
        for k, (x, _) in enumerate(it):
            for n in range(4):
                place = ((number + 1) << 128) + (1 << 96) + (4 * k + n) * blocks
                drawn = [int(word) for word in np.random.Philox(key=[1, 2], counter=place - 1).random_raw(4 * blocks)]
                expected = [drawn[1 + i // 64] >> (i % 64) & 1 for i in range(30 * size)]
                assert by_step(x, 4)[n, 1:31, :size].ravel().tolist() == expected


def test_lengths_are_uniform(cpu):
    cpu.bsz = 500
    ((_, (_, mask)),) = Ticker(CopyTask(4, 1), 500)
    counts = np.bincount(by_step(mask, 500).sum(axis=(1, 2)).astype(int), minlength=5)
    assert counts[0] == 0
    assert (np.abs(counts[1:] - 125) < 45).all()


def test_a_row_is_the_same_in_any_batch_size_and_on_any_runtime():
    def rows(name, N, seed=None):
        be = nl.gen_backend(name, rng_seed=3, batch_size=N)
        it = Ticker(RepeatCopyTask(3, 2, 2), 12, seed)
        made = [by_step(x, N) for _ in range(2) for x, _ in it]
        be.cleanup_backend()
        return np.concatenate(made)

    first = rows("cpu", 4)
    assert first.shape == (24, 12, 5)
    assert not (first[:12] == first[12:]).all()
    for name in RUNTIMES:
        for N in (1, 3, 12):
            np.testing.assert_array_equal(rows(name, N), first)
    np.testing.assert_array_equal(rows("cpu", 5)[:24], first)  # across the end of an epoch
    np.testing.assert_array_equal(rows("cpu", 4, 3), first)
    assert not (rows("cpu", 4, 4) == first).all()


def made(kind, N=4):
    nl.gen_backend("cpu", rng_seed=3, batch_size=N)
    X = np.random.default_rng(0).normal(size=(60, 2))
    return {
        "ticker": lambda: Ticker(PrioritySortTask(4, 2, 3, 2), 10),
        "reversal": lambda: Reversal(3, 5, 10),
        "series": lambda: TimeSeries(X, 4),
        "windows": lambda: TimeSeries(X[:14], 4, return_sequences=False, shuffle=True),
    }[kind]()


KINDS = ["ticker", "reversal", "series", "windows"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_resumes_at_every_minibatch_bit_identically(kind):
    it = made(kind)
    whole, states = [], [it.get_state()]
    for _ in range(3):
        for pair in it:
            whole.append(bits(pair))
            states.append(it.get_state())
    assert len({str(x) for x in whole[:2]}) == 2
    for k, state in enumerate(states):
        other = made(kind)
        list(islice(other, 1))
        other.set_state(json.loads(json.dumps(state)))
        assert other.get_state() == state
        found = [bits(pair) for _ in range(4) for pair in other]
        assert found[: len(whole) - k] == whole[k:]


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_another_is_refused(kind):
    it = made(kind)
    state = it.get_state()
    for other in KINDS:
        if other != kind:
            with pytest.raises(ValueError, match=r"expected a state of this iterator|dict of get_state"):
                made(other).set_state(state)
    for key in set(state) - {"epoch", "start", "minibatch", "seed"}:
        with pytest.raises(ValueError, match=rf"expected a state of this iterator, got one with {key} ="):
            made(kind).set_state({**state, key: "else"})


def test_another_task_has_another_state():
    nl.gen_backend("cpu", batch_size=2)
    assert Ticker(CopyTask(seq_len_max=5, vec_size=8)).nout == 8
    state = Ticker(CopyTask(5, 8)).get_state()

    class Backwards(CopyTask):
        """Of the same sizes."""

    for task in (Backwards(5, 8), CopyTask(5, 8, 2), CopyTask(6, 8), CopyTask(5, 7), RepeatCopyTask(5, vec_size=8)):
        with pytest.raises(ValueError, match=r"expected a state of this iterator|dict of get_state"):
            Ticker(task).set_state(state)


TASKS_REFUSED = [
    (lambda: CopyTask(5, 0), ValueError, "CopyTask: expected an integer >= 1 for vec_size, got 0"),
    (lambda: CopyTask(5.0, 8), TypeError, "expected an integer >= 1 for seq_len_max, got 5.0"),
    (
        lambda: CopyTask(5, 8, 6),
        ValueError,
        "CopyTask: expected seq_len_min <= seq_len_max, got seq_len_min = 6 and seq_len_max = 5",
    ),
    (
        lambda: RepeatCopyTask(repeat_count_max=0),
        ValueError,
        "RepeatCopyTask: expected an integer >= 1 for repeat_count_max, got 0",
    ),
    (lambda: PrioritySortTask(top_k=21), ValueError, "expected an integer from 1 to 20 for top_k, got 21"),
    (lambda: PrioritySortTask(top_k=True), TypeError, "expected an integer from 1 to 20 for top_k"),
    (lambda: Ticker("copy"), TypeError, r"Ticker: expected a task, such as CopyTask\(\), for task, got 'copy'"),
    (lambda: Ticker(CopyTask(), 3), ValueError, "batch size of at most 3, the number of rows, got 4"),
    (lambda: Ticker(CopyTask(), 0), ValueError, "expected an integer >= 1 for ndata, got 0"),
    (
        lambda: Ticker(CopyTask(), 8, -1),
        ValueError,
        "expected an integer from 0 to 18446744073709551615 for seed, got -1",
    ),
    (lambda: Reversal(0), ValueError, "expected an integer >= 1 for length, got 0"),
    (lambda: Reversal(3, 0), ValueError, "expected an integer >= 1 for vocab, got 0"),
]


@pytest.mark.parametrize(("make", "error", "words"), TASKS_REFUSED, ids=[words for _, _, words in TASKS_REFUSED])
def test_a_task_that_cannot_be_is_refused(cpu, make, error, words):
    cpu.bsz = 4
    with pytest.raises(error, match=words):
        make()


def test_a_user_task_implements_synthesize(cpu):
    class Parity(Task):
        """Is the number of ones odd?"""

        def __init__(self):
            super().__init__(6, 1, 6)
            self.nin, self.nout, self.time_steps = 3, 1, 9

        def synthesize(self, random_bits):
            x, t, mask, _, sequence = self.synthesize_inputs(random_bits)
            t[:, 0, -1], mask[:, -1] = sequence.sum(axis=(1, 2)) % 2, 1
            return x, t, mask

    cpu.bsz = 8
    ((x, (t, mask)),) = Ticker(Parity(), 8)
    assert (by_step(x, 8)[:, 1:7, 0].sum(axis=1) % 2 == by_step(t, 8)[:, -1, 0]).all()
    assert mask.get().sum() == 8
    with pytest.raises(NotImplementedError, match=r"Task: implement synthesize\(random_bits\)"):
        next(iter(Ticker(Task(1, 1, 1), 8)))


def test_training_and_evaluation_use_only_what_the_mask_selects(cpu):
    """A layer without memory cannot copy; with the targets as inputs, it learns to output them."""

    class WithTargets(CopyTask):
        def __init__(self):
            super().__init__(3, 2)
            self.nin = 6

        def synthesize(self, random_bits):
            x, t, mask = super().synthesize(random_bits)
            x[:, 4:] = t
            return x, t, mask

    cpu.bsz = 8
    train, valid = (
        Ticker(WithTargets(), 40),
        Ticker(WithTargets(), 20, seed=99),
    )  # 20 rows: the last minibatch wraps around
    model = Model([Affine(2, nl.initializers.Gaussian(0, 0.1), activation=Logistic(shortcut=True))])
    model.initialize(train, GeneralizedCostMask(CrossEntropyBinary()))
    assert isinstance(model.layers, Sequential)
    before = model.eval(valid, SequenceAccuracy())[0]
    model.fit(train, model.cost, GradientDescentMomentum(0.5, 0.9), num_epochs=30)
    assert before < 0.5
    assert model.eval(valid, SequenceAccuracy())[0] == 1


# --- the toy translation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("onehot", [True, False])
def test_reversal_gives_digits_previous_targets_and_reversed_digits(be, onehot):
    be.bsz = 3
    it = Reversal(4, 7, 9, onehot_input=onehot)
    assert it.shape == ([(7, 4)] * 2 if onehot else [(1, 4)] * 2)
    assert (it.nclass, it.nbatches) == (7, 3)
    found = set()
    for (x, previous), t in it:
        assert t.shape == (7, 12)
        assert x.shape == previous.shape == ((7, 12) if onehot else (1, 12))
        assert x.info.dtype == ("float32" if onehot else "int32")
        if onehot:
            assert (x.get().sum(axis=0) == 1).all()
            assert previous.get().sum(axis=0).tolist() == [0] * 3 + [1] * 9
        digits, last = (a.get().argmax(axis=0) if onehot else a.get()[0] for a in (x, previous))
        targets = t.get().argmax(axis=0)
        for n in range(3):
            assert targets[n::3].tolist() == digits[n::3].tolist()[::-1]
            assert last[n::3].tolist() == [0, *targets[n::3].tolist()[:-1]]
        found |= set(digits.tolist())
    assert found == set(range(7))


def test_reversal_without_the_previous_target_gives_the_digits_alone(cpu):
    cpu.bsz = 3
    it = Reversal(4, get_prev_target=False)
    assert it.shape == (10, 4)
    x, _ = next(iter(it))
    assert x.shape == (10, 12)
    (same, _), _ = next(iter(Reversal(4)))
    np.testing.assert_array_equal(x.get(), same.get())
