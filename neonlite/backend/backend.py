"""The Backend: create tensors, plan and evaluate op-trees, and run primitives on a runtime."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from neonlite.backend import (
    creation,
    custom_ops,
    histograms,
    lifecycle,
    planning,
    random_methods,
    replay_methods,
    shape_dtype,
    utility_methods,
)
from neonlite.backend.attribute_snapshot import Untracked
from neonlite.backend.batch_size import BatchSize, batch_size, check_batch_size
from neonlite.backend.cache import Cache
from neonlite.backend.lock import FairLock
from neonlite.backend.op_methods import OpMethods
from neonlite.backend.planning import assignment
from neonlite.backend.planning.run import PlanCache
from neonlite.backend.primitives import image_methods, layer_object_methods, matmul_methods, norm_methods, roi_methods
from neonlite.backend.random import RandomStreams
from neonlite.backend.runtimes import list_runtimes, load_runtime
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import checks_arguments, one_of
from neonlite.dtypes import FLOAT_DTYPES
from neonlite.name_hints import BACKEND, add_hints
from neonlite.optree_structure import MAX_STRUCTURE_BYTES, structure_bytes
from neonlite.typing import DTypeLike

if TYPE_CHECKING:
    from neonlite.array_namespace import Namespace
    from neonlite.backend.shard import Shard
    from neonlite.gradcheck import check_grad

MAX_CHECKED_DOT_INFOS = 1024
_backend_ids = itertools.count(1)


@add_hints(BACKEND)
class Backend(OpMethods, Untracked):
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

    if TYPE_CHECKING:
        check_grad = check_grad  # set by neonlite.gradcheck, which imports this module
    namespace_type: type[Namespace]  # set by neonlite.array_namespace

    @checks_arguments
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
        one_of("Backend: compat_mode", compat_mode, (None, "caffe"))
        self.runtime: Any = load_runtime(runtime, device_id)
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
        self.streams: RandomStreams = self.runtime.random_streams(rng_seed)
        self.lock = FairLock()  # guards the batch size, and the buffers and weights of layers
        self.thread_bsz = BatchSize()
        self.bsz = batch_size
        self.hist_buf: dict[str, Tensor] = {}
        self.closed_by = ""  # the call that closed the backend, with file and line
        lifecycle.open_backends.add(self)
        self.memory_tracker = self.runtime.memory_tracker
        # the Infos of operands that passed the checks
        self.checked_dot_infos = Cache(MAX_CHECKED_DOT_INFOS, self.memory_tracker)
        self.primitives: Any = self.runtime.primitives(self.runtime)
        self._executor: Any = self.runtime.executor(self.runtime, self.primitives)
        self.graphs = self.runtime.create_graphs(self)  # captured by ``replay``; None on runtimes without graphs
        caches = (Cache(MAX_STRUCTURE_BYTES, self.memory_tracker, structure_bytes) for _ in range(2))
        self.structures, self.infos = caches  # of op-trees, and of tensors
        self.exported: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()  # to other libraries
        self.distributed: weakref.WeakValueDictionary[int, Tensor] = (
            weakref.WeakValueDictionary()
        )  # ``distribute_data``
        self.plan_cache = PlanCache(self.memory_tracker)
        self.array_api = self.namespace_type(self)  # not a property, so that Jupyter completes its names

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

    @property
    def bsz(self) -> int:
        """The batch size N; 0 if it is not set."""
        value = self.thread_bsz.value
        return self._bsz if value is None else value

    @bsz.setter
    def bsz(self, n: int) -> None:
        n = check_batch_size(n)
        if self.thread_bsz.value is None:
            self._bsz = n
        else:
            self.thread_bsz.value = n

    @property
    def shard(self) -> Shard | None:
        """The columns of a complete minibatch that this process computes; None: all. See ``Communicator.sharded``."""
        return self.thread_bsz.shard

    @property
    def minibatch_shard(self) -> Shard | None:
        """The columns of the current minibatch, which may be partial, that this process computes; None: all."""
        return self.thread_bsz.minibatch_shard

    batch_size = batch_size
    backend_choices = staticmethod(list_runtimes)
    allocate_backend = classmethod(lifecycle.allocate_backend)
    cleanup_backend = lifecycle.cleanup_backend

    # --- creation ---

    empty = creation.empty
    zeros = creation.zeros
    ones = creation.ones
    array = asarray = tensor = creation.array
    from_dlpack = creation.from_dlpack
    empty_like = creation.empty_like
    zeros_like = creation.zeros_like
    ones_like = creation.ones_like
    iobuf = creation.iobuf
    shared_iobuf_size = creation.shared_iobuf_size
    snapshot = creation.snapshot
    shape_of = shape_dtype.shape_of
    dtype_name = shape_dtype.dtype_name
    numpy_dtype = shape_dtype.numpy_dtype
    tensor_info = shape_dtype.tensor_info
    register_export = creation.register_export

    # --- op-trees, beside the methods of OpMethods ---

    define_op = classmethod(custom_ops.define_op)
    elementwise_kernel = classmethod(custom_ops.elementwise_kernel)
    raw_kernel = classmethod(custom_ops.raw_kernel)

    # --- primitives ---

    compound_dot = matmul_methods.compound_dot
    batched_dot = matmul_methods.batched_dot
    xnor_compound_dot = matmul_methods.xnor_compound_dot
    add_fc_bias = matmul_methods.add_fc_bias
    update_fc_bias = matmul_methods.update_fc_bias
    compound_rnn_unroll_fprop = matmul_methods.compound_rnn_unroll_fprop
    compound_rnn_unroll_bprop = matmul_methods.compound_rnn_unroll_bprop
    compound_rnn_unroll_fprop_bibnrnn = matmul_methods.compound_rnn_unroll_fprop
    compound_rnn_unroll_bprop_bibnrnn = matmul_methods.compound_rnn_unroll_bprop
    compound_bprop_lut = matmul_methods.compound_bprop_lut

    fprop_conv = image_methods.fprop_conv
    bprop_conv = image_methods.bprop_conv
    update_conv = image_methods.update_conv
    fprop_pool = image_methods.fprop_pool
    bprop_pool = image_methods.bprop_pool
    fprop_lrn = image_methods.fprop_lrn
    bprop_lrn = image_methods.bprop_lrn

    compound_fprop_bn = norm_methods.compound_fprop_bn
    compound_bprop_bn = norm_methods.compound_bprop_bn

    roipooling_fprop = roi_methods.roipooling_fprop
    roipooling_bprop = roi_methods.roipooling_bprop
    nms = roi_methods.nms

    output_dim = layer_object_methods.output_dim
    conv_layer = layer_object_methods.conv_layer
    deconv_layer = layer_object_methods.deconv_layer
    pool_layer = layer_object_methods.pool_layer
    lrn_layer = layer_object_methods.lrn_layer
    set_caffe_compat = layer_object_methods.set_caffe_compat
    check_caffe_compat = layer_object_methods.check_caffe_compat

    # --- histograms, timing, copies ---

    hist_bins = 64
    hist_offset = -48
    set_hist_buffers = histograms.set_hist_buffers
    histogram = histograms.histogram
    dump_hist_data = histograms.dump_hist_data
    init_mark = utility_methods.init_mark
    record_mark = utility_methods.record_mark
    synchronize_mark = utility_methods.synchronize_mark
    get_time = utility_methods.get_time
    copy_transpose = utility_methods.copy_transpose
    distribute_data = utility_methods.distribute_data
    revert_tensor = utility_methods.revert_tensor

    # --- evaluation ---

    run = planning.run.run
    assign = assignment.assign
    compile = assignment.compile
    evaluate = assignment.evaluate
    execute = assignment.execute
    plan = assignment.plan
    write = assignment.write
    kernel = utility_methods.kernel

    replay = replay_methods.replay
    begin = replay_methods.begin
    end = replay_methods.end

    # --- memory ---

    device_memory = utility_methods.device_memory
    memory = utility_methods.memory
    reset_peak = utility_methods.reset_peak
    dry_run = utility_methods.dry_run

    @property
    def flops(self) -> int | None:
        """The number of floating-point operations of a dry run so far; None on other backends."""
        return cast(int | None, self.runtime.flops)

    def __deepcopy__(self, memo: object) -> Backend:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "pickle: expected an object without a backend, which holds threads and memory. Pickle the model, or "
            "model.get_weights(), instead of a layer; and values, t.get()."
        )

    # --- random numbers ---

    gen_rng = random_methods.gen_rng
    rng_get_state = random_methods.rng_get_state
    rng_set_state = random_methods.rng_set_state
    rng_reset = random_methods.rng_reset
    make_binary_mask = random_methods.make_binary_mask
    fill_normal = random_methods.fill_normal

    @property
    def rng(self) -> np.random.RandomState:
        """A NumPy RandomState for code on the host, seeded with the backend."""
        return self.streams.host

    @property
    def rng_seed(self) -> int:
        """The seed of all random streams."""
        return self.streams.seed
