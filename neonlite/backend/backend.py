"""What is a backend?  The place where tensors are made and op-trees are worked out, over any runtime."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.backend import stored
from neonlite.backend.bookkeeping import Bookkeeping
from neonlite.backend.executors.pool import share
from neonlite.backend.memory import Memory, NoRoom
from neonlite.backend.plan import Plan, fits
from neonlite.backend.prepared import Prepared
from neonlite.backend.primitives.image_calls import ImageCalls
from neonlite.backend.primitives.norm_calls import NormCalls
from neonlite.backend.primitives.product_calls import ProductCalls
from neonlite.backend.primitives.region_calls import RegionCalls
from neonlite.backend.random import Streams, mask_limit
from neonlite.backend.runtimes import choices, load
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.tensor import Tensor, overlap
from neonlite.ops import FLOATS, OPS, two_dims
from neonlite.optree import BAKED, Info, Operand, OpTreeNode, build, describe, flat, forget, postorder, program

if TYPE_CHECKING:
    from neonlite.backend.rehearsal import Rehearsal

PLANS = 1024  # plans a backend remembers

_count = itertools.count(1)
_open: weakref.WeakSet[Backend] = weakref.WeakSet()  # to be cleaned up when Python ends


class Block:
    """What a stretch of repeated work is, for ``be.begin`` and ``be.end``."""

    epoch = 0
    minibatch = 1
    fprop = 2
    bprop = 3
    update = 4


class Backend(ProductCalls, ImageCalls, NormCalls, RegionCalls, Bookkeeping):
    """Makes tensors and works out op-trees. Get one from ``gen_backend``.

    ``rng_seed``: a whole number, or None for one of the system's. ``default_dtype``: that of new tensors.
    ``compat_mode``: None or "caffe". ``batch_size``: the N of ``iobuf``; 0 as long as it is not known.
    """

    check_grad: Callable[..., Any]  # set by neonlite.check, which stands a floor above

    def __init__(
        self,
        runtime: Any = "cpu",
        rng_seed: int | None = None,
        default_dtype: Any = np.float32,
        compat_mode: str | None = None,
        deterministic: bool | None = None,
        batch_size: int = 0,
        device_id: int = 0,
        **options: Any,
    ) -> None:
        if options:
            raise TypeError(f"a backend has no option {', '.join(options)}")
        if compat_mode not in (None, "caffe"):
            raise ValueError(f"compat_mode is None or 'caffe'; got {compat_mode!r}")
        self.runtime = runtime if isinstance(runtime, Runtime) else load(runtime, device_id)
        if deterministic:
            self.runtime.make_deterministic()
        self.xp = self.runtime.xp
        self.name = self.runtime.name
        self.number = next(_count)  # to tell it from others
        self.device_type = self.name
        self.default = "float32"
        self.default = self.dtype_name(default_dtype)
        if self.default not in FLOATS:
            known = tuple(x for x in FLOATS if x in self.runtime.dtypes)
            raise ValueError(f"the default dtype is one of {known}; got {self.default}")
        self.compat_mode = compat_mode
        self.deterministic = deterministic
        self.streams = self._streams(rng_seed)
        self.bsz = batch_size
        self.hist_buf = {}
        self._fitting = set()
        self.closed = False
        _open.add(self)
        self.ledger = self.runtime.ledger
        self.primitives = self.runtime.primitives(self.runtime)
        self._executor = self.runtime.executor(self.runtime, self.primitives)
        self._graphs: Any = None
        self._infos: dict[Any, Info] = {}
        self._lent = weakref.WeakValueDictionary()
        self._plans: dict[Any, Plan] = {}
        self._writing = threading.Lock()  # plans are looked up without it, and remembered by one thread at a time
        self._age = 0  # how many plans were made: a plan's last use is told in it

    def __repr__(self) -> str:
        return f"<backend {self.name} {self.number}>"

    @staticmethod
    def backend_choices() -> list[str]:
        """Return the names of the runtimes that a backend can be made of, sorted."""
        return choices()

    @staticmethod
    def allocate_backend(name: str, **options: Any) -> Backend:
        """Return a new backend beside the current one; ValueError for an unknown name."""
        return Backend(name, **options)

    def cleanup_backend(self) -> None:
        """Let go of plans and buffers; tensors can still be read."""
        self.closed = True
        with self._writing:
            self._plans = {}
        self._executor = self.primitives = None
        if self._graphs is not None:
            self._graphs.forget()
        self.ledger.forget()
        self.hist_buf = {}
        forget(self)

    # --- working out ---

    def run(self, target: Tensor, tree: OpTreeNode) -> None:
        """Work out one tree into one tensor. This is the hot path: one look-up finds the plan."""
        leaves = tree.leaves
        if leaves is None:
            self._run_wide([target], tree)
            return
        memory, values = target.memory, []
        clashes: Any = None  # as ``_clashes`` tells them
        for k, x in enumerate(leaves.values()):
            if isinstance(x, Tensor):
                values.append(x.storage)
                if x.memory is memory and (how := overlap(target, x)) != "none":
                    clashes = (*(clashes or ()), (0, k, how))
            else:
                values.append(x)
        plan = self._plans.get((tree[0], target.info, clashes))
        if plan is None:
            if (known := self._counted(target, tree)) is not tree:
                return self.run(target, known)
            plan = self._plan((tree[0], target.info, clashes), [target], tree, clashes, False)
        plan.used = self._age
        try:
            if plan.bounds:
                plan.check(values)
            if self.ledger.has_rooms:
                stored.run(plan, (target,), leaves.values())
            else:
                plan.run((target.storage,), values)
        except Exception as error:
            raise self._explained(error, [target], tree) from error

    def assign(self, tensors: Sequence[Tensor], values: Sequence[Any]) -> list[Tensor]:
        """Work out several trees in one plan, which computes what they share once, then write all; return the tensors.

        Values may be op-trees, tensors, numbers and arrays.
        """
        for t in tensors:
            if not isinstance(t, Tensor):
                raise TypeError(f"only tensors can be assigned to; got {describe(t)}")
        if len(tensors) != len(values):
            raise ValueError(f"{len(values)} values for {len(tensors)} tensors")
        if len(tensors) == 1:
            tensors[0][:] = values[0]
            return list(tensors)
        if tensors:
            self._run_several(tensors, self._one(tensors, values))
        return list(tensors)

    def _one(self, tensors: Sequence[Tensor], values: Sequence[Any]) -> Any:
        """Return several values as one tree, of pairs."""
        tree = None
        for t, value in zip(tensors[::-1], values[::-1], strict=True):
            value = self._value(t, value)
            tree = value if tree is None else build(OPS["pair"], value, tree)
        return tree

    def prepare(self, tensors: Sequence[Tensor], values: Sequence[Any]) -> Prepared:
        """Return what ``assign`` does, planned once: each call works it out with what the tensors hold then.

        For what is run again and again on the same tensors, as the steps of a recurrent layer.

        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> a, b = be.ones((1, 2)), be.ones((1, 2))
        >>> fibonacci = be.prepare([a, b], [b, a + b])
        >>> for _ in range(5):
        ...     fibonacci()
        >>> a.get()
        array([[8., 8.]], dtype=float32)
        """
        return Prepared(self, tensors, values)

    def _crossed(self, tensors: Sequence[Tensor]) -> bool:
        """Tell whether two of the targets share memory."""
        return any(overlap(x, y) != "none" for i, x in enumerate(tensors) for y in tensors[:i])

    def _planned(self, tensors: Sequence[Tensor], tree: Any) -> Plan:
        """Return the plan that works a tree out into tensors."""
        crossed, clashes = self._crossed(tensors), self._clashes(tensors, tree.leaves)
        key = (tree[0], tuple(t.info for t in tensors), clashes, crossed)
        plan: Plan = self._plans.get(key) or self._plan(key, tensors, tree, clashes, crossed)
        plan.used = self._age
        return plan

    def _run_several(self, tensors: Sequence[Tensor], tree: Any) -> None:
        if tree.leaves is None:
            self._run_wide(tensors, tree, self._crossed(tensors))
        else:
            self._execute(self._planned(tensors, tree), tensors, tree.leaves, tree)

    def _run_wide(self, tensors: Sequence[Tensor], tree: Any, crossed: bool = False) -> None:
        """Run a tree with too many leaves to carry: its plan is made each time, and not remembered."""
        trees = flat(tree) if len(tensors) > 1 else (tree,)
        leaves = program(trees)[1]
        plan = self._plan(None, tensors, tree, self._clashes(tensors, leaves), crossed)
        self._execute(plan, tensors, leaves, tree)

    def _execute(self, plan: Plan, tensors: Sequence[Tensor], leaves: dict[int, Any], tree: Any) -> None:
        try:
            plan.check(list(leaves.values()))
            stored.run(plan, tensors, leaves.values())
        except Exception as error:
            raise self._explained(error, tensors, tree) from error

    def _clashes(self, tensors: Sequence[Tensor], leaves: dict[int, Any]) -> tuple[tuple[int, int, str], ...] | None:
        """Return (target, leaf, "same" or "some") for each pair that shares memory; None when there is none."""
        found = [
            (i, k, how)
            for k, x in enumerate(leaves.values())
            if isinstance(x, Tensor)
            for i, t in enumerate(tensors)
            if x.memory is t.memory and (how := overlap(t, x)) != "none"
        ]
        return tuple(found) or None

    def _plan(self, key: Any, tensors: Sequence[Tensor], tree: Any, clashes: Any, crossed: bool) -> Plan:
        """Check that values fit their targets, make the plan, and remember it under ``key``."""
        self._check_open()
        trees = flat(tree) if len(tensors) > 1 else (tree,)
        for t, x in zip(tensors, trees, strict=True):
            self._check_fit(t, x)
        leaves = tree.leaves if isinstance(tree, OpTreeNode) else None
        try:
            plan = Plan(trees, leaves, [t.info for t in tensors], clashes or (), crossed)
            plan.run = self._executor.compile(plan)
        except OverflowError as error:
            raise self._explained(error, tensors, tree) from None
        self._age += 1
        plan.used = self._age
        if key is not None:
            with self._writing:
                if len(self._plans) >= PLANS:  # the quarter that was not used for longest goes
                    by_use = sorted(self._plans, key=lambda key: self._plans[key].used)
                    for old in by_use[: PLANS // 4]:
                        del self._plans[old]
                self._plans[key] = plan
        return plan

    def _check_fit(self, target: Tensor, value: Any) -> None:
        """Raise ValueError when a tree or tensor is another backend's, or does not broadcast to its target."""
        if not isinstance(value, Operand):
            return
        if value.backend is not self or target.backend is not self:
            whose = f"{describe(value)} belongs to {value.backend!r} and {describe(target)} to {target.backend!r}"
            raise ValueError(f"{whose}: copy across with be.array(t)")
        if not fits(value.shape, target.shape):
            raise ValueError(
                f"{describe(value)} cannot be assigned to {describe(target)}: the shapes differ and do not broadcast; "
                "a slice, .T or .reshape of one may be what is meant"
            )

    def _explained(self, error: Exception, tensors: Sequence[Tensor], tree: Any) -> Exception:
        """Return the error with the ops that may have raised it and the targets, where its type takes a message."""
        error = self._cause(error, "what an op takes")
        if isinstance(error, NoRoom):
            return NoRoom(f"{error} (while working out {describe(*tensors)})")
        if type(error) not in (ValueError, TypeError, IndexError, OverflowError):
            return error
        suspects = [node for node in postorder(tree) if (op := OPS.get(node.op)) and op.may_fail][:3]
        calls = [
            f"be.{OPS[node.op].method}({describe(*node.operands)}"
            f"{''.join(f', {k}={v}' for k, v in node.attrs.items() if isinstance(v, int))})"
            for node in suspects
        ]
        what = ", ".join(calls) or describe(tree)
        return type(error)(f"{what}: {error} (while working out {describe(*tensors)})")

    def _counted(self, target: Tensor, tree: OpTreeNode) -> OpTreeNode:
        """Return a tree that is a onehot without the number of classes with that of its target; any other as it is."""
        if tree.op != "onehot" or tree.attrs["nclass"]:
            return tree
        if 0 in target.shape:
            raise ValueError(
                f"be.onehot({describe(tree[1])}): the number of classes is not known: "
                "give nclass=, or assign it to a tensor by itself"
            )
        known: OpTreeNode = self.onehot(tree[1], tree.attrs["axis"], nclass=target.shape[tree.attrs["axis"]])
        return known

    def _value(self, target: Tensor, value: Any) -> Any:
        """Return a value as an op-tree."""
        if isinstance(value, OpTreeNode):
            return self._counted(target, value)
        if not isinstance(value, Tensor | int | float):
            value = self.array(self._for(target, value), dtype=target.info.dtype)
        self._check_fit(target, value)
        return self.stop_gradient(value)

    def _for(self, target: Tensor, value: Any) -> np.ndarray[Any, Any]:
        """Return an array for a target; one of fewer than two dimensions takes its shape, if sizes agree."""
        values = self._host(value, f"an assignment to {describe(target)}")
        return values.reshape(target.shape) if values.size == target.size and values.ndim < 2 else values

    def write(self, target: Tensor, value: Any) -> None:
        """Copy a tensor, a number or an array into a tensor, cast to its dtype."""
        self._check_open()
        if isinstance(value, Tensor):
            self._check_fit(target, value)
            return self.run(target, self.stop_gradient(value))
        if type(value) is int and value in BAKED and hasattr(self._executor, "driver"):  # nothing to be copied
            return self.run(target, self.build("cast", value, to=target.info.dtype))
        values = self._for(target, value)
        if not fits(two_dims(values.shape), target.shape):
            raise ValueError(f"an array {values.shape} cannot be assigned to {describe(target)}: the shapes differ")
        try:
            array = stored.written(target, whole=True)
            self.runtime.write(array, values.reshape(two_dims(values.shape)), target.info.dtype)
        except ValueError as error:
            raise ValueError(f"{error} (while writing to {describe(target)})") from None

    def evaluate(self, trees: Sequence[Any]) -> list[Tensor]:
        """Return the values of several trees, worked out in one plan, in new tensors."""
        self._check_open()
        targets = [self.empty(x.info.shape, x.info.dtype) for x in trees]
        return self.assign(targets, trees)

    def execute(self, node: OpTreeNode) -> Tensor:
        """Run a tree whose top, and nothing else, is 'assign'; return the tensor written."""
        if not isinstance(node, OpTreeNode) or node.op != "assign":
            raise ValueError(f"be.execute runs op-trees with 'assign' at the top; got {describe(node)}: out[:] = tree")
        return self.assign([node[1]], [node[2]])[0]

    def plan(self, *trees: Any, out: Any = None) -> Plan:
        """Return the plan of some trees: stages, bytes read and written, temporaries, peak. Nothing is worked out.

        ``out``: the targets (a tensor or a list), which may share memory with operands; new tensors unless given.
        """
        if not trees or (out is None and not all(isinstance(x, Operand) for x in trees)):
            raise TypeError(
                f"plans and kernels are of op-trees, be.plan(x + 1, y * 2); got {describe(*trees) or 'none'}"
            )
        if out is None:
            targets = [Tensor(None, self.leaf_info(x.shape, x.info.dtype)) for x in trees]
        else:
            targets = [out] if isinstance(out, Tensor) else list(out)
        tree = self._one(targets, trees)
        leaves = program(flat(tree))[1] if tree.leaves is None else tree.leaves
        crossed = any(overlap(x, y) != "none" for i, x in enumerate(targets) for y in targets[:i])
        return self._plan(None, targets, tree, self._clashes(targets, leaves), crossed)

    def kernel(self, *trees: Any, out: Any = None) -> str:
        """Return the CUDA kernels that work out some trees: text to read and to compile, on any runtime and machine.

        ``out``: as for ``plan``.

        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x = be.ones((100, 64), name="x")
        >>> print(be.kernel(1 / (1 + be.exp(-x))).split("---")[-1])  # behind the preamble
        <BLANKLINE>
        // x0: x (100, 64) float32
        // y0: div of stage 1 (100, 64) float32
        // y0 = (1 / (1 + exp(neg(x0))))
        extern "C" __global__ void __launch_bounds__(256) stage_1(
            const float* x0, float* y0, long long I)
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
        from neonlite.backend.cuda.executor import source

        return source(self.plan(*trees, out=out))

    # --- memory ---

    def memory(self) -> Memory:
        """Return the bytes handed out now: of tensors, of the arena of op-trees, of workspaces; and their peak.

        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x = be.zeros((1000, 250))
        >>> print(be.memory())
        1 MB: tensors 1 MB, arena 0 B, workspaces 0 B; peak 1 MB
        """
        return self.ledger.memory()

    def reset_peak(self) -> None:
        """Begin the peak of ``memory()`` anew, at what is handed out now."""
        self.ledger.reset_peak()

    def rehearsal(self) -> Rehearsal:
        """Return a backend like this one that computes nothing: it counts the memory and FLOPs that this would take.

        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu").rehearsal()
        >>> y = be.dot(be.zeros((100_000, 100_000)), be.zeros((100_000, 100_000))).astensor()
        >>> print(be.memory().peak, be.flops)
        120000000000 2000000000000000
        """
        from neonlite.backend.rehearsal import Rehearsal

        return Rehearsal(self)

    def __deepcopy__(self, memo: Any) -> Backend:
        return self

    def replay(self, block: Any, fn: Callable[[], Any], uses: Any = (), graphs: bool = True) -> Any:
        """Run ``fn()``, the work of a block that comes again and again, and return what it returns.

        On a card, a block that came twice with nothing changed is recorded as a CUDA graph, which from then on is
        launched in its place: ``fn`` is not called any more, and what it returned comes again. So ``fn`` is to depend
        on nothing but the values of tensors and the attributes of ``uses``, and to change nothing but these values.
        When one of these attributes, the batch size or the seed is another, ``fn`` is called, and recorded anew. Random
        numbers are those that ``fn`` would draw; an index out of range is told of when next numbers are read. A block
        that cannot be recorded is always run. ``block``: a name, such as ``Block.minibatch``; blocks may be nested.
        ``graphs=False``, and ``NEONLITE_GRAPHS=0`` in the environment: ``fn`` is called, as on other runtimes.

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

    @property
    def graphs(self) -> Any:
        """What ``replay`` recorded; None where there are no graphs."""
        if self._graphs is None and hasattr(self.runtime, "driver"):
            from neonlite.backend.cuda.graphs import Graphs

            self._graphs = Graphs(self)
        return self._graphs

    def begin(self, block: int, identifier: int) -> None:
        """Mark the start of a stretch of repeated work; it has no effect here."""

    def end(self, block: int, identifier: int) -> None:
        """Mark the end of a stretch of repeated work; it has no effect here."""

    # --- random numbers ---

    @property
    def rng(self) -> Any:
        """A NumPy generator for code on the host, seeded with the backend."""
        return self.streams.host

    @property
    def rng_seed(self) -> int:
        """The seed of all random streams."""
        return self.streams.seed

    def gen_rng(self, seed: int | None = None) -> Any:
        """Start all random streams anew from a seed, and return the generator for the host."""
        self.streams = self._streams(seed)
        return self.streams.host

    def _streams(self, seed: int | None) -> Streams:
        return Streams(seed, share)

    def rng_get_state(self, state: Any = None) -> tuple[Any, ...]:
        """Return what has been drawn so far: a small tuple. The argument has no effect."""
        return self.streams.get_state()

    def rng_set_state(self, state: Any) -> None:
        """Go on from a state that ``rng_get_state`` returned."""
        self.streams.set_state(state)

    def rng_reset(self) -> None:
        """Go back to the start of all random streams."""
        self.streams.reset()

    def make_binary_mask(self, out: Tensor, keepthresh: float = 0.5) -> None:
        """Fill a tensor with ones, each with probability ``keepthresh``, and zeros."""
        if getattr(self._executor, "driver", None) and out.is_contiguous:
            self._check_open()
            self._executor.mask(self.streams, out, mask_limit(keepthresh))
        else:
            self._fill(out, lambda array: self.streams.mask("masks", array, keepthresh))

    def fill_normal(self, ary: Tensor, mean: float = 0.0, stdv: float = 1.0) -> None:
        """Fill a tensor with normal random numbers."""
        if getattr(self._executor, "driver", None) and ary.is_contiguous and ary.info.dtype in FLOATS:
            self._check_open()
            self._executor.normal(self.streams, ary, mean, stdv)
            return
        self.write(ary, self.streams.normal("noise", ary.shape, "float64") * stdv + mean)

    def _fill(self, out: Tensor, fill: Callable[[Any], Any]) -> None:
        """Let ``fill`` write an array of the host: the tensor's own where it is one."""
        self._check_open()
        if isinstance(out.storage, np.ndarray):
            fill(stored.written(out, whole=True))
        else:
            fill(array := np.empty(out.shape, out.info.dtype))
            self.write(out, array)


@atexit.register
def _clean_up() -> None:
    for be in list(_open):
        be.cleanup_backend()
