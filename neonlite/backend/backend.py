"""The Backend: create tensors, plan and evaluate op-trees, and run primitives on a runtime."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Never, NoReturn, Self, TypeVar, cast

import numpy as np

from neonlite import array_namespace, name_hints, optree
from neonlite.backend import concurrency, creation, custom_ops, measure, op_methods, random, runtimes, validation
from neonlite.backend.batch_size import BatchSize, BatchSizeMethods, ShardMethods
from neonlite.backend.planning import assignment
from neonlite.backend.primitives import geometry, images, norm, products
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.runtimes.meta import MetaRuntime
from neonlite.backend.tensor import Tensor
from neonlite.gradcheck import check_grad
from neonlite.tree_structure import MAX_STRUCTURE_BYTES, structure_bytes
from neonlite.typing import FLOAT_DTYPES, BackendBase, DTypeLike

if TYPE_CHECKING:
    from neonlite.array_api import Array
    from neonlite.optree import OpTreeNode
    from neonlite.visualize import Derivation

# --- backend methods for blocks of repeated work, which a GPU replays as CUDA graphs ---

T = TypeVar("T")


class Block:
    """The kinds of repeated work, for ``be.begin``, ``be.end`` and ``be.replay``."""

    epoch = 0
    minibatch = 1
    fprop = 2
    bprop = 3
    update = 4


class ReplayMethods(BackendBase):
    """The methods of ``Backend`` for blocks of repeated work."""

    def replay(self, block: Hashable, fn: Callable[[], T], uses: object = (), graphs: bool = True) -> T:
        """Call ``fn()``, a block of work that repeats, or replay it as a CUDA graph.

        On a GPU, the third call with nothing changed captures the block as a CUDA graph. Later calls launch the graph
        and return the captured result without calling ``fn``. Therefore ``fn`` must depend only on the values of
        tensors and the attributes of ``uses``, and must change only values of tensors. When one of these attributes,
        the batch size or the seed changes, ``fn`` is called and captured again. Random numbers are those that ``fn``
        would draw. An out-of-range index raises IndexError at the next read of a tensor. A block that cannot be
        captured is called every time; so is every block on other runtimes.

        Parameters
        ----------
        block : hashable
            The block's name, such as ``Block.minibatch``; blocks may be nested.
        fn : callable
            The work, a function without arguments.
        uses : sequence
            The objects whose attributes ``fn`` reads; default none.
        graphs : bool
            False calls ``fn`` without a graph, as does ``NEONLITE_GRAPHS=0`` in the environment; default True.

        Returns
        -------
        Any
            What ``fn`` returns.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> total, x = be.zeros((1, 1)), be.ones((1, 3))
        >>> def add():
        ...     total[:] = total + be.sum(x)
        >>> for _ in range(4):
        ...     be.replay("add", add, uses=[total, x])
        >>> total.get()
        array([[12.]], dtype=float32)
        """
        if not graphs or self.graphs is None or os.environ.get("NEONLITE_GRAPHS") == "0":
            return fn()
        return self.graphs.replay(block, fn, uses)

    def begin(self, block: int, identifier: int) -> None:
        """Mark the start of a block of repeated work; for compatibility with neon, without effect.

        Parameters
        ----------
        block : int
            The kind of block, such as ``Block.minibatch``.
        identifier : int
            The number of the block.
        """

    def end(self, block: int, identifier: int) -> None:
        """Mark the end of a block of repeated work; for compatibility with neon, without effect.

        Parameters
        ----------
        block : int
            The kind of block, such as ``Block.minibatch``.
        identifier : int
            The number of the block.
        """


MAX_CHECKED_DOT_INFOS = 1024  # triples of shapes, strides and dtypes of matrix products that were checked
_backend_ids = itertools.count(1)
_open_backends: weakref.WeakSet[Backend] = weakref.WeakSet()  # closed when Python exits


# --- histograms of tensors: the number of elements of each magnitude, in bins of powers of two ---


class HistogramMethods(BackendBase):
    """The methods of ``Backend`` for histograms."""

    hist_bins = 64
    hist_offset = -48

    def set_hist_buffers(self, hist_bins: int, hist_offset: int) -> None:
        """Set the bins of ``Tensor.hist``, and delete all histograms.

        Parameters
        ----------
        hist_bins : int
            The number of bins, one for each power of two; initially 64.
        hist_offset : int
            The exponent of the first bin; initially -48.
        """
        bins = validation.integer("be.set_hist_buffers: hist_bins", hist_bins)
        offset = validation.integer("be.set_hist_buffers: hist_offset", hist_offset, -math.inf)
        self.hist_bins, self.hist_offset, self.hist_buf = bins, offset, {}

    def histogram(self, t: Tensor, tag: str) -> Tensor:
        """Count the elements of a tensor by magnitude, in bins of powers of two.

        bin = rint(log2 |x|) - hist_offset, clipped to the first and the last bin. NaN is not counted.

        Parameters
        ----------
        t : Tensor
            The tensor.
        tag : str
            The name of the histogram for ``dump_hist_data``.

        Returns
        -------
        Tensor
            The counts, (1, hist_bins), int32.
        """
        values = self.astype(t, "float64" if t.info.dtype == "float64" else "float32")
        exponent = self.rint(self.log2(self.absolute(values)))
        bin_index = self.clip(exponent - self.hist_offset, 0, self.hist_bins - 1)
        is_number = values == values
        bin_ids = self.astype(self.where(is_number, bin_index, 0), "int32")
        counts = self.build(
            "scatter_add",
            self.reshape(self.astype(is_number, "int32"), -1, 1),
            self.reshape(bin_ids, -1, 1),
            axis=0,
            size=self.hist_bins,
        )
        if tag not in self.hist_buf:
            self.hist_buf[tag] = self.zeros((1, self.hist_bins), dtype="int32")
        self.hist_buf[tag][:] = self.reshape(counts, 1, self.hist_bins)
        return self.hist_buf[tag]

    def dump_hist_data(self) -> tuple[Tensor, dict[str, int]]:
        """Return all histograms, and delete them.

        Returns
        -------
        data : Tensor
            The counts, (number of tags, hist_bins), int32.
        tags : dict
            The row of each tag.
        """
        rows = list(self.hist_buf.values())
        data = self.zeros((len(rows), self.hist_bins), dtype="int32")
        if rows:
            data[:] = self.concat(rows, axis=0)
        tags = {tag: row for row, tag in enumerate(self.hist_buf)}
        self.hist_buf = {}
        return data, tags


# --- the backend ---


@name_hints.add_hints(name_hints.BACKEND)
class Backend(
    BatchSizeMethods,
    creation.ShapeMethods,
    creation.CreationMethods,
    op_methods.OpMethods,
    custom_ops.CustomOpMethods,
    assignment.AssignmentMethods,
    assignment.RunMethods,
    products.MatmulMethods,
    images.ImageMethods,
    norm.NormMethods,
    norm.RoiMethods,
    geometry.LayerObjectMethods,
    random.RandomMethods,
    HistogramMethods,
    ShardMethods,
    measure.MemoryMethods,
    measure.TimingMethods,
    ReplayMethods,
):
    """Creates tensors, builds and evaluates op-trees, and runs primitives. ``gen_backend`` creates the current one.

    Parameters
    ----------
    runtime : str or Runtime
        The array library: a name such as "cpu", or a runtime.
    rng_seed : int, optional
        The seed of the random streams, from 0 to 2**64 - 1; default from the operating system.
    default_dtype : dtype
        The floating-point dtype of new tensors; default float32.
    compat_mode : str, optional
        "caffe" rounds the output sizes of pooling up, as Caffe does.
    deterministic : bool, optional
        Compute bit-identical results in every run, also where this is slower.
    batch_size : int
        The batch size N, ``be.bsz``; default 0, not set.
    device_id : int
        The device of the runtime; default 0.

    Raises
    ------
    ValueError
        Unknown runtime, device, ``compat_mode`` or seed, or a default dtype that is not floating point.
    TypeError
        The runtime is incomplete.
    ImportError
        The runtime is not installed.
    """

    check_grad = check_grad
    if TYPE_CHECKING:
        __getattr__: Callable[[Never], Never]  # type: ignore[assignment, misc]  # other attributes are errors

    @validation.checks_arguments
    def __init__(
        self,
        runtime: str | Runtime = "cpu",
        rng_seed: int | None = None,
        default_dtype: DTypeLike = np.float32,
        compat_mode: str | None = None,
        deterministic: bool | None = None,
        batch_size: int = 0,
        device_id: int = 0,
    ) -> None:
        validation.one_of("Backend: compat_mode", compat_mode, (None, "caffe"))
        self.runtime: Any = runtimes.load_runtime(runtime, device_id)
        if deterministic:
            self.runtime.make_deterministic()
        self.xp = self.runtime.xp
        self.name = self.device_type = self.runtime.name
        self.backend_id = next(_backend_ids)
        self.default_dtype_name = "float32"
        self.default_dtype_name = self.dtype_name(default_dtype)
        if self.default_dtype_name not in FLOAT_DTYPES:
            dtypes = tuple(x for x in FLOAT_DTYPES if x in self.runtime.dtypes)
            raise ValueError(f"Backend: expected one of {dtypes} as the default dtype, got {self.default_dtype_name}")
        self.compat_mode, self.deterministic = compat_mode, deterministic
        self.streams: random.RandomStreams = self.runtime.random_streams(rng_seed)
        self.lock = concurrency.FairLock()  # guards the batch size, and the buffers and weights of layers
        self.thread_bsz = BatchSize()
        self.bsz = batch_size
        self.hist_buf: dict[str, Tensor] = {}
        self.closed_by = ""  # the call that closed the backend, with file and line
        _open_backends.add(self)
        self.memory_tracker = self.runtime.memory_tracker
        # the Infos of operands that passed the checks
        self.checked_dot_infos = concurrency.Cache(MAX_CHECKED_DOT_INFOS, self.memory_tracker)
        self.primitives: Any = self.runtime.primitives(self.runtime)
        self._executor: Any = self.runtime.executor(self.runtime, self.primitives)
        self.graphs = self.runtime.create_graphs(self)  # captured by ``replay``; None on runtimes without graphs
        caches = (concurrency.Cache(MAX_STRUCTURE_BYTES, self.memory_tracker, structure_bytes) for _ in range(2))
        self.structures, self.infos = caches  # of op-trees, and of tensors
        self.exported: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()  # to other libraries
        self.distributed: weakref.WeakValueDictionary[int, Tensor] = (
            weakref.WeakValueDictionary()
        )  # ``distribute_data``
        self.plan_cache = assignment.PlanCache(self.memory_tracker)
        self.array_api = array_namespace.Namespace(self)  # not a property, so that Jupyter completes its names

    @classmethod
    def allocate_backend(cls, /, name: str, **options: object) -> Self:
        """Create a backend without making it the current one.

        Parameters
        ----------
        name : str
            The runtime.
        **options : object
            Arguments of ``Backend``.

        Returns
        -------
        Backend
            The new backend.
        """
        return cls(name, **cast(Any, options))

    def cleanup_backend(self) -> None:
        """Close the backend: release its plans and buffers. Its tensors can still be read."""
        self.closed_by = self.closed_by or validation.called_from()
        self._executor = self.primitives = None
        self.memory_tracker.clear_thread_cache()
        self.hist_buf = {}
        concurrency.clear_caches(self.memory_tracker)
        self.runtime.free_unused()

    def __repr__(self) -> str:
        closed = f", closed by {self.closed_by}" if self.closed else ""
        return f"<{self.runtime.backend_title(self.backend_id)}{closed}>"

    @property
    def closed(self) -> bool:
        """Whether the backend was closed. Its tensors can still be read; nothing else works."""
        return bool(self.closed_by)

    @property
    def default_dtype(self) -> np.dtype[Any]:
        """The default dtype of new tensors, as a NumPy dtype."""
        return np.dtype(self.default_dtype_name)

    backend_choices = staticmethod(runtimes.list_runtimes)

    @property
    def flops(self) -> int | None:
        """The number of floating-point operations of a dry run so far; None on other backends."""
        return cast(int | None, self.runtime.flops)

    def dry_run(self) -> Backend:
        """Return a backend like this one that counts memory and FLOPs, and computes and allocates nothing.

        Returns
        -------
        Backend
            A backend on which every value reads as 0, and that counts ``flops``.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu").dry_run()
        >>> y = be.dot(be.zeros((100_000, 100_000)), be.zeros((100_000, 100_000))).astensor()
        >>> print(be.memory().peak, be.flops)
        120000000000 2000000000000000
        """
        runtime = MetaRuntime(self.runtime, repr(self))
        dry_run = type(self)(
            runtime, self.rng_seed, self.default_dtype_name, self.compat_mode, self.deterministic, self.bsz
        )
        dry_run.hist_bins, dry_run.hist_offset = self.hist_bins, self.hist_offset
        dry_run.rng_set_state(self.rng_get_state())
        return dry_run

    def derivation(self, tree: OpTreeNode | Array, *tensors: Tensor | Array) -> Derivation:
        """Return the chain rule of an op-tree or array, step by step, as ``tree.derivation(*tensors)``.

        Parameters
        ----------
        tree : OpTreeNode or Array
            The expression.
        *tensors : Tensor, or variable of ``neonlite.array_api``
            The tensors to differentiate with respect to; all float tensors of the tree by default.

        Returns
        -------
        Derivation
            The steps, which print as text, and in notebooks as LaTeX.
        """
        from neonlite.explorer import derive  # when first used

        return derive(tree, tensors)

    def copy_transpose(self, a: Tensor, out: Tensor, axes: Sequence[int] | None = None, repeat: int = 1) -> Tensor:
        """Copy a tensor with its axes in another order.

        Parameters
        ----------
        a : Tensor
            The tensor.
        out : Tensor
            The target, of as many elements.
        axes : sequence of int, optional
            For each axis of the result, the axis of ``a``; default reversed.
        repeat : int
            How many times to copy, for benchmarks; default 1.

        Returns
        -------
        Tensor
            ``out``.
        """
        value = self.transpose(a, list(range(a.ndim))[::-1] if axes is None else list(axes))
        if value.shape != out.shape and a.size == out.size:
            value = self.reshape(value, out.shape)
        for _ in range(repeat):
            out[:] = value
        return out

    def kernel(self, *trees: optree.Operand, out: Tensor | Sequence[Tensor] | None = None) -> str:
        """Return the source of the CUDA kernels that evaluate op-trees, on any runtime, also without a GPU.

        Parameters
        ----------
        *trees : OpTreeNode
            The op-trees.
        out : Tensor or sequence of Tensor, optional
            The targets, as for ``plan``.

        Returns
        -------
        str
            CUDA C++ source.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x = be.ones((100, 64), name="x")
        >>> print(be.kernel(1 / (1 + be.exp(-x))).split("---")[-1])  # without the preamble
        <BLANKLINE>
        // x0: x (100, 64) float32
        // y0: div of stage 1 (100, 64) float32
        // y0 = (1 / (1 + exp(neg(x0))))
        extern "C" __global__ void __launch_bounds__(256) stage_1(
            const float* x0, float* y0, unsigned I)
        {
            ...
                const Pack<float, V> x0s = load<V>(x0 + i);
                Pack<float, V> y0s;
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    const float v0 = -x0s.at[q];  // neg
                    const float v1 = expf(v0);  // exp
                    const float v2 = 1.0f + v1;  // add
                    const float v3 = 1.0f / v2;  // div
                    y0s.at[q] = v3;
                }
                store(y0 + i, y0s);
            }
        }
        <BLANKLINE>
        """
        from neonlite.backend.runtimes.cuda.executor import CudaExecutor, plan_source

        arguments = assignment.plan_arguments(self, "be.kernel", trees, out)
        # a plan that was compiled for a CPU has steps of its libraries
        make = assignment.make_plan if isinstance(self._executor, CudaExecutor) else assignment.build_plan
        return plan_source(make(self, *arguments))

    def __deepcopy__(self, memo: object) -> Backend:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "pickle: expected an object without a backend, which holds threads and memory. Pickle the model, or "
            "model.get_weights(), instead of a layer; and values, t.get()."
        )

    @property
    def rng(self) -> np.random.RandomState:
        """A NumPy RandomState for code on the host, seeded with the backend."""
        return self.streams.host

    @property
    def rng_seed(self) -> int:
        """The seed of all random streams."""
        return self.streams.seed


@atexit.register
def _clean_up() -> None:
    for be in list(_open_backends):
        be.cleanup_backend()
