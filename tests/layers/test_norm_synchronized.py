"""Batch normalization with the statistics of all processes, and neon's distribute_data and revert_tensor."""

from pathlib import Path

import numpy as np
import pytest
from helpers import sync_ranks
from helpers.mpi import Ranks, needs_mpi, shared_folder

pytestmark = [needs_mpi, pytest.mark.long]
ALL = ["synchronized", "local", "no_row_for_a_rank", "distributed"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    together = {1: ["synchronized", "local"], 2: ALL, 3: ALL}
    return Ranks(Path(sync_ranks.__file__), shared_folder(tmp_path_factory, "sync"), together)


@pytest.mark.parametrize("n", [2, 3])
def test_synchronized_batch_norm_on_several_ranks_is_batch_norm_of_the_whole_minibatch(ranks, n):
    (expected,) = ranks("local", 1)  # the primitive of the backend, in one process
    for weights in ranks("synchronized", n):
        for name, w in expected.items():
            np.testing.assert_allclose(weights[name], w, rtol=1e-9, atol=1e-11, err_msg=name)


def test_local_batch_norm_on_several_ranks_differs_from_it(ranks):
    (expected,), (weights, _) = ranks("local", 1), ranks("local", 2)
    assert np.abs(weights["images.gvar"] - expected["images.gvar"]).max() > 1e-6


def test_synchronized_batch_norm_refuses_a_minibatch_without_a_row_for_a_rank(ranks):
    for message in ranks("no_row_for_a_rank", 2):
        assert "images: sync: expected a row for each of 2 processes in every minibatch, got 1" in message


@pytest.mark.parametrize("n", [2, 3])
def test_distribute_data_selects_or_gathers_columns_and_revert_tensor_undoes_it(ranks, n):
    total = sum(2 + rank for rank in range(n))
    whole, first = np.arange(3.0 * total).reshape(3, -1), 0
    for rank, result in enumerate(ranks("distributed", n)):
        columns = slice(first, first + 2 + rank)
        first = columns.stop
        assert result["columns"] == (columns.start, columns.stop)
        np.testing.assert_array_equal(result["part"], whole[:, columns])
        np.testing.assert_array_equal(result["again"], whole)
        np.testing.assert_array_equal(result["reverted"][0], whole)
        np.testing.assert_array_equal(result["reverted"][1], whole[:, columns])
        assert result["unchanged"]
        assert result["of no one"]
        assert "expected the parallelism 'Data', 'Disabled' or 'Unknown', got 'Model'" in result["message"]
