"""Code generation for fused stages: a Python function that calls ufuncs with ``out=`` and library chains.

The function is called once for small operands, and once per block for larger ones. Its arguments are the inputs,
outputs, reduction results and registers of the stage. Registers are block-sized buffers for intermediate values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.backend.runtimes.numpy.summation import (
    accumulation_dtype,
    find_product_factors,
    select_reduction_function,
)
from neonlite.backend.runtimes.numpy.templates import OPERAND_NAMES, REDUCTION_UFUNCS, UFUNCS, template_of
from neonlite.tree_structure import Constant

if TYPE_CHECKING:
    from neonlite.backend.runtimes.numpy.fused_stage import FusedStage


class StageCode:
    """The generated function of a fused stage, its source, and the dtypes of its registers.

    A sum of products that is computed in one call removes the product from the steps of the stage.
    """

    source: str
    function: Callable[..., None]

    def __init__(self, stage: FusedStage) -> None:
        self.stage, self.plan, self.steps, self.chains = stage, stage.plan, stage.steps, stage.chains
        self.inputs, self.outputs, self.reductions = stage.inputs, stage.outputs, stage.reductions
        self.registers: list[str] = []
        self._generate()

    def _generate(self) -> None:
        """Generate the function and its source."""
        reductions = self._select_reduction_functions()
        order, elements = list(self.steps), math.prod(self.stage.shape_in_call)
        last = {x: i for i, v in enumerate(order) for x in self.steps[v].inputs if isinstance(x, int)}
        templates = {v: template_of(s) for v, s in self.steps.items()}
        templates |= dict.fromkeys(self.chains, "")  # chains may write in place
        names = dict(UFUNCS)
        for v, step in self.steps.items():
            if v in self.chains:
                is_worker = self.stage.is_tiled and not self.stage.is_all_chains
                names[f"chain{v}"] = self.chains[v] if is_worker else self.chains[v].run_parallel
            elif function := self.stage.executor.find_function(step, elements, self._is_in_order(v)):
                names[f"fast_{step.op.name}"], templates[v] = function, f"fast_{step.op.name}({{x}}, {{z}})"
        outputs = {v: f"o{n}" for n, v in enumerate(self.outputs)}
        at = {v: i for i, v in enumerate(order)}
        copied_outputs = [v for v in outputs if self._overwrites_live_operand(v, v, at[v], last, templates[v])]
        location = {v: f"i{n}" for n, v in enumerate(self.inputs)}
        location |= self._allocate_registers(order, last, templates, outputs, copied_outputs)

        def text(x: int | Constant, dtype: str) -> str:
            if isinstance(x, int):
                return location[x]
            name = f"c{x.value}_{dtype}".replace("-", "m")
            names[name] = np.asarray(x.value, dtype)  # twice as fast as a Python scalar
            return name

        temporaries: dict[str, str] = {}  # registers used within one step

        def temporary_register(dtype: str) -> str:
            if dtype not in temporaries:
                temporaries[dtype] = f"r{len(self.registers)}"
                self.registers.append(dtype)
            return temporaries[dtype]

        def generic_call(v: int, n: int, operands: Sequence[str], **attrs: Any) -> str:
            """Return a call of the op's forward function, for an op without a template."""
            step = self.steps[v]
            names.update({f"f{n}": step.op.run, f"k{n}": step.attrs | attrs, "xp": np, "asarray": np.asarray})
            arrays = [
                text if self.plan.dtype(x) or isinstance(x, Constant) else f"asarray({text}, {step.compute_dtype!r})"
                for x, text in zip(step.inputs, operands, strict=True)
            ]
            return f"f{n}(xp, {', '.join(arrays)}, **k{n})"

        lines: list[str] = []
        for i, v in enumerate(order):
            step, template = self.steps[v], templates[v]
            operands = [text(x, step.compute_dtype) for x in step.inputs]
            if step.kind == "reduction":
                n = self.reductions.index(v)
                names[f"a{n}"] = self.stage.axes_in_call(n)
                names[f"d{n}"] = accumulation_dtype(step)
                if function := reductions.get(v):
                    names[f"reduce{n}"] = function
                    lines.append(f"reduce{n}({', '.join(operands)}, p{n})")
                elif ufunc := REDUCTION_UFUNCS.get(step.op.name):
                    lines.append(f"{ufunc}.reduce({operands[0]}, axis=a{n}, dtype=d{n}, out=p{n}, keepdims=True)")
                else:
                    lines.append(f"copyto(p{n}, {generic_call(v, i, operands, keepdims=True)}, casting='unsafe')")
            elif v in self.chains:
                lines.append(f"chain{v}({', '.join([*operands, location[v]])})")
            elif template is None:
                lines.append(f"copyto({location[v]}, {generic_call(v, i, operands)}, casting='unsafe')")
            else:
                one, minus_one = (
                    text(Constant(n), step.compute_dtype) if f"{{{w}}}" in template else ""
                    for w, n in (("one", 1), ("minus_one", -1))
                )
                names_in_template = dict(zip(OPERAND_NAMES, operands, strict=False))
                names_in_template |= {
                    w: temporary_register(dtype)
                    for w, dtype in (("mask", "bool"), ("tmp", step.dtype))
                    if f"{{{w}}}" in template
                }
                lines += template.format(z=location[v], one=one, minus_one=minus_one, **names_in_template).split("; ")
        lines += [f"copyto({outputs[v]}, {location[v]})" for v in copied_outputs]
        arguments = [
            *(location[v] for v in self.inputs),
            *outputs.values(),
            *(f"p{n}" for n in range(len(self.reductions))),
        ]
        arguments += [f"r{n}" for n in range(len(self.registers))]
        self.source = f"def fused_stage({', '.join(arguments)}):\n    " + "\n    ".join(lines)
        exec(compile(self.source, "<fused stage>", "exec"), names)
        self.function = names["fused_stage"]

    def _is_in_order(self, v: int) -> bool:
        """Return whether the operands and the result of a step are contiguous."""
        operands = (x for x in self.steps[v].inputs if isinstance(x, int))
        return all(map(self.plan.is_contiguous, (v, *operands)))

    def _select_reduction_functions(self) -> dict[int, Callable[..., None]]:
        """Return {reduction: function} where that is faster than NumPy; a summed product is part of it."""
        functions = {}
        for n, v in enumerate(self.reductions):
            step = self.steps[v]
            (x,) = step.inputs
            is_step = isinstance(x, int) and x in self.steps and x not in self.chains and x not in self.outputs
            has_one_reader = is_step and sum(x in other.inputs for other in self.steps.values()) == 1
            can_include = has_one_reader and step.op.name == "sum"
            factors = find_product_factors(self.plan, self.steps[x], self.stage.domain) if can_include else ()  # type: ignore[index]
            if function := select_reduction_function(
                step, self.stage.shape_in_call, self.stage.axes_in_call(n), bool(factors)
            ):
                functions[v] = function
                if factors:
                    del self.steps[x]  # type: ignore[arg-type]
                    self.steps[v] = step._replace(inputs=factors)
        return functions

    def _allocate_registers(
        self,
        order: list[int],
        last: dict[int, int],
        templates: dict[int, str | None],
        outputs: dict[int, str],
        copied_outputs: list[int],
    ) -> dict[int, str]:
        """Assign each value the memory of a dead operand, an output, or a register: {value: name}.

        Values that reuse each other's memory form a group. A group that ends in an output uses the output's memory from
        its start, unless this overwrites an aliased operand that is still read. Other groups share registers.
        """
        at = {v: i for i, v in enumerate(order)}
        reuse_group: dict[int, list[int]] = {}
        for i, v in enumerate(order):
            step, template = self.steps[v], templates[v]
            if step.kind == "reduction":
                continue
            reusable = [
                x
                for x in dict.fromkeys(step.inputs)
                if x in reuse_group
                and x not in outputs
                and last[x] == i
                and self.steps[x].dtype == step.dtype
                and not any(reads_after_write(template, n) for n, y in enumerate(step.inputs) if y == x)
            ]
            group = reuse_group[reusable[0]] if reusable else []
            can_share = v in outputs and v not in copied_outputs  # it may reuse the memory of an operand
            reuse_group[v] = (
                []
                if can_share
                and group
                and self._overwrites_live_operand(v, group[0], at[group[0]], last, templates[group[0]])
                else group
            )
            reuse_group[v].append(v)
        last_uses: dict[int, list[int]] = {}  # {step index: the groups whose last use it is}
        for u in reuse_group:
            if reuse_group[u][-1] == u and u not in outputs:
                last_uses.setdefault(last[u], []).append(u)
        location: dict[int, str] = {}
        free: dict[str, list[str]] = {}
        for i, v in enumerate(order):
            if v in reuse_group and reuse_group[v][0] == v:
                end, dtype = reuse_group[v][-1], self.steps[v].dtype
                if end in outputs and end not in copied_outputs:
                    name = outputs[end]
                elif free.get(dtype):
                    name = free[dtype].pop()
                else:
                    name = f"r{len(self.registers)}"
                    self.registers.append(dtype)
                location |= dict.fromkeys(reuse_group[v], name)
            for u in last_uses.get(i, ()):
                free.setdefault(self.steps[u].dtype, []).append(location[u])
        return location

    def _aliased_values(self, v: int) -> list[int]:
        """Return the values that share memory with the target of a value: leaves and held temporaries."""
        if v not in self.plan.outputs or not self.plan.is_direct[i := self.plan.outputs.index(v)]:
            return []
        held = [v_held for v_held, target in self.plan.held_in_targets.items() if target == i]
        return held + [leaf for target, leaf, _ in self.plan.aliases if target == i]

    def _overwrites_live_operand(self, v: int, first: int, at: int, last: dict[int, int], template: str | None) -> bool:
        """Return whether writing output ``v`` in place, starting with value ``first``, overwrites an aliased operand.

        That is, one that is still read later. ``at`` is the index of the step of ``first``, ``template`` its template.
        """
        step = self.steps[first]
        return any(
            last.get(leaf, -1) > at
            or (
                last.get(leaf) == at
                and any(reads_after_write(template, n) for n, x in enumerate(step.inputs) if x == leaf)
            )
            for leaf in self._aliased_values(v)
        )


def reads_after_write(template: str | None, n: int) -> bool:
    """Return whether an op reads its operand n after the first write to the result, so it cannot run in place."""
    calls = (template or "").split("; ")
    first = next((i for i, call in enumerate(calls) if "{z}" in call), len(calls))
    return any("{" + OPERAND_NAMES[n] + "}" in call for call in calls[first + 1 :])
