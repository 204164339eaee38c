"""Data parallel training (neonlite/models/data_parallel.py) in one process: what needs no ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers.data_parallel import TOTAL, assert_same, optimizer, problem, rows

from neonlite import cleanup_backend, gen_backend
from neonlite.distributed import Communicator, Distributed, communicator as communicator_module, world
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.models.data_parallel import DataParallel, owners_of
from neonlite.optimizers import Adam


def test_a_rank_has_the_states_of_about_a_part_of_the_parameters():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 8):
        for sizes in ([5], [0, 0], [10] * 24, [1000, *[10] * 20], rng.integers(1, 1000, 50).tolist()):
            owners = owners_of(sizes, n)
            parts = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(n)]
            assert owners == sorted(owners)  # adjacent parameters
            assert set(owners) <= set(range(n))
            assert max(parts) <= sum(sizes) / n + max(sizes)


def test_without_mpiexec_a_distributed_fit_has_the_bits_of_a_plain_one():
    weights = []
    for options in ({}, {"distributed": True}, {"distributed": world()}):
        cleanup_backend()
        gen_backend("cpu", rng_seed=7, batch_size=TOTAL)
        layers, dataset, cost = problem("lenet")
        model = Model(layers)
        model.fit(dataset, cost, optimizer("adam"), 3, **options)
        assert model.data_parallel is None
        weights.append(model.get_weights())
    cleanup_backend()
    gen_backend("cpu", rng_seed=7, batch_size=TOTAL)
    layers, dataset, cost = problem("lenet")
    model = Model(layers)
    model.fit(dataset, cost, Distributed(optimizer("adam")), 3)
    assert_same([*weights, model.get_weights()])


def test_the_recurrent_state_of_a_rank_may_be_zero_where_that_of_another_is_not():
    h, zero = np.arange(6.0).reshape(3, 2), np.zeros((3, 1))
    by_rank = [([{}, {"h": h}, {}], 2), ([{}, {}, {}], 1), ([{}, {"h": h + 1}, {}], 2)]
    communicator = SimpleNamespace(all_gather_objects=lambda _: by_rank)
    states = DataParallel.gather_states(
        cast(Any, SimpleNamespace(communicator=communicator, be=SimpleNamespace(bsz=2))), by_rank[0][0]
    )
    assert [*map(list, states)] == [[], ["h"], []]
    np.testing.assert_array_equal(states[1]["h"], np.concatenate([h, zero, h + 1], axis=1))


def test_a_distributed_optimizer_alone_is_the_wrapped_one():
    gen_backend("cpu", rng_seed=7, batch_size=TOTAL)
    for wrong in (Distributed("adam"), 3):
        with pytest.raises(TypeError, match=r"Distributed: expected an optimizer|Distributed: optimizer"):
            Distributed(wrong)


def test_the_learning_rate_of_a_distributed_optimizer_is_that_of_the_wrapped_one():
    optimizer = Distributed(Adam(0.01))
    optimizer.learning_rate *= 2
    assert optimizer.learning_rate == optimizer.optimizer.learning_rate == 0.02


def test_a_fit_of_one_process_under_mpiexec_warns(monkeypatch):
    gen_backend("cpu", rng_seed=7)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    X, y = rows(20, 6)
    with pytest.warns(UserWarning, match=r"mpiexec has started 2 processes, .* pass distributed=True"):
        Model([Affine(3, activation="softmax")]).fit(X, y, epochs=1, progress_bar=False)


def test_fewer_rows_than_processes_are_an_error():
    gen_backend("cpu", rng_seed=7)
    communicator = Communicator()
    communicator.size = 4
    X, y = rows(3, 6)
    with pytest.raises(ValueError, match="expected a row for each of 4 processes, got 3 rows"):
        Model([Affine(3, activation="softmax")]).fit(X, y, distributed=communicator)


@pytest.mark.parametrize("text", ["abc", "0", "-1", "nan"])
def test_an_invalid_timeout_of_the_environment_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("NEONLITE_TIMEOUT", text)
    monkeypatch.setattr(communicator_module, "_world", None)
    with pytest.raises(ValueError, match=f"NEONLITE_TIMEOUT: expected seconds > 0, such as 300, got '{text}'"):
        world()
