"""The chain rule of an op-tree, step by step: ``tree.derivation()``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import count
from typing import Any

from neonlite.autodiff import OPENED, Autodiff, operand_of
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import instance
from neonlite.explorer import named_operands
from neonlite.messages import describe, label, listed
from neonlite.optree import Operand, OpTreeNode, copy_node, postorder
from neonlite.typing import FLOAT_DTYPES
from neonlite.variables import Variable
from neonlite.visualize import Derivation, DerivationStep, format_rule


def derive(tree: Any, tensors: Sequence[Any] = (), allow_unused: bool = False) -> Derivation:
    """Return the derivation of an op-tree or array with respect to tensors, or to all float tensors in it.

    ``Autodiff`` computes it, with a tensor in the place of each node and of each gradient, so that a rule is printed in
    the names of these tensors. Their values are computed when they are read.
    """
    root = operand_of(tree)
    instance("derivation: tree", root, OpTreeNode, "an op-tree")
    if root.info.dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"derivation: expected an op-tree of floats, got {describe(root)} with dtype {root.info.dtype}, which has "
            "no derivative"
        )
    root = copy_node(root)  # the tree keeps the Autodiff of other callers
    operands = [x for z in postorder(root, opens=OPENED) for x in z.operands]
    leaves = list({id(x): x for x in operands if isinstance(x, Tensor)}.values())
    floats = [x for x in leaves if x.info.dtype in FLOAT_DTYPES]
    for x in [] if allow_unused else map(operand_of, tensors):
        instance("derivation: tensors", x, Tensor, "a tensor of the tree", ". Pass each: tree.derivation(W, b)")
        if not any(overlap(x, leaf) != "none" for leaf in floats):
            names = listed(sorted(map(label, floats))) or "none"
            raise ValueError(f"derivation: expected a float tensor of the tree, {names}, got {describe(x)}")
    be, derivation = root.backend, Derivation()
    error = be.ones(root.shape, dtype=root.info.dtype, name="1")
    recorder = Recorder(root, be, error, allow_unused=True)
    recorder.derivation, recorder.rules, recorder.dry_run = derivation, {}, be.dry_run()
    recorder.numbers = count(1)
    known = recorder._cache.known_values
    for x in leaves:
        owner, *views = whole_bases(x)
        if id(owner) not in known:
            name = derivation.define(short_name(owner) or f"x{len(derivation.inputs) + 1}")
            known[id(owner)] = Variable(owner.info, name, owner)
            derivation.inputs.append(known[id(owner)])
        known[id(x)] = reduce(
            lambda tree, view: be.build(view.view_op[0], tree, **view.view_op[1]), views, known[id(owner)]
        )
    recorder.add_values(root, derivation.values)
    variables = list(map(operand_of, tensors)) or list({id(x): x for x, *_ in map(whole_bases, floats)}.values())
    for x, dx in zip(variables, recorder.gradient_operands(tensors or variables), strict=True):
        if isinstance(dx, Tensor) and dx.name is None:
            dx.name = "0"
        rules: dict[str, str] = {}
        for y in leaves:
            rules |= recorder.rules.get(id(y), {}) if overlap(x, y) != "none" else {}
        known_name = known[id(x)].name if id(x) in known else ""
        recorder.add_gradient(known_name or short_name(x) or "x", dx, rules)
    return derivation


class Recorder(Autodiff):
    """An Autodiff that adds each gradient to a derivation, and continues with a tensor in its place."""

    derivation: Derivation
    rules: dict[int, dict[str, str]]  # {id of an operand: the rules of the ops that use it}
    dry_run: Any
    numbers: Iterator[int]  # of the values

    def add_values(self, root: OpTreeNode, steps: list[DerivationStep]) -> None:
        """Add a step for each node that has none, operands first; a tensor takes its place."""
        known: dict[int, Any] = self._cache.known_values
        nodes = [z for z in postorder(root, opens=OPENED) if id(z) not in known]
        last = next((z for z in reversed(nodes) if not OPENED(z.info.op_def)), None) if root is self.op_tree else None
        for z in nodes:
            if OPENED(z.info.op_def):
                known[id(z)] = known[id(z.opened)]
                steps[-1].notes[z.op] = ""
                continue
            a, b = known.get(id(z.left), z.left), known.get(id(z.right), z.right)
            known[id(z)] = tree = z if a is z.left and b is z.right else z._rebuild(z.info, a, b)
            if z.op != "pair":
                name = self.derivation.define("E" if z is last else f"v{next(self.numbers)}")
                steps.append(DerivationStep(name, tree, {str(z.shape): ""}))
                known[id(z)] = Variable(self.be.tensor_info(z.shape, z.info.dtype), name, tree)

    def add_gradient(self, name: str, dx: Operand, rules: dict[str, str]) -> Tensor:
        """Add a step for the gradient of what has a name, and return the tensor in its place."""
        step = DerivationStep(self.derivation.define_gradient(name), dx, rules)
        self.derivation.gradients.append(step)
        return Variable(self.be.tensor_info(dx.shape, dx.info.dtype), step.name, dx)

    def _add_parts(self, z: OpTreeNode, parts: list[Operand]) -> Operand:
        dz, name = super()._add_parts(z, parts), self._cache.known_values[id(z)].name
        is_known = isinstance(dz, Tensor) and dz.name == f"d{name}"  # the gradient of a composite op and its formula
        return dz if is_known else self.add_gradient(str(name), dz, self.rules.get(id(z), {}))

    def _differentiate_formula(self, z: OpTreeNode, dz: Operand) -> tuple[Operand | None, ...]:
        known = self._cache.known_values
        known[id(z.opened)] = known[id(z)]
        self.add_values(z.opened, self.derivation.gradients)
        return super()._differentiate_formula(z, dz)

    def _apply_rule(self, z: OpTreeNode, operands: tuple[Any, ...], dz: Operand) -> tuple[Operand | None, ...]:
        grads = super()._apply_rule(z, operands, dz)
        op: Any = z.info.op_def
        xs, result = named_operands(self.dry_run, z)
        error = self.dry_run.empty(z.shape, dtype=z.info.dtype, name="dz")
        rule = op.grad(self.dry_run, error, result, *xs, **z.info.attrs)
        for x, named, dx in zip(operands, xs, rule, strict=True):
            if dx is not None:
                self.rules.setdefault(id(x), {}).update(format_rule(z.op, label(named), dx))
        return grads


def short_name(x: Tensor) -> str:
    """Return the name of a tensor, of ``params['W']`` the last part; an empty string if it has none."""
    return re.sub(r".*\['(\w+)'\]", r"\1", label(x)) if x.name else ""


def whole_bases(x: Tensor) -> list[Any]:
    """Return the tensor of which a transposed or reshaped one of its name is a view, the views between, and it."""
    if x.base is None or x.view_op is None or x.base.size != x.size or x.base.name != x.name:
        return [x]
    return [*whole_bases(x.base), x]
