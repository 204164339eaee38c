"""The batch size of a thread, and the columns of a minibatch that processes exchange."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import Backend
from neonlite.backend.batch_size import Shard, use_shard


class TwoProcesses:
    """A communicator of two processes, of which the other one has the same values plus 10."""

    def all_gather_objects(self, values: Any) -> list[Any]:
        """Return the values of both."""
        return [values, values + 10]


def test_columns_are_distributed_to_all_processes_and_back(cpu: Backend) -> None:
    x, y = np.array([[1.0, 2.0]], np.float32), np.array([[1.0, 2.0, 11.0, 12.0]], np.float32)
    part, whole = cpu.array(x), cpu.array(y)
    with use_shard(cpu, Shard(0, 2, 4, TwoProcesses())):
        assert cpu.distribute_data(part, "Data") is part
        assert cpu.distribute_data(whole, "Disabled") is whole
        complete, own = cpu.distribute_data(part, "Disabled"), cpu.distribute_data(whole, "Data")
        np.testing.assert_array_equal(complete.get(), y)
        np.testing.assert_array_equal(own.get(), x)
        np.testing.assert_array_equal(cpu.revert_tensor(complete).get(), x)
        np.testing.assert_array_equal(cpu.revert_tensor(own).get(), y)
        assert cpu.revert_tensor(part) is part
        with pytest.raises(ValueError, match="expected 2 columns, or 4 of all processes"):
            cpu.distribute_data(cpu.ones((1, 3)), "Data")
    assert cpu.distribute_data(whole, "Data") is whole


# --- moving data ---------------------------------------------------------------------------------------------------


def test_with_one_device_there_is_nothing_to_distribute(be):
    x = be.ones((2, 3))
    for parallelism in ("Data", "Model", "Disabled"):
        assert be.revert_tensor(be.distribute_data(x, parallelism)) is x
    assert x.get().tolist() == [[1] * 3] * 2
