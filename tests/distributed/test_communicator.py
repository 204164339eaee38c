"""Communicators: sums, broadcasts and gathered arrays of NumPy, of every runtime and of NCCL on a stand-in for CuPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import communicator_ranks
from helpers.communicator_ranks import DTYPES, SIZES, values
from helpers.data_parallel import EPOCHS, TOTAL, optimizer, problem
from helpers.mpi import Ranks, needs_mpi, shared_folder

from neonlite import cleanup_backend, gen_backend
from neonlite.distributed import Communicator, NcclCommunicator, world
from neonlite.distributed.optimizer import GradientReducer
from neonlite.layers import Linear, Sequential
from neonlite.models import Model

TOGETHER = {
    2: ["arrays", "compressed", "views", "tensors", "objects", "barriers", "refused", "nccl"],
    3: ["arrays", "compressed", "views", "objects", "barriers", "nccl"],
    4: ["arrays", "views", "tensors", "objects"],
}
RANKS = pytest.mark.parametrize("n", [2, 3, 4])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return Ranks(Path(communicator_ranks.__file__), shared_folder(tmp_path_factory, "communicator"), TOGETHER)


def sum_in_order(arrays: list[Any]) -> Any:
    """Return ((x0 + x1) + x2) + ..., of 16-bit floats in float32."""
    wide = [x.astype(np.float32) if x.dtype == np.float16 else x for x in arrays]
    total = wide[0].copy()
    for x in wide[1:]:
        total = total + x
    return total.astype(arrays[0].dtype)


def check_sum(results: list[Any], arrays: list[Any], deterministic: bool) -> None:
    """Assert that all ranks have the sum: with the same bits, and ``deterministic`` with those of the sum in order."""
    expected = sum_in_order(arrays)
    for x in results:
        np.testing.assert_array_equal(x, results[0], strict=True)
    if deterministic or expected.dtype.kind != "f":
        np.testing.assert_array_equal(results[0], expected, strict=True)
    else:
        tolerance = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}[expected.dtype.name]
        magnitude = sum(abs(x.astype(np.float64)) for x in arrays)
        assert (abs(results[0] - expected.astype(np.float64)) <= tolerance * magnitude).all()


# --- NumPy arrays ----------------------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.long
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_compressed_gradients_are_rounded_twice_to_bfloat16_and_equal_on_all_ranks(ranks, dtype, n):
    pytest.importorskip("ml_dtypes")
    results = ranks("compressed", n)
    for size in (100, 16385, 2_500_000):
        terms = [values(rank, size, dtype).astype(np.float64) for rank in range(n)]
        for result in results:
            np.testing.assert_array_equal(result[True, dtype, size], results[0][True, dtype, size], strict=True)
        error = abs(results[0][True, dtype, size] - sum(terms))
        if size * (8 if dtype == "float64" else 4) <= 1 << 16:
            np.testing.assert_array_equal(
                results[0][True, dtype, size],
                sum_in_order([values(rank, size, dtype) for rank in range(n)]),
                strict=True,
            )
        else:
            bound = sum(map(abs, terms)) * 2**-8 * 1.01 + abs(sum(terms)) * 2**-8 * 1.01
            assert (error <= bound).all()
            assert 2**-10 < error.mean() / abs(sum(terms)).mean() < 2**-7
        check_sum([result[False, dtype, size] for result in results], [x.astype(dtype) for x in terms], False)


@needs_mpi
@pytest.mark.long
def test_compressed_gradients_that_are_not_finite_stay_so(ranks):
    pytest.importorskip("ml_dtypes")
    for result in ranks("compressed", 2):
        x = result["not finite"]
        assert np.isnan(x[0])
        assert x[1] == np.inf
        assert np.isnan(x[2])
        assert (x[3:] == 2).all()


@needs_mpi
@RANKS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_is_that_of_all_ranks_and_deterministic_in_their_order(ranks, dtype, n):
    results = ranks("arrays", n)
    sums = {key for key in results[0] if key[:2] == ("sum", dtype)}
    assert {key[2] for key in sums} <= {*SIZES}
    for key in sums:
        check_sum([result[key] for result in results], [values(r, key[2], dtype) for r in range(n)], key[3])


def test_the_test_distinguishes_the_orders_of_a_sum():
    a, b, c = (values(r, 40001, "float32") for r in range(3))
    assert ((a + b) + c != a + (b + c)).any()


@needs_mpi
@RANKS
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_broadcast_and_gathered_in_the_order_of_the_ranks(ranks, dtype, n):
    for result in ranks("arrays", n):
        np.testing.assert_array_equal(result["broadcast", dtype], values(n - 1, 1000, dtype), strict=True)
        expected = np.stack([values(r, 12, dtype).reshape(3, 4)[:, ::2] for r in range(n)])
        np.testing.assert_array_equal(result["gathered", dtype], expected, strict=True)


@needs_mpi
@RANKS
def test_arrays_that_are_not_contiguous_are_summed_and_broadcast_in_place(ranks, n):
    results = ranks("views", n)
    wholes = [values(r, 60, "float32").reshape(6, 10) for r in range(n)]
    parts = [lambda x: x[::2, 1::3], lambda x: x[1:3], lambda x: x[5]]
    expected = [x.copy() for x in wholes]
    for part in parts:
        total = sum_in_order([part(x).copy() for x in expected])
        for x in expected:
            part(x)[...] = total
    for rank, result in enumerate(results):
        np.testing.assert_array_equal(result["sum", True], expected[rank])
        np.testing.assert_allclose(result["sum", False], expected[rank], rtol=1e-5, atol=1e-5)
        assert result["scalar", False] == result["scalar", True] == n * (n + 1) / 2
        before, root = (values(r, 60, "float64").reshape(6, 10) for r in (rank, 1))
        before[::2, ::3] = root[::2, ::3]
        np.testing.assert_array_equal(result["broadcast"], before)
        assert result["flags"].tolist() == [True, True]
        assert result["no elements"] == (n, 2, 0)


# --- tensors ---------------------------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("runtime", communicator_ranks.RUNTIMES)
def test_tensors_and_parts_of_them_are_summed_and_broadcast_in_place(ranks, runtime, n):
    results = ranks("tensors", n)
    keys = [key for key in results[0] if key[0] == runtime]
    if not keys:
        pytest.skip(f"{runtime} is not installed")
    for key in keys:
        arrays = [values(r, 60, key[2]).reshape(6, 10) for r in range(n)]
        if key[1] == "sum":
            check_sum([result[key] for result in results], arrays, key[3])
            continue
        expected = [x.copy() for x in arrays]
        for part in ((slice(None), slice(2, 5)), slice(1, 2)):
            total = sum_in_order([x[part].copy() for x in expected])
            for x in expected:
                x[part] = total
        for x, result in zip(expected, results, strict=True):
            x[3:5, 6:] = expected[1][3:5, 6:]
            np.testing.assert_array_equal(result[key], x, strict=True)


# --- objects ---------------------------------------------------------------------------------------------------------


@needs_mpi
@RANKS
def test_objects_are_broadcast_and_gathered(ranks, n):
    objects = [{"rank": r, "list": [None, "text", r / 7]} for r in range(n)]
    for rank, result in enumerate(ranks("objects", n)):
        assert result["identity"][:3] == (rank, n, rank)
        assert result["identity"][4] == f"{result['identity'][3]}(rank={rank}, size={n})"
        assert result["broadcast"] == result["gathered"] == objects
        assert result["duplicate"] == [sum(range(n))]
        assert result["world"]


@needs_mpi
@RANKS
def test_the_shared_memory_of_connected_ranks_has_no_name_that_an_abnormal_end_could_leave(ranks, n):
    for result in ranks("objects", n):
        assert all(name.endswith(" (deleted)") for name in result["shared memory"])


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
def test_no_rank_passes_a_barrier_before_all_have_reached_it(ranks, n):
    for files in ranks("barriers", n):
        assert files == [f"barrier-{rank}-of-{n}" for rank in range(n)]


@needs_mpi
def test_lists_are_refused(ranks):
    for messages in ranks("refused", 2):
        assert messages == [f"Communicator: expected a tensor or a NumPy array, got {[1.0, 2.0]}"] * 2 or all(
            message.startswith("Communicator: expected a tensor or a NumPy array, got ") for message in messages
        )


# --- a single process ------------------------------------------------------------------------------------------------


def test_a_single_process_is_its_own_world(cpu):
    comm = world()
    assert comm is world()
    assert type(comm) is Communicator
    assert (comm.rank, comm.size, comm.local_rank, comm.overlap) == (0, 1, 0, False)
    x, t = np.arange(3.0), cpu.ones((2, 2))
    for deterministic in (False, True):
        assert comm.all_reduce(x, deterministic) is x
        assert comm.all_reduce(t, deterministic) is t
    assert comm.broadcast(x) is x
    gathered = comm.all_gather(x)
    gathered[:] = 9
    assert x.tolist() == [0, 1, 2]
    assert gathered.shape == (1, 3)
    assert comm.broadcast_object(x) is x
    assert comm.all_gather_objects(x)[0] is x
    comm.barrier()
    cpu.bsz = 4
    with comm.sharded(cpu) as shard:
        assert shard is cpu.shard is cpu.minibatch_shard is None
    cpu.bsz = 0
    with pytest.raises(ValueError, match=r"Communicator\.sharded: expected a batch size on every process, got \[0\]"):
        comm.sharded(cpu).__enter__()


# --- NCCL ------------------------------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int16"])
def test_nccl_sums_tensors_of_gpus(ranks, dtype, n):
    """Of two ranks by NCCL's sum, which is deterministic then; in order, NCCL gathers the tensors.

    NCCL has no int16, which MPI sums.
    """
    results = ranks("nccl", n)
    arrays = [values(r, 60, dtype).reshape(6, 10) for r in range(n)]
    for deterministic in (False, True):
        check_sum([result["sum", dtype, deterministic][0] for result in results], arrays, deterministic)
        call = "allGather" if deterministic and n > 2 else "allReduce"
        calls = [] if dtype == "int16" else [call]
        assert all(result["sum", dtype, deterministic][1] == calls for result in results)


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
def test_parts_of_tensors_and_numpy_arrays_are_summed_by_mpi(ranks, n):
    expected = [values(r, 60, "float32").reshape(6, 10) for r in range(n)]
    total = sum_in_order([x[:, 2:5].copy() for x in expected])
    host = sum_in_order([values(r, 12, "float32") for r in range(n)])
    for x, result in zip(expected, ranks("nccl", n), strict=True):
        x[:, 2:5] = total
        x[3:5, 6:] = expected[1][3:5, 6:]
        tensor, array, calls = result["by MPI"]
        np.testing.assert_array_equal(tensor, x)
        np.testing.assert_allclose(array, host, rtol=1e-6, atol=1e-6)
        assert calls == []


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("deterministic", [False, True])
def test_training_on_gpus_sums_gradients_by_nccl(ranks, deterministic, n):
    results = [result["fit", deterministic] for result in ranks("nccl", n)]
    cleanup_backend()
    gen_backend("cpu", rng_seed=7, batch_size=TOTAL)
    layers, dataset, cost = problem("partial")
    model = Model(layers)
    model.fit(dataset, cost, optimizer("sgd"), EPOCHS["partial"])
    cleanup_backend()
    for weights, calls in results:
        assert calls == {"bcast", "allGather" if deterministic and n > 2 else "allReduce"}
        for name, w in model.get_weights().items():
            np.testing.assert_array_equal(weights[name], results[0][0][name])
            np.testing.assert_allclose(weights[name], w, rtol=1e-5, atol=1e-5)


WAIT, WAIT_FOR_NCCL = [("record", "null"), ("wait", "own")], [("record", "own"), ("wait", "null")]


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
def test_nccl_has_its_stream_and_the_host_does_not_wait(ranks, n):
    for result in ranks("nccl", n):
        assert result["order"] == [
            *(*WAIT, ("allReduce", "own"), *WAIT_FOR_NCCL),
            *(*WAIT, ("groupStart", "null"), ("bcast", "own"), ("groupEnd", "null"), *WAIT_FOR_NCCL),
        ]


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
def test_nccl_sums_buckets_during_the_backward_pass_and_the_update_waits_for_all(ranks, n):
    results = ranks("nccl", n)
    for result in results:
        step = result["overlap"]
        starts = [i for i, (operation, _) in enumerate(step) if operation == "allReduce"]
        last_layer = max(i for i, (operation, _) in enumerate(step) if operation == "bprop")
        assert len(starts) == 6  # each bias is a layer
        assert starts[1] < last_layer
        for i in starts:
            assert step[i - 2 : i + 1] == [*WAIT, ("allReduce", "own")]
        assert step[starts[-1] + 1 :] == WAIT_FOR_NCCL
        assert step.count(("wait", "null")) == 1
        assert ("synchronize", "own") not in step
        for name, w in results[0]["overlap, weights"].items():
            np.testing.assert_array_equal(result["overlap, weights"][name], w)


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
def test_updated_weights_of_gpus_are_sent_by_nccl(ranks, n):
    for result in ranks("nccl", n):
        (weights, copies), (sharded, more) = (result["states", shard] for shard in (False, True))
        assert more - copies == 10 * n  # a copy of the weights of each rank in each of 10 steps
        for name, w in weights.items():
            np.testing.assert_array_equal(sharded[name], w)


def test_buckets_of_gpus_are_larger():
    class Communicator:
        compress_gradients = False

        def is_asynchronous(self, buffer):
            return self.is_gpu

    gen_backend("cpu", batch_size=1)
    net = Sequential([Linear(1, "ones")]).configure(1)
    net.allocate()
    for is_gpu, nbytes in ((False, 4 << 20), (True, 25 << 20)):
        communicator = Communicator()
        communicator.is_gpu = is_gpu
        assert GradientReducer(communicator, net, overlap=True).limit == nbytes
    cleanup_backend()


def test_the_communicator_of_gpus_is_one_of_mpi():
    assert issubclass(NcclCommunicator, communicator_ranks.communicator.MPICommunicator)
