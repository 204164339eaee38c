"""CUDA code generation for fused elementwise and reduction stages: schedules, index arithmetic and launch arguments.

A kernel computes steps that are elementwise over a domain, stores some of them, and may reduce others over the same
axes. Neighboring axes that every array traverses contiguously are merged first, so most kernels have one or two axes.
The source depends on the number of axes, the dtypes and which arrays are contiguous. Sizes, strides and scalars are
arguments, so one kernel serves all shapes of the same structure, and its source is the cache key.

There are three schedules, with 256 threads per block:

* ``map``: a thread processes V adjacent elements (16 bytes where memory is aligned) in a grid-stride loop;
* ``rows``: the reduced elements are adjacent. 32 or 256 threads, the lanes of a result, compute it together, and each
  reads V elements at a time;
* ``columns``: the results are adjacent. Neighboring threads compute neighboring results, so that reads are coalesced.
  Each lane computes V adjacent results, from 16 bytes of each row.

The lanes of a result combine their accumulators by a tree reduction in shared memory. If there are few results, each is
split among several blocks, and a finalize kernel combines the partial results in order. The split depends on shapes
alone, so sums are deterministic. Elementwise steps on reduction results are the epilogue, computed by the first lane of
each result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neonlite.backend.planning import Plan, align_bytes
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.runtimes.cuda.op_templates import (
    COMPUTE_TYPES,
    REDUCE_TEMPLATES,
    STORAGE_TYPES,
    ReductionTemplate,
    literal,
    op_expression,
    reduction_template,
    round_expression,
    substitute,
    to_compute,
    to_storage,
)
from neonlite.ops.functions import Axes, Shape
from neonlite.tree_structure import Constant
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, NativeArray, dtype_bits

THREADS_PER_BLOCK = 256
MAX_BLOCKS = 4096  # limit of the grid size of a map kernel, which loops over the remaining elements
SPLIT_REDUCTION_BLOCKS = 2048  # reductions are split until there are this many blocks
PACKS_IN_FLIGHT = 4  # packs that a lane loads of an operand before it accumulates them
MAX_PACKS_IN_FLIGHT = 8  # of all operands, which are in registers
MIN_LANE_PACKS = 16  # packs per lane below which a reduction is not split further
MAX_LANE_PACKS = 4096  # packs per lane above which a reduction is split, which bounds rounding errors of sums
WARP_SIZE = 32
MAX_KERNEL_REDUCTIONS = 16  # limited by shared memory
MAX_SHARED_BYTES = 48 << 10  # shared memory of a block
# bytes of an accumulator type; 24 for all others, the upper bound
ACCUMULATOR_BYTES = {
    "float": 4,
    "double": 8,
    "long long": 8,
    "unsigned long long": 8,
    "OnlineExpSum<float>": 8,
    "Welford<float>": 12,
}
MAX_KERNEL_STEPS = 400  # limit of the steps, and of the operands, of a kernel; it bounds compile times

PREAMBLE = Path(__file__).with_name("preamble.cuh").read_text(encoding="utf-8")

AddressFunction = Callable[[Any], tuple[int, tuple[int, ...]]]  # address and strides of an array, in bytes
Launch = tuple[str, tuple[int, int], int, list[int | float]]  # source, grid, threads per block, arguments


class KernelArray(NamedTuple):
    """An array that a kernel reads or writes."""

    v: int
    name: str  # x0, x1 ... are read, y0, y1 ... written
    dtype: str
    axes: Shape  # for each merged axis, the axis of the array whose stride applies; -1 if it is broadcast
    sizes: Shape  # sizes along the merged axes
    contiguous: bool


def region_kernels(plan: Plan, stage: Stage) -> list[FusedKernel] | None:
    """Return the kernels of a fused stage; None if a step has no template, or there are too many steps.

    There is one kernel per set of reduced axes. The last one stores the elementwise results, which may overwrite
    operands of the other kernels.
    """
    steps = {v: plan.step_of(v) for v in stage.steps}
    if len(steps) > MAX_KERNEL_STEPS or len({x for step in steps.values() for x in step.inputs}) > MAX_KERNEL_STEPS:
        return None
    for step in steps.values():
        if step.kind == "elementwise" and op_expression(step, "xyw", _operand_dtype(plan, step)) is None:
            return None
        if step.kind == "reduction" and step.op.name not in REDUCE_TEMPLATES:
            return None
    groups: dict[tuple[Axes, int], list[int]] = {}
    for n, v in enumerate(v for v, step in steps.items() if step.kind == "reduction"):
        axes = tuple(a for a in steps[v].attrs["axis"] if stage.domain[a] != 1)
        groups.setdefault((axes, n // MAX_KERNEL_REDUCTIONS), []).append(v)
    outputs = [v for v, s in steps.items() if s.kind != "reduction" and is_stored(plan, v)]
    if not outputs and not groups:
        return []
    last = len(groups) - 1
    result = [
        FusedKernel(plan, steps, stage.domain, outputs if n == last else [], vs) for n, vs in enumerate(groups.values())
    ]
    return result or [FusedKernel(plan, steps, stage.domain, outputs, [])]


def is_stored(plan: Plan, v: int) -> bool:
    """Return whether a value is written to memory: it is read by another kernel, or is an output."""
    return v in plan.temporaries or v in plan.outputs


def _operand_dtype(plan: Plan, step: Step) -> str:
    return plan.dtype(step.inputs[0])


class Accumulator(NamedTuple):
    """An accumulator of a kernel: its template, and the indices of the reductions that are computed from it."""

    template: ReductionTemplate
    reductions: list[int]


class FusedKernel:
    """A kernel that reads a domain once.

    ``source()`` returns its source, ``launches()`` the launches with their arguments.
    """

    threads = THREADS_PER_BLOCK

    def __init__(
        self, plan: Plan, steps: dict[int, Step], domain: Shape, outputs: Sequence[int], reductions: Sequence[int]
    ) -> None:
        self.plan, self.outputs, self.reductions = plan, list(outputs), list(reductions)
        self.size_axes: list[int] = []  # axes whose sizes are arguments
        needed = {*outputs, *reductions}
        for v in reversed(steps):
            if v in needed:
                needed.update(x for x in steps[v].inputs if isinstance(x, int))
        self.steps = {v: step for v, step in steps.items() if v in needed}
        self.epilogue_steps = {
            v: step for v, step in self.steps.items() if v not in reductions and step.shape != domain
        }
        self.step_numbers = {v: n for n, v in enumerate(v for v in self.steps if v not in reductions)}
        operands = dict.fromkeys((x, step.compute_dtype) for step in self.steps.values() for x in step.inputs)
        inputs = dict.fromkeys(x for x, _ in operands if isinstance(x, int) and x not in self.steps and plan.dtype(x))
        # scalar arguments are passed in the widest type of their kind; the kernel rounds them
        self.scalars = {
            (x, c_type): f"c{n}"
            for n, (x, c_type) in enumerate(
                dict.fromkeys(
                    (x, "double" if common in FLOAT_DTYPES else "long long")
                    for x, common in operands
                    if isinstance(x, int) and x not in self.steps and not plan.dtype(x)
                )
            )
        }
        self.stored_reductions = [n for n, v in enumerate(reductions) if is_stored(plan, v)]
        accumulators: dict[Any, Accumulator] = {}
        for n, v in enumerate(reductions):
            step, template = self.steps[v], reduction_template(self.steps[v])
            accumulators.setdefault(
                (step.inputs, step.compute_dtype, template._replace(result="")), Accumulator(template, [])
            ).reductions.append(n)
        self.accumulators = list(accumulators.values())
        self._merge_axes(domain, list(inputs))
        late = {*self.epilogue_steps, *(x for step in self.epilogue_steps.values() for x in step.inputs)}
        early = {v for v in self.steps if v not in self.epilogue_steps}
        early |= {x for v in early for x in self.steps[v].inputs}  # type: ignore[misc]
        self.epilogue_arrays = [x for x in self.arrays if x.v in late]
        self.loop_arrays = [x for x in self.arrays if x.v in early]
        self._choose_schedule()

    # --- geometry ---

    def _merge_axes(self, domain: Shape, inputs: list[int]) -> None:
        """Merge neighboring axes that every array traverses contiguously."""
        plan, ndim = self.plan, len(domain)
        arrays = [(v, f"x{n}", plan.shape(v)) for n, v in enumerate(inputs)]
        arrays += [(v, f"y{n}", plan.shape(v)) for n, v in enumerate(self.outputs)]
        shapes = {name: (1,) * (ndim - len(shape)) + shape for _, name, shape in arrays}
        reduction_shape = self.steps[self.reductions[0]].attrs["axis"] if self.reductions else ()

        def can_merge(a: int, b: int) -> bool:
            return (a in reduction_shape) == (b in reduction_shape) and all(
                shapes[name][a] == shapes[name][b] == 1
                or (plan.is_contiguous(v) and shapes[name][a] != 1 and shapes[name][b] != 1)
                for v, name, _ in arrays
            )

        groups: list[list[int]] = []
        for a in (a for a in range(ndim) if domain[a] != 1):
            if groups and can_merge(groups[-1][-1], a):
                groups[-1].append(a)
            else:
                groups.append([a])
        groups = groups or [[]]
        self.sizes = tuple(math.prod(domain[a] for a in group) for group in groups)
        self.reduced_axes = [i for i, group in enumerate(groups) if group and group[0] in reduction_shape]
        self.result_axes = [i for i in range(len(groups)) if i not in self.reduced_axes]
        self.arrays: list[KernelArray] = []
        for v, name, shape in arrays:
            short = ndim - len(shape)
            axes = tuple(g[-1] - short if g and shapes[name][g[-1]] != 1 else -1 for g in groups)
            sizes = tuple(math.prod(shapes[name][a] for a in g) for g in groups)
            self.arrays.append(KernelArray(v, name, plan.dtype(v), axes, sizes, plan.is_contiguous(v)))

    def _choose_schedule(self) -> None:
        """Choose the schedule, the vector width, the lanes per result and the number of splits."""
        self.size = math.prod(self.sizes)
        self.num_results = math.prod(self.sizes[a] for a in self.result_axes)
        self.reduction_size = math.prod(self.sizes[a] for a in self.reduced_axes)
        self.schedule = (
            "map" if not self.reductions else "rows" if len(self.sizes) - 1 in self.reduced_axes else "columns"
        )
        self.index_type = "unsigned" if self.size < 2**31 else "long long"
        packed = [
            (x.name, dtype_bits(x.dtype) // 8) for x in self.loop_arrays if x.contiguous and self._has_inner_stride(x)
        ]
        width = 16 // max((nbytes for _, nbytes in packed), default=16)
        self.vector_width = 1 if self.sizes[-1] % width else width
        if self.schedule == "columns":
            self.vector_width = self._results_per_lane()
        self.aligned = [(name, self.vector_width * nbytes) for name, nbytes in packed]
        self.lanes = 1
        if self.schedule == "rows":
            elements = self.reduction_size // (
                WARP_SIZE * self.vector_width
            )  # iterations of a lane, if a result has 32 lanes
            self.lanes = WARP_SIZE if elements <= (32 if self.num_results >= 4096 else 4) else THREADS_PER_BLOCK
        elif self.schedule == "columns":
            while self.lanes < min(self.reduction_size, THREADS_PER_BLOCK // WARP_SIZE):
                self.lanes *= 2
            while self.lanes < THREADS_PER_BLOCK and THREADS_PER_BLOCK // self.lanes * self.vector_width >= 2 * max(
                self.num_results, 1
            ):
                self.lanes *= 2
        self.results_per_block = THREADS_PER_BLOCK // self.lanes
        self.blocks = self._blocks(self.vector_width)
        step = self.vector_width if self.schedule == "rows" else 1  # elements of a result per lane and iteration
        round_elements = self.lanes * step * PACKS_IN_FLIGHT  # elements of a result that its lanes load at once
        rounds = -(-self.reduction_size // round_elements)
        splits = min(SPLIT_REDUCTION_BLOCKS // max(self.blocks, 1), rounds * PACKS_IN_FLIGHT // MIN_LANE_PACKS)
        splits = max(1, splits, -(-rounds * PACKS_IN_FLIGHT // MAX_LANE_PACKS))
        chunk = max(-(-rounds // splits), 1) * round_elements  # only the last split has an incomplete round
        self.num_splits = max(1, -(-self.reduction_size // chunk)) if self.reductions else 1
        self.counts = [self.num_results, self.reduction_size, chunk] if self.reductions else [self.size]
        self.partial_offsets = [0]  # offsets of the partial results in the workspace, and their end
        for template, _ in self.accumulators if self.num_splits > 1 else ():
            self.partial_offsets.append(
                self.partial_offsets[-1]
                + align_bytes(ACCUMULATOR_BYTES.get(template.acc_type, 24) * self.num_splits * self.num_results)
            )
        self.sources: dict[tuple[str, int], str] = {}
        self.finalize_sources: dict[str, tuple[str, list[int]]] = {}

    @property
    def has_vector_results(self) -> bool:
        """Whether a lane computes V adjacent results, and not one result from V elements at a time."""
        return self.schedule == "columns"

    def _results_per_lane(self) -> int:
        """Return the number of results per lane; fewer if many accumulators need shared memory."""
        if not self.has_vector_results:
            return 1
        V, nbytes = (
            self.vector_width,
            sum(ACCUMULATOR_BYTES.get(template.acc_type, 24) for template, _ in self.accumulators),
        )
        while V > 1 and V * nbytes * THREADS_PER_BLOCK > 2 * MAX_SHARED_BYTES // 3:
            V //= 2
        return V

    def _blocks(self, V: int) -> int:
        """Return the number of blocks that cover all results, which is also that of each split."""
        return -(-self.num_results // (self.results_per_block * (V if self.has_vector_results else 1)))

    def _has_inner_stride(self, x: KernelArray) -> bool:
        """Return whether an array advances along the last axis, and is not broadcast along it."""
        return x.sizes[-1] == self.sizes[-1] if x.contiguous else x.axes[-1] >= 0

    # --- source ---

    def source(self, name: str = "kernel", vector: int | None = None) -> str:
        """Return the source of the kernel; ``vector``: a vector width other than the chosen one."""
        V = vector or self.vector_width
        if (name, V) in self.sources:
            return self.sources[name, V]
        body = self._map_body() if self.schedule == "map" else self._reduction_body()
        self.size_axes = used_sizes(body)
        text = self.sources[name, V] = "\n".join(
            [
                *(f"// {line}" for line in self.formulas()),
                f'extern "C" __global__ void __launch_bounds__({self.threads}) {name}(',
                f"    {', '.join([*self._parameters(), *(f'{self.index_type} n{a}' for a in self.size_axes)])})",
                "{",
                f"    typedef {self.index_type} Index;",
                *self._constants(V),
                *body,
                "}",
                "",
            ]
        )
        return text

    def _constants(self, V: int) -> list[str]:
        """Return the lines that define the constants of a kernel."""
        lines = [f"    constexpr int V = {V};  // adjacent elements per thread and iteration"]
        if self.reductions:
            units = "V results, groups of V results" if self.has_vector_results else "result, results"
            lines.append(
                f"    constexpr int LANES = {self.lanes}, RESULTS = {self.results_per_block};  "
                f"// threads per {units} per block"
            )
        return lines

    def formulas(self) -> Iterator[str]:
        """Yield the formula of each result. Common subexpressions are repeated in each."""
        texts: dict[int, str] = {x.v: x.name for x in self.arrays if x.name[0] == "x"}
        texts |= {x: name for (x, _), name in self.scalars.items()}
        for v, step in self.steps.items():
            operands = [str(x.value) if isinstance(x, Constant) else texts[x] for x in step.inputs]
            sign = step.op.symbol
            text = f"({operands[0]} {sign} {operands[1]})" if sign else f"{step.op.name}({', '.join(operands)})"
            texts[v] = text if len(text) < 90 else "..."
        yield from (f"y{n} = {texts[v]}" for n, v in enumerate(self.outputs))
        axes = (
            f" over axis {' and '.join(map(str, self.reduced_axes))} of {len(self.sizes)}"
            if len(self.sizes) > 1
            else ""
        )
        yield from (f"s{n} = {texts[v]}{axes}" for n, v in enumerate(self.reductions))

    def argument_comments(self, describe: Callable[[int], str]) -> Iterator[str]:
        """Yield a comment for each argument; ``describe`` returns the description of a value."""
        yield from (f"{x.name}: {describe(x.v)}" for x in self.arrays)
        yield from (f"{name}: {describe(x)}" for (x, _), name in self.scalars.items())
        yield from (f"s{n}: {describe(v)}" for n, v in enumerate(self.reductions))

    def _parameters(self) -> list[str]:
        """Return the parameters without the sizes; ``launches`` returns the arguments in the same order."""
        shared = [f"{template.acc_type}* s{m}" for m, (template, _) in enumerate(self.accumulators)]
        arrays, results = (
            (self.loop_arrays, shared) if self.num_splits > 1 else (self.arrays, self._reduction_pointers())
        )
        counts = ("num_results", "reduction_size", "chunk")[: len(self.counts)] if self.reductions else ("I",)
        return [
            *self._pointers(arrays),
            *results,
            *self._scalar_parameters(arrays),
            *(f"{self.index_type} {name}" for name in counts),
        ]

    def _pointers(self, arrays: Sequence[KernelArray]) -> list[str]:
        return [f"{'const ' * (x.name[0] == 'x')}{STORAGE_TYPES[x.dtype]}* {x.name}" for x in arrays]

    def _reduction_pointers(self) -> list[str]:
        return [f"{STORAGE_TYPES[self._reduction_step(n).dtype]}* s{n}" for n in self.stored_reductions]

    def _scalar_parameters(self, arrays: Sequence[KernelArray]) -> list[str]:
        """Return the parameters for scalars and for strides."""
        strides = [f"long long {x.name}_{a}" for x in arrays for a in self._strided_axes(x)]
        return [f"{c_type} {name}" for (_, c_type), name in self.scalars.items()] + strides

    def _strided_axes(self, x: KernelArray) -> list[int]:
        """Return the axes along which an array has an explicit stride."""
        return [] if x.contiguous else [a for a in range(len(self.sizes)) if x.axes[a] >= 0]

    def _map_body(self) -> list[str]:
        inner = self._loop_body(
            {x.name: "i" for x in self.arrays if x.contiguous and x.sizes == self.sizes}, "        "
        )
        return [
            "    const Index stride = (Index)gridDim.x * blockDim.x * V;",
            "    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {",
            *self._axis_indices("i", list(range(len(self.sizes))), inner, "        "),
            *inner,
            "    }",
        ]

    def _reduction_body(self) -> list[str]:
        has_vector_results = self.has_vector_results
        k, at = ("c", "[q]") if has_vector_results else ("k", "")
        lines = [
            *self._lane_indices(),
            "    const Index first = blockIdx.y * chunk, last = first + chunk;",
            "    const Index end = last < reduction_size ? last : reduction_size;",
        ]
        for m, (template, _) in enumerate(self.accumulators):
            if has_vector_results:
                lines += [f"    {template.acc_type} a{m}[V];", *for_each_q(f"a{m}[q] = {template.identity};")]
            else:
                lines.append(f"    {template.acc_type} a{m} = {template.identity};")
        lines += [f"    if ({k} < num_results) {{", *self._reduction_loop(k), "    }"]
        for m, (template, _) in enumerate(self.accumulators):
            lines += self._block_reduce(m, template)
            if self.num_splits > 1:
                part = f"s{m}[blockIdx.y * num_results + {k}{' + q' * has_vector_results}] = p{m}{at}[threadIdx.x];"
                inside = for_each_q(part, "        ") if has_vector_results else [f"        {part}"]
                lines += [f"    if (lane == 0 && {k} < num_results) {{", *inside, "    }"]
        return lines if self.num_splits > 1 else lines + self._epilogue(has_vector_results)

    def _reduction_loop(self, k: str) -> list[str]:
        """Return the lines that load and accumulate the packs of a lane. ``k``: the index of its result."""
        indent, texts, unit = " " * 16, dict[int, str](), "" if self.has_vector_results else " * V"
        xs = [x for x in self.loop_arrays if x.name[0] == "x"]
        once = [line for x in xs if self._is_per_row(x) for line in self._load(x, {}, texts, " " * 8)]
        xs = [x for x in xs if not self._is_per_row(x)]
        loads = [line for x in xs for line in self._load(x, {}, texts, indent, "[u]")]
        body = self._element_loop(texts, {}, indent)
        U = max(min(PACKS_IN_FLIGHT, MAX_PACKS_IN_FLIGHT // max(len(xs), 1)), 1)
        return [
            *self._axis_indices(k, self.result_axes, [*once, *loads, *body], "        "),
            *once,
            f"        constexpr int U = {U};  // packs in flight",
            f"        const Index packs = (end - first + (LANES - 1 - lane){unit}) / (LANES{unit});  // of this lane",
            "        for (Index p = 0; p < packs; p += U) {  // load U packs, then accumulate them",
            *(f"            {self._loaded_type(x)} {x.name}s[U];" for x in xs),
            "            #pragma unroll",
            "            for (int u = 0; u < U; ++u) {",
            f"{indent}const Index pack = p + u < packs ? p + u : packs - 1;  // the last one again after the end",
            *self._pack_indices(f"first + (lane + pack * LANES){unit}", loads, indent),
            *loads,
            "            }",
            "            #pragma unroll",
            "            for (int u = 0; u < U; ++u) if (p + u < packs) {",
            *self._pack_indices(f"first + (lane + (p + u) * LANES){unit}", body, indent),
            *body,
            "            }",
            "        }",
        ]

    def _pack_indices(self, j: str, inner: list[str], indent: str) -> list[str]:
        """Return the lines that compute the used indices of a pack from the expression of its first element."""
        indices = self._axis_indices("j", self.reduced_axes, inner, indent)
        is_used = re.search(r"\bj\b", "\n".join([*indices, *inner]))
        return [f"{indent}const Index j = {j};", *indices] if is_used else indices

    def _epilogue(self, has_vector_results: bool = False) -> list[str]:
        """Return the lines in which the first lane of each result computes and stores the epilogue."""
        indent, texts, lines = " " * 8, dict[int, str](), list[str]()
        at = "q][threadIdx.x" if has_vector_results else "threadIdx.x"
        for m, (_, results) in enumerate(self.accumulators):
            for n in results:
                step, text = self._reduction_step(n), self._result(n, m, at)
                if self.epilogue_steps:
                    text = round_expression(text, step.dtype)
                    lines.append(f"{indent}const {COMPUTE_TYPES[step.dtype]} t{n} = {text};  // {step.op.name}")
                    text = f"t{n}"
                texts[self.reductions[n]] = text
        for x in self.epilogue_arrays:
            if x.name[0] == "x":
                lines.append(f"{indent}const {STORAGE_TYPES[x.dtype]} {x.name}t = {x.name}[{self._element_offset(x)}];")
                texts[x.v] = to_compute(f"{x.name}t", x.dtype)
        lines += self._compute(self.epilogue_steps, texts, indent)
        lines += [f"{indent}{text}" for text in self._epilogue_stores(texts)]
        head = ["    if (lane == 0 && k < num_results) {"]
        if has_vector_results:
            head = [
                "    for (int q = 0; q < V && lane == 0 && c < num_results; ++q) {",
                f"{indent}const Index k = c + q;",
            ]
        return [*head, *self._axis_indices("k", self.result_axes, lines, indent), *lines, "    }"]

    def _epilogue_stores(self, texts: dict[int, str]) -> list[str]:
        """Return the lines that store the epilogue's results and the reductions."""
        ys = [x for x in self.arrays if x.v in self.epilogue_steps and x.name[0] == "y"]
        stores = [f"{x.name}[{self._element_offset(x)}] = {to_storage(texts[x.v], x.dtype)};" for x in ys]
        reductions = [(n, self.reductions[n]) for n in self.stored_reductions]
        return stores + [f"s{n}[k] = {to_storage(texts[v], self._reduction_step(n).dtype)};" for n, v in reductions]

    def _lane_indices(self, k: str = "k") -> list[str]:
        """Return the lines that compute a thread's lane, and the index of its result, or of the first of V."""
        position = ("% LANES", "/ LANES") if self.schedule == "rows" else ("/ RESULTS", "% RESULTS")
        lane = f"    const int lane = threadIdx.x {position[0]}, slot = threadIdx.x {position[1]};"
        if self.has_vector_results:
            return [
                lane,
                "    const Index c = ((Index)blockIdx.x * RESULTS + slot) * V;  // index of the first result",
            ]
        return [lane, f"    const Index {k} = (Index)blockIdx.x * RESULTS + slot;  // index of the result"]

    def _block_reduce(self, m: int, template: ReductionTemplate) -> list[str]:
        return block_reduce(
            m, template, "1" if self.schedule == "rows" else "RESULTS", self.threads, self.has_vector_results
        )

    def _result(self, n: int, m: int, at: str = "threadIdx.x") -> str:
        """Return the expression of a reduction's result from its accumulator."""
        return substitute(reduction_template(self._reduction_step(n)).result, a=f"p{m}[{at}]")

    def _reduction_step(self, n: int) -> Step:
        return self.steps[self.reductions[n]]

    def _axis_indices(self, flat: str, axes: list[int], inner: list[str], indent: str) -> list[str]:
        """Return the lines that compute the used indices along some axes from a flat index in C order."""
        text = "\n".join(inner)
        lines = []
        for a in axes:
            if re.search(rf"\bi{a}\b", text):
                after = [f"n{b}" for b in axes if b > a]
                index = " / ".join([flat, *after]) if len(after) < 2 else f"{flat} / ({' * '.join(after)})"
                lines.append(f"{indent}const Index i{a} = {index}{f' % n{a}' * (a != axes[0])};")
        return lines

    def _element_offset(self, x: KernelArray) -> str:
        """Return the expression of an element's offset: C order if the array is contiguous, else by strides."""
        if not x.contiguous:
            return " + ".join(f"i{a} * {x.name}_{a}" for a in self._strided_axes(x)) or "0"
        text = ""
        for a in range(len(self.sizes)):
            if x.axes[a] >= 0 and self.sizes[a] != 1:
                text = f"({text}) * n{a} + i{a}" if " " in text else f"{text} * n{a} + i{a}" if text else f"i{a}"
        return text or "0"

    def _loop_body(self, offsets: dict[str, str], indent: str) -> list[str]:
        """Return the lines that load V elements of each operand, compute the steps and store."""
        texts: dict[int, str] = {}
        loads = [line for x in self.loop_arrays if x.name[0] == "x" for line in self._load(x, offsets, texts, indent)]
        return loads + self._element_loop(texts, offsets, indent)

    def _element_loop(self, texts: dict[int, str], offsets: dict[str, str], indent: str) -> list[str]:
        """Return the lines that compute the steps for V elements, accumulate and store."""
        ys = [x for x in self.loop_arrays if x.name[0] == "y"]
        lines = [f"{indent}{self._loaded_type(x)} {x.name}s;" for x in ys]
        lines += [f"{indent}#pragma unroll", f"{indent}for (int q = 0; q < V; ++q) {{"]
        lines += self._compute(
            {v: s for v, s in self.steps.items() if v not in self.epilogue_steps}, texts, f"{indent}    "
        )
        lines += [f"{indent}    {x.name}s.at[q] = {to_storage(texts[x.v], x.dtype)};" for x in ys]
        lines += [line for m in range(len(self.accumulators)) for line in self._accumulate(m, texts, f"{indent}    ")]
        lines.append(f"{indent}}}")
        return lines + [line for x in ys for line in self._store(x, offsets, indent)]

    def _is_per_row(self, x: KernelArray) -> bool:
        """Return whether an array has one element per row."""
        return all(x.axes[a] < 0 for a in self.reduced_axes)

    def _loaded_type(self, x: KernelArray) -> str:
        """Return the type of V elements of an array, or of its broadcast element."""
        is_pack = x.name[0] == "y" or self._has_inner_stride(x)
        return f"Pack<{STORAGE_TYPES[x.dtype]}, V>" if is_pack else STORAGE_TYPES[x.dtype]

    def _load(
        self, x: KernelArray, offsets: dict[str, str], texts: dict[int, str], indent: str, row: str = ""
    ) -> Iterator[str]:
        """Yield the lines that load V elements of an array, or its broadcast element.

        The expression of an element is added to ``texts``. ``row``: the index of the pack, where several are kept in
        registers.
        """
        offset, is_vector = offsets.get(x.name) or self._element_offset(x), self._has_inner_stride(x)
        const = "" if row else f"const {self._loaded_type(x)} "
        if is_vector and x.contiguous:
            yield f"{indent}{const}{x.name}s{row} = load<V>({x.name} + {offset});"
        elif is_vector:
            step = f" + q * {x.name}_{len(self.sizes) - 1}"
            if not row:
                yield f"{indent}{self._loaded_type(x)} {x.name}s;"
            yield f"{indent}for (int q = 0; q < V; ++q) {x.name}s{row}.at[q] = {x.name}[{offset}{step}];"
        else:
            yield f"{indent}{const}{x.name}s{row} = {x.name}[{offset}];"
        text = f"{x.name}s{row}" + ".at[q]" * is_vector
        texts[x.v] = to_compute(text, x.dtype)

    def _compute(self, steps: dict[int, Step], texts: dict[int, str], indent: str) -> Iterator[str]:
        """Yield the lines that compute steps for one element, and add their names to ``texts``."""
        for v, step in steps.items():
            if v not in self.reductions:
                expression = op_expression(step, self._operands(step, texts), _operand_dtype(self.plan, step))
                texts[v] = f"v{self.step_numbers[v]}"
                yield f"{indent}const {COMPUTE_TYPES[step.dtype]} {texts[v]} = {expression};  // {step.op.name}"

    def _accumulate(self, m: int, texts: dict[int, str], indent: str) -> Iterator[str]:
        """Yield the line that adds one element to an accumulator."""
        template, results = self.accumulators[m]
        step = self._reduction_step(results[0])
        a, j = (f"a{m}[q]", "(long long)j") if self.has_vector_results else (f"a{m}", "(long long)j + q")
        x = self._operand(step.inputs[0], step, texts)
        text = substitute(template.update, a=a, x=x)
        text = text or substitute(template.combine, a=a, b=substitute(template.from_element, x=x, j=j))
        yield f"{indent}{a} = {text};"

    def _store(self, x: KernelArray, offsets: dict[str, str], indent: str) -> Iterator[str]:
        """Yield the line that stores V elements."""
        offset = offsets.get(x.name) or self._element_offset(x)
        if x.contiguous:
            yield f"{indent}store({x.name} + {offset}, {x.name}s);"
        else:
            step = f" + q * {x.name}_{len(self.sizes) - 1}" * (x.axes[-1] >= 0)
            yield f"{indent}for (int q = 0; q < V; ++q) {x.name}[{offset}{step}] = {x.name}s.at[q];"

    def _operands(self, step: Step, texts: dict[int, str]) -> list[str]:
        """Return the expressions of a step's operands."""
        return [self._operand(x, step, texts) for x in step.inputs]

    def _operand(self, x: int | Constant, step: Step, texts: dict[int, str]) -> str:
        """Return the expression of a step's operand: a literal, a scalar argument, an element or an earlier step."""
        if isinstance(x, Constant):
            return literal(x.value, step.compute_dtype)
        if x in texts:
            return texts[x]
        scalar = self.scalars[x, "double" if step.compute_dtype in FLOAT_DTYPES else "long long"]
        return (
            round_expression(scalar, step.compute_dtype)
            if step.compute_dtype in HALF_DTYPES
            else f"(({COMPUTE_TYPES[step.compute_dtype]}){scalar})"
        )

    # --- launches ---

    @property
    def workspace_bytes(self) -> int:
        """The bytes of workspace for the partial results of split reductions."""
        return self.partial_offsets[-1]

    def launches(self, values: dict[int, NativeArray], address_of: AddressFunction, workspace: int) -> Iterator[Launch]:
        """Yield (source, grid, threads, arguments) in order. ``workspace``: the address for partial results."""
        if (self.num_results if self.reductions else self.size) == 0:
            return
        locations = {x.name: address_of(values[x.v]) for x in self.arrays}
        V = self.vector_width
        for name, nbytes in self.aligned:
            if locations[name][0] % nbytes:
                V = 1
        result_addresses = [address_of(values[self.reductions[n]])[0] for n in self.stored_reductions]
        partials = [workspace + offset for offset in self.partial_offsets[:-1]]
        scalars: list[int | float] = [
            float(values[x]) if c_type == "double" else wrap_int64(int(values[x])) for x, c_type in self.scalars
        ]

        def arguments_for(arrays: Sequence[KernelArray], *results: int) -> list[int | float]:
            strides = [
                locations[x.name][1][x.axes[a]] // (dtype_bits(x.dtype) // 8)
                for x in arrays
                for a in self._strided_axes(x)
            ]
            return [*(locations[x.name][0] for x in arrays), *results, *scalars, *strides]

        source = self.source(vector=V)
        arguments = (
            arguments_for(self.loop_arrays, *partials)
            if self.num_splits > 1
            else arguments_for(self.arrays, *result_addresses)
        )
        blocks = self._blocks(V) if self.reductions else min(-(-self.size // (THREADS_PER_BLOCK * V)), MAX_BLOCKS)
        sizes = [self.sizes[a] for a in self.size_axes]
        yield source, (blocks, self.num_splits), self.threads, [*arguments, *self.counts, *sizes]
        if self.num_splits > 1:
            source, axes = self.finalize_source()
            arguments = [
                *arguments_for(self.epilogue_arrays, *result_addresses, *partials),
                self.num_splits,
                self.num_results,
                *(self.sizes[a] for a in axes),
            ]
            yield source, (-(-self.num_results // self._results_per_finalize_block()), 1), THREADS_PER_BLOCK, arguments

    def _results_per_finalize_block(self) -> int:
        """Return the number of results of a block that combines splits; fewer if there are few, with more lanes."""
        return min(1 << (self.num_results - 1).bit_length(), WARP_SIZE)

    def finalize_source(self, name: str = "kernel") -> tuple[str, list[int]]:
        """Return the source of the kernel that combines the splits, and the axes whose sizes are its arguments."""
        if name in self.finalize_sources:
            return self.finalize_sources[name]
        results = self._results_per_finalize_block()
        combine_expressions = [
            substitute(template.combine, a=f"a{m}", b=f"partials{m}[p * num_results + k]")
            for m, (template, _) in enumerate(self.accumulators)
        ]
        body = [
            f"    constexpr int LANES = {THREADS_PER_BLOCK // results}, RESULTS = {results};",
            "    const int lane = threadIdx.x / RESULTS, slot = threadIdx.x % RESULTS;",
            "    const Index k = (Index)blockIdx.x * RESULTS + slot;",
            *(
                f"    {template.acc_type} a{m} = {template.identity};"
                for m, (template, _) in enumerate(self.accumulators)
            ),
            "    if (k < num_results)",
            "        for (Index p = lane; p < num_splits; p += LANES) {",
            *(f"            a{m} = {text};" for m, text in enumerate(combine_expressions)),
            "        }",
            *(
                line
                for m, (template, _) in enumerate(self.accumulators)
                for line in block_reduce(m, template, "RESULTS")
            ),
            *self._epilogue(),
        ]
        axes = used_sizes(body)
        parts = [f"const {template.acc_type}* partials{m}" for m, (template, _) in enumerate(self.accumulators)]
        parameters = [
            *self._pointers(self.epilogue_arrays),
            *self._reduction_pointers(),
            *parts,
            *self._scalar_parameters(self.epilogue_arrays),
        ]
        counts = ["num_splits", "num_results", *(f"n{a}" for a in axes)]
        parameters += [f"{self.index_type} {name}" for name in counts]
        text = "\n".join(
            [
                f"// combine the splits of {' and '.join(self.steps[v].op.name for v in self.reductions)}",
                f'extern "C" __global__ void __launch_bounds__({THREADS_PER_BLOCK}) {name}(',
                f"    {', '.join(parameters)})",
                "{",
                f"    typedef {self.index_type} Index;",
                *body,
                "}",
                "",
            ]
        )
        self.finalize_sources[name] = text, axes
        return self.finalize_sources[name]


def used_sizes(body: Sequence[str]) -> list[int]:
    """Return the axes whose sizes are read."""
    return sorted({int(n) for n in re.findall(r"\bn(\d+)\b", "\n".join(body))})


def block_reduce(
    n: int, template: ReductionTemplate, stride: str, threads: int = THREADS_PER_BLOCK, has_vector_results: bool = False
) -> list[str]:
    """Return the lines that combine the accumulators of a result's lanes by a tree in shared memory.

    ``stride``: distance between the threads of adjacent lanes; ``has_vector_results``: lanes compute V results each.
    """
    many, at = ("[V]", "[q]") if has_vector_results else ("", "")
    mine, other = f"p{n}{at}[threadIdx.x]", f"p{n}{at}[threadIdx.x + offset * {stride}]"
    first, step = f"{mine} = a{n}{at};", f"{mine} = {substitute(template.combine, a=mine, b=other)};"
    return [
        f"    __shared__ {template.acc_type} p{n}{many}[{threads}];",
        *(for_each_q(first) if has_vector_results else [f"    {first}"]),
        "    __syncthreads();",
        "    for (int offset = LANES / 2; offset; offset /= 2) {",
        *(
            ["        if (lane < offset) {", *for_each_q(step, " " * 12), "        }"]
            if has_vector_results
            else [f"        if (lane < offset) {step}"]
        ),
        "        __syncthreads();",
        "    }",
    ]


def for_each_q(line: str, indent: str = "    ") -> list[str]:
    """Return the lines that run a line for each q in 0 ... V - 1."""
    return [f"{indent}#pragma unroll", f"{indent}for (int q = 0; q < V; ++q) {line}"]


def wrap_int64(number: int) -> int:
    """Return the signed 64-bit integer with the bits of an unsigned one."""
    return (number + 2**63) % 2**64 - 2**63
