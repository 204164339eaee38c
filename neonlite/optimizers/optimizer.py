"""Optimizer base class, which updates parameters that are adjacent in memory as one tensor.

This requires that their gradients and states are adjacent too. A network whose parameters are views of one flat buffer
is updated by one op-tree, in a single pass over memory.

The states, and the number of updates t, belong to the parameters: lists of layers hold the states, and
``Tensor.updates`` of a parameter holds (kind of optimizer, t). An optimizer holds settings and caches only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from itertools import groupby, islice
from numbers import Real
from operator import add, is_
from typing import TYPE_CHECKING, Any, Self

from neonlite.backend import Backend, NervanaObject, Tensor
from neonlite.backend.batch_size import global_batch_size, require_batch_size
from neonlite.backend.objects import AttributeSnapshot, can_replay, constructor_arguments
from neonlite.backend.planning.assignment import CompiledAssignment, write_array
from neonlite.backend.transaction import Snapshot, atomic, begin_last_write, log, on_failure
from neonlite.backend.validation import boolean, check_attributes, check_boolean_fields, check_number, check_signature
from neonlite.initializers import compute_dtype
from neonlite.messages import describe
from neonlite.name_hints import OPTIMIZER, add_hints
from neonlite.optimizers.schedule import CONSTANT_SCHEDULE, Schedule, check_schedule
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import refuse_in_trace, untraced, use_in_trace
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, SIGNIFICAND_BITS

if TYPE_CHECKING:
    from neonlite.layers import Layer
    from neonlite.layers.parameter import Parameter

Row = Sequence[Tensor]  # W, dW and the states of a parameter, or of adjacent parameters

MAX_CACHED_GROUPS = 8  # parameter groups that an optimizer caches
FRACTION_FIELDS = ("momentum_coef", "decay", "decay_rate", "beta_1", "beta_2")  # 0 <= x < 1
NON_NEGATIVE_FIELDS = ("learning_rate", "wdecay", "epsilon")
LIMIT_FIELDS = ("gradient_clip_norm", "gradient_clip_value", "param_clip_value")  # positive, or None


@add_hints(OPTIMIZER)
class Optimizer(NervanaObject):
    """Base class of optimizers, which update the parameters of layers from their gradients.

    Subclasses implement ``update_rule``, and set ``state_names`` if they have states. Gradients are those of the cost
    summed over the minibatch. They are divided by the batch size, then scaled so that their norm over all layers is at
    most ``gradient_clip_norm``, then clipped to ``gradient_clip_value`` in magnitude. Weight decay is not clipped.
    16-bit parameters are updated in float32, and have float32 states.

    Parameters
    ----------
    name : str, optional
        Name; default: the class name and a counter.

    Attributes
    ----------
    state_names : tuple of str
        Names of the states of each parameter; all have the shape of the parameter, and start as zeros.
    stochastic_round : bool
        Whether 16-bit parameters are rounded stochastically, which preserves small updates on average. No effect on
        other dtypes.
    learning_rate : float
        The learning rate before the schedule is applied.
    gradient_clip_norm : float or None
        Largest norm of all gradients together.
    gradient_clip_value : float or None
        Largest magnitude of an element of a gradient.
    param_clip_value : float or None
        Largest magnitude of an element of a parameter.
    schedule : Schedule
        The learning-rate schedule.
    t : int
        Number of updates of the parameters that were updated last; in ``get_scalars`` and ``update_rule`` that of the
        parameter before this update.
    """

    needs_base_init = True
    state_names: tuple[str, ...] = ()
    stochastic_round: bool | float = False
    learning_rate: float
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    schedule: Schedule = CONSTANT_SCHEDULE
    loss_scale: float = 1  # gradients are divided by it, in addition to the batch size
    cuda_graphs: bool = True  # whether the update may be captured in a CUDA graph, see ``be.replay``
    # attributes that affect an update only through ``get_scalars``
    result_attributes = ("t", "schedule", "_groups")
    unread_attributes = (*result_attributes, "learning_rate", "loss_scale", "cuda_graphs")  # by ``Step.assignments``

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note whether the first argument is a number, the learning rate, though it is named ``stochastic_round``."""
        self = super().__new__(cls)
        names = constructor_arguments(cls) if args and is_number(args[0]) else []
        if names[:1] == ["stochastic_round"]:  # Adam(0, 0.1) has a rate: 0 is the ``stochastic_round`` of a neon script
            is_given = "learning_rate" in [*names[: len(args)], *kwargs]
            vars(self)["first_is_rate"] = not is_given  # until ``__post_init__``
        return self

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.t = 0
        self._groups: dict[tuple[int, ...], ParameterGroup] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copying and pickling, without cached parameter groups."""
        return {**vars(self), "_groups": {}}

    def __post_init__(self) -> None:
        """Set the name, and check the arguments."""
        Optimizer.__init__(self, self.name)
        attributes = vars(self)
        rate = self.stochastic_round
        if attributes.pop("first_is_rate", False) or (is_number(rate) and rate not in (0, 1)):
            if "learning_rate" not in attributes:
                raise TypeError(f"{self.classnm}: expected no learning rate, got {rate}. The rule has none.")
            if self.learning_rate != type(self).learning_rate:
                raise TypeError(f"{self.classnm}: expected one learning rate, got {rate} and {self.learning_rate}.")
            self.learning_rate, self.stochastic_round = rate, False
        way_out = (
            f". A learning rate is a number: {self.classnm}(0.01)" if isinstance(self.stochastic_round, str) else ""
        )
        self.stochastic_round = boolean(f"{self.classnm}: stochastic_round", self.stochastic_round, way_out)
        check_boolean_fields(self)
        check_attributes(self, *[name for name in NON_NEGATIVE_FIELDS if name in attributes], low=0)
        check_attributes(self, *[name for name in FRACTION_FIELDS if name in attributes], low=0, high=1)
        check_attributes(self, *[name for name in LIMIT_FIELDS if getattr(self, name) is not None], above=0)
        check_schedule(self)

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        """Return the new parameter and the new states as op-trees. Subclasses implement it.

        Parameters
        ----------
        be : Backend
            The backend of the parameter.
        w : Tensor or OpTree
            The parameter; in float32 if it has a 16-bit dtype.
        g : OpTree
            Its gradient, divided by the batch size and clipped.
        states : sequence of Tensor
            The states, in the order of ``state_names``.
        rate : float or Tensor
            The learning rate. It and any other scalars of ``get_scalars`` are passed as keyword arguments.

        Returns
        -------
        sequence of OpTree
            The new parameter, then the new states.
        """
        raise NotImplementedError(
            f"{self.classnm}: expected a method update_rule(be, w, g, states, rate) that returns the new parameter and "
            "states, got none."
        )

    def get_scalars(self, epoch: float) -> dict[str, float]:
        """Return the scalars that change from step to step, the keyword arguments of ``update_rule``.

        Built-in optimizers, and classes with ``can_replay = True``, receive them as tensors (1, 1).

        Parameters
        ----------
        epoch : float
            Index of the epoch, from 0.

        Returns
        -------
        dict of str to float
            The scalars by name; default: ``{"rate": get_rate(epoch)}``.
        """
        return {"rate": self.get_rate(epoch)}

    def get_rate(self, epoch: float) -> float:
        """Return the learning rate of an epoch.

        Parameters
        ----------
        epoch : float
            Index of the epoch, from 0.

        Returns
        -------
        float
            The learning rate according to the schedule.
        """
        if not hasattr(self, "learning_rate"):
            raise TypeError(f"{self.classnm}: expected an attribute learning_rate, got none. Set it in __init__.")
        rate = self.schedule.get_learning_rate(self.learning_rate, epoch)
        if type(rate) is float and 0 <= rate < math.inf:
            return rate
        label = f"{self.classnm}: the learning rate of {type(self.schedule).__name__}, epoch={epoch}"
        return float(check_number(label, rate, 0))

    @property
    def kind(self) -> str:
        """The class and the names of its states. Parameters with states of another kind start with new ones."""
        return f"{self.classnm}({', '.join(self.state_names)})"

    @staticmethod
    def names_of_states(kind: str) -> list[str]:
        """Return the names of the states of a ``kind``; ValueError for a text that is not one.

        Parameters
        ----------
        kind : str
            Such as "Adam(mean, mean_square)".
        """
        classnm, _, names = kind.removesuffix(")").partition("(")
        states = names.split(", ") if names else []
        if kind != f"{classnm}({', '.join(states)})" or not all(map(str.isidentifier, (classnm, *states))):
            raise ValueError(f"expected the kind of an optimizer, such as 'Adam(mean, mean_square)', got {kind!r:.80}")
        return states

    def optimize(self, layer_list: Iterable[Layer], epoch: float) -> None:
        """Update the parameters of layers. If it raises an error, parameters, states and ``t`` are unchanged.

        Parameters with states of this kind of optimizer continue from them. Others start with zeros and t = 0.

        Parameters
        ----------
        layer_list : iterable of Layer
            Layers with ``get_params()``, which returns ((W, dW), states) or a list of these.
        epoch : float
            Index of the epoch, from 0.

        Raises
        ------
        TypeError
            If an element is not a layer, or is not allocated.
        ValueError
            If the batch size is not set, or states do not match.
        """
        if parameters := get_param_list(layer_list):
            atomic(self._step, parameters, check_number(f"{self.classnm}: the epoch", epoch), last=self)

    def step(
        self,
        parameters: Sequence[Tensor] | None = None,
        gradients: Sequence[Operand] | None = None,
        epoch: float = 0,
    ) -> None:
        """Update parameters by gradients, all in one assignment: for training loops with op-trees, also in ``jit``.

        The gradients are not divided by the batch size, unlike in ``optimize``. The states of a parameter are its
        attribute ``states``, those that ``optimize`` and checkpoints use as well.

        Parameters
        ----------
        parameters : list of Tensor
            The parameters, such as ``net.parameters``.
        gradients : list of OpTreeNode or Tensor
            The gradient of a cost with respect to each.
        epoch : float, default 0
            Index of the epoch, from 0, for the schedule.

        Raises
        ------
        TypeError
            Without parameters or gradients.
        ValueError
            If the numbers or shapes of parameters and gradients differ.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.optimizers import GradientDescentMomentum
        >>> be = nl.gen_backend("cpu")
        >>> w, optimizer = be.array([[4.0]], name="w"), GradientDescentMomentum(0.1, 0)
        >>> @nl.jit
        ... def step():
        ...     cost = w * w
        ...     optimizer.step([w], [nl.Autodiff(cost).get_grad_op_tree(w)])
        ...     return cost
        >>> [float(step().get()) for _ in range(3)]
        [16.0, 10.24..., 6.55...]
        """
        if parameters is None or gradients is None:  # as in PyTorch
            raise TypeError(
                f"{self.classnm}.step: expected parameters and their gradients, got none. Use "
                "optimizer.step(net.parameters, gradients), or optimizer.optimize(model.layers_to_optimize, epoch=0)."
            )
        check_gradients(self.classnm, parameters, gradients)
        if parameters:
            epoch = check_number(f"{self.classnm}: the epoch", epoch)
            atomic(self._step_by, parameters, gradients, epoch, last=self)

    def _step_by(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], epoch: float) -> None:
        """Update parameters by gradients; in a function that is traced, record it for each run."""
        with untraced() as trace:
            steps = self._make_steps(parameters, gradients, epoch)
            for step in steps if trace is None else ():
                step.count()
        if trace is not None:
            for optimizer in [step.optimizer for step in steps if not can_replay(step.optimizer)]:
                trace.refuse(
                    f"{optimizer.classnm}.step, whose update_rule may read other values than its arguments in each "
                    "step",
                    "If it reads its arguments only, set can_replay = True in the class",
                )
            trace.steps += steps
        assignments = [pair for step in steps for pair in step.assignments()]
        begin_last_write(self)
        parameters[0].backend.assign([t for t, _ in assignments], [value for _, value in assignments])
        for step in steps if trace is None else ():
            step.finish()

    def _make_steps(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], epoch: float) -> list[Any]:
        """Return the update of parameters by gradients; of each part by its own optimizer.

        Parameters
        ----------
        parameters, gradients, epoch
            As for ``step``.
        """
        if type(self).update_rule is Optimizer.update_rule:
            raise TypeError(
                f"{self.classnm}.step: expected an optimizer with an update_rule, got one that updates layers by "
                "another optimizer. Call step of that one."
            )
        return [Step(self, parameters, gradients, epoch)]

    def _step(self, parameters: list[Parameter], epoch: float) -> None:
        """Update parameters and their states, and count the update."""
        refuse_in_trace(f"{self.classnm}.optimize", "Use optimizer.step(parameters, gradients)")
        group = self._get_group(parameters)
        require_batch_size(group.be, self.classnm)
        on_failure(restore_counts, self, self.t, group, group.updates)
        scalars = [self._get_scalars_at(t, epoch) for _, t in group.updates]
        if can_replay(self):
            scalars = group.to_device(scalars)
        if len(group.rows) > 1 or not begin_last_write(self):  # else the only assignment fails before it writes
            group.snapshot.take(self.cuda_graphs)
        group.be.replay("update", lambda: self._update_all(group, scalars), (self, group.rows), self.cuda_graphs)
        self.t = max([t for _, t in group.updates]) + 1
        group.set_updates([(kind, t + 1) for kind, t in group.updates])

    def _get_scalars_at(self, t: int, epoch: float) -> dict[str, Any]:
        """Return the scalars for parameters with t updates."""
        self.t = t
        return self.get_scalars(epoch)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the optimizer, without the states of parameters, which layers save.

        Returns
        -------
        dict
            The attribute ``t``.
        """
        return {"t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer.

        Parameters that continue have their own number of updates; ``t`` is that of parameters whose states were set
        without one, as by ``layer.states[:] = tensors``.

        Parameters
        ----------
        state : dict
            The result of ``get_state()``.
        """
        self.t = state["t"]

    def _update_all(self, group: ParameterGroup, scalars: list[dict[str, Any]]) -> None:
        """Compute the new values of all parameters and states, and write them."""
        be, limit = group.be, self.gradient_clip_norm
        n = global_batch_size(be) * self.loss_scale
        factor = group.clip_factor(limit, n) if limit else None
        constants = (n, scalars)
        if group.attributes is None or not group.attributes.is_unchanged():
            group.constants, group.attributes = None, AttributeSnapshot([self])
        if group.constants != constants:
            group.constants = None
            values_of_rows = []
            for row, k in zip(group.rows, group.row_indices, strict=True):
                self.t = group.updates[k][1]
                w, dw, *states = row
                g = be.astype(dw, compute_dtype(w))
                g = g / n if factor is None else g * factor
                values_of_rows.append(self._update(be, w, g, states, scalars[k]))
            for i, values in enumerate(values_of_rows):
                group.compile(i, values)
            if not group.attributes.custom_class:  # a custom update rule may depend on other values
                group.constants = constants
        for assignment in group.assignments.values():
            assignment()

    def _update(self, be: Backend, w: Tensor, g: Operand, states: Row, scalars: dict[str, Any]) -> list[Any]:
        """Return the new parameter and states as op-trees, given the gradient."""
        full = be.astype(w, compute_dtype(w))
        if limit := self.gradient_clip_value:
            g = be.clip(g, -limit, limit)
        new, *others = self._call_update_rule(be, full, g, states, scalars)
        if limit := self.param_clip_value:
            new = be.clip(new, -limit, limit)
        if self.stochastic_round and w.info.dtype in HALF_DTYPES:
            new = round_stochastically(be, new, w.info.dtype)
        return [new, *others]

    def _call_update_rule(
        self, be: Backend, w: Operand, g: Operand, states: Row, scalars: dict[str, Any]
    ) -> Sequence[Operand]:
        """Return the result of ``update_rule``; raise TypeError if it is not a value for each tensor."""
        expected = f"update_rule(be, w, g, states, {', '.join(scalars)})"
        try:
            values = self.update_rule(be, w, g, states, **scalars)
        except TypeError:
            check_signature(f"{self.classnm}.update_rule", self.update_rule, expected, be, w, g, states, **scalars)
            raise
        count = 1 + len(states)
        if not isinstance(values, list | tuple) or isinstance(values, OpTreeNode) or len(values) != count:
            got = f"{len(values)} values" if type(values) in (list, tuple) else describe(values)
            names = ", ".join(("the new parameter", *(f"the new {name}" for name in self.state_names)))
            raise TypeError(f"{self.classnm}: expected {expected} to return a list of {count}, {names}, got {got}.")
        return values

    def _get_group(self, parameters: list[Parameter]) -> ParameterGroup:
        """Return the cached group of the parameters, or allocate states and create a group."""
        group = self._groups.get(tensor_ids(parameters))
        if group is None or not group.is_current():
            check_parameters(parameters)
            ordered = sort_by_address(parameters)
            for (w, _), states in ordered:
                on_failure(set_states, w, w.updates, states, [*states])
                kind, t = w.updates or (self.kind, self.t if states else 0)
                if kind != self.kind:
                    states.clear()
                w.updates = self.kind, t if states or (kind == self.kind and not self.state_names) else 0
            rest = iter(ordered)
            for run in contiguous_runs([row for row, _ in ordered]):
                self._allocate_states(list(islice(rest, len(run))))
            group = ParameterGroup(ordered)
            if len(self._groups) >= MAX_CACHED_GROUPS:
                self._groups.clear()
            self._groups[tensor_ids(parameters)] = group
        return group

    def _allocate_states(self, run: list[Parameter]) -> None:
        """Allocate adjacent states for adjacent parameters; new states are zeros, existing values are copied."""
        for (w, _), states in run:
            if states and [x.shape for x in states] != [w.shape] * len(self.state_names):
                raise ValueError(
                    f"{self.classnm}: expected {len(self.state_names)} states of the shape of {describe(w)}, "
                    f"got {describe(*states)}. Empty the list of states to start again."
                )
        if all(states for _, states in run) and len(contiguous_runs([states for _, states in run])) == 1:
            return
        w, size = run[0][0][0], sum(w.size for (w, _), _ in run)
        flat = [w.backend.zeros((size, 1), dtype=compute_dtype(w)) for _ in self.state_names]
        start = 0
        for (w, _), states in run:
            views = [x[start : start + w.size].reshape(w.shape) for x in flat]
            start += w.size
            for view, name in zip(views, self.state_names, strict=True):
                view.name = f"{w.name}.{name}" if w.name else name
            for view, old in zip(views, states, strict=False):  # states is empty or complete
                view[:] = old
            states[:] = views


def is_number(value: object) -> bool:
    """Return whether a value is a real number, and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


SMALLEST_SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133}


def round_stochastically(be: Backend, x: Any, dtype: str) -> Any:
    """Return ``x``, float32, rounded to one of its two neighbors in a 16-bit dtype, so that the expected value is x.

    The probability of the farther neighbor is ``|x - near| / |far - near|``. Values that the dtype can represent are
    unchanged; the upper neighbor of the largest finite value is infinity.
    """
    near = be.astype(be.astype(x, dtype), "float32")
    # between 0.5 and 1.5 units in the last place, so that the cast rounds to the next value
    gap = be.maximum(be.absolute(near) * (1.25 * 2.0 ** -SIGNIFICAND_BITS[dtype]), SMALLEST_SUBNORMAL[dtype])
    next_value = near + be.sgn(x - near) * gap
    far = be.astype(be.astype(next_value, dtype), "float32")
    uniform = be.astype(be.rand(x.shape), "float32")
    if be.default_dtype_name in HALF_DTYPES:  # 16-bit random numbers have few bits: add lower ones
        uniform = uniform + be.astype(be.rand(x.shape), "float32") * 2.0 ** -SIGNIFICAND_BITS[be.default_dtype_name]
    return be.where(uniform * be.absolute(far - near) < be.absolute(x - near), far, near)


# --- steps with gradients as op-trees ---------------------------------------------------------------------------------


class Step:
    """An update of parameters by gradients, in which the scalars that change from step to step are tensors (1, 1)."""

    def __init__(
        self, optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Operand], epoch: float
    ) -> None:
        self.optimizer, self.parameters, self.gradients, self.epoch = optimizer, parameters, gradients, epoch
        self.be: Any = parameters[0].backend
        self.kind = optimizer.kind
        for w in parameters:
            kind, _ = w.updates or ("", 0)
            if kind != self.kind or w.states is None or len(w.states) != len(optimizer.state_names):
                on_failure(restore_updates, [(w, w.updates, w.states)])
                w.updates = self.kind, 0
                w.states = [self.be.zeros(w.shape, dtype=compute_dtype(w)) for _ in optimizer.state_names]
        updates: list[Any] = [w.updates for w in parameters]
        distinct = sorted({*updates})  # parameters of an equal number of updates have the same scalars
        # each parameter, the index of its number of updates, and its states
        self.members = [(w, distinct.index(u), tuple(w.states or ())) for w, u in zip(parameters, updates, strict=True)]
        self.before: tuple[int, Any] = optimizer.t, updates  # the numbers of updates before the last ``count``
        self.counts = [t for _, t in distinct]  # when the expressions are built
        self.scalars: list[dict[str, Any]] = [optimizer._get_scalars_at(t, epoch) for _, t in distinct]
        self.table_values: list[float] | None = None  # None: unknown
        self.table: Tensor | None = None
        if can_replay(optimizer):
            dtype = "float64" if any(compute_dtype(w) == "float64" for w in parameters) else "float32"
            self.table = table = self.be.zeros((sum(map(len, self.scalars)), 1), dtype=dtype)
            self.host_table = table.get()
            rows = iter([table[n : n + 1] for n in range(len(table))])
            self.scalars = [{name: next(rows) for name in named} for named in self.scalars]

    def current_updates(self) -> list[tuple[str, int]] | None:
        """Return (kind, t) of each group of parameters; None if they or the states are not those of the expressions."""
        updates: list[Any] = [None] * len(self.scalars)
        for w, k, states in self.members:
            if updates[k] is None:
                updates[k] = w.updates
            has_states = w.states is not None and len(w.states) == len(states) and all(map(is_, w.states, states))
            if w.updates is None or w.updates[0] != self.kind or w.updates != updates[k] or not has_states:
                return None
        return updates

    def count(self) -> None:
        """Write the scalars of the next update, and count it."""
        updates: Any = self.current_updates()
        self.before = self.optimizer.t, updates
        on_failure(self.restore, *self.before)
        values: list[float] = []
        after = []
        for kind, t in updates:
            self.optimizer.t = t
            values += self.optimizer.get_scalars(self.epoch).values()
            after.append((kind, t + 1))
        if self.table is not None and values != self.table_values:
            self.table_values = None
            self.host_table[:, 0] = values
            write_array(self.be, self.table, self.host_table)
            self.table_values = values
        self.restore(max(after)[1], after)

    def restore(self, t: int, updates: Sequence[tuple[str, int]]) -> None:
        """Set the numbers of updates of the optimizer and of each group of parameters."""
        self.optimizer.t = t
        for w, k, _ in self.members:
            w.updates = updates[k]

    def finish(self) -> None:
        """Read what the update has written, if it depends on that whether the update counts."""

    def assignments(self) -> list[tuple[Tensor, Operand]]:
        """Return each parameter and state with its new value."""
        optimizer, be = self.optimizer, self.be
        use_in_trace(optimizer)
        gradients = [be.astype(g, compute_dtype(w)) for w, g in zip(self.parameters, self.gradients, strict=True)]
        if limit := optimizer.gradient_clip_norm:
            norm = be.sqrt(reduce(add, [be.reshape(be.sum(be.square(g)), (1, 1)) for g in gradients]))
            gradients = [g * (limit / be.maximum(norm, limit)) for g in gradients]
        result: list[tuple[Tensor, Operand]] = []
        t = optimizer.t
        for (w, k, states), g in zip(self.members, gradients, strict=True):
            optimizer.t = self.counts[k]
            result += zip([w, *states], optimizer._update(be, w, g, states, self.scalars[k]), strict=True)
        optimizer.t = t
        return result


def restore_updates(before: Iterable[tuple[Tensor, tuple[str, int] | None, list[Tensor] | None]]) -> None:
    """Restore what parameters had before a step that failed."""
    for w, updates, states in before:
        w.updates, w.states = updates, states


def check_gradients(where: str, parameters: Sequence[Tensor], gradients: Sequence[Operand]) -> None:
    """Raise an error unless there is a gradient of its shape for each parameter, a tensor of floats."""
    if len(parameters) != len(gradients):
        raise ValueError(
            f"{where}.step: expected a gradient for each of {len(parameters)} parameters, got {len(gradients)}"
        )
    if len({*map(id, parameters)}) < len(parameters):
        raise ValueError(f"{where}.step: expected each parameter once, got {describe(*parameters)}")
    for w, g in zip(parameters, gradients, strict=True):
        if not isinstance(w, Tensor) or w.info.dtype not in FLOAT_DTYPES or not hasattr(g, "info"):
            raise TypeError(
                f"{where}.step: expected parameters as tensors of floats, and gradients as op-trees or tensors, got "
                f"{describe(w)} and {describe(g)}"
            )
        if w.shape != g.shape:
            raise ValueError(f"{where}.step: expected a gradient of the shape of {describe(w)}, got {describe(g)}")


# --- groups of parameters ------------------------------------------------------------------------------------------


class ParameterGroup:
    """Cached data of an optimizer for a list of parameters: merged rows, buffers and compiled updates."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters = parameters  # keeps the tensors alive, so that their ids are not reused
        # (kind, t) of the parameters: several if some were updated more often, as after a layer was frozen
        self.updates: list[tuple[str, int]] = []
        self.rows: list[Row] = []
        self.row_indices: list[int] = []  # of each row, the index in ``updates``
        self.members: list[tuple[Tensor, int]] = []  # parameters, with the same index
        for updates, equal in groupby(parameters, lambda parameter: parameter[0][0].updates):
            self.updates += [updates] if updates not in self.updates else []
            run, k = list(equal), self.updates.index(updates)
            rows = merge_contiguous([(*row, *states) for row, states in run])
            self.rows += rows
            self.row_indices += [k] * len(rows)
            self.members += [(w, k) for (w, _), _ in run]
        self.set_updates(self.updates)
        self.be: Any = self.rows[0][0].backend
        dtype = "float64" if any(compute_dtype(w) == "float64" for w, *_ in self.rows) else "float32"
        self.square_sums = self.be.zeros((len(self.rows), 1), dtype=dtype)  # sum of squared gradients of each row
        self.square_sum_views = [self.square_sums[i] for i in range(len(self.rows))]
        self.factor: Tensor = self.be.zeros((1, 1), dtype=dtype)
        self.assignments: dict[int, CompiledAssignment] = {}  # the update of each row
        self.constants: Any = None  # scalars compiled into the assignments; None: compile again
        self.attributes: AttributeSnapshot | None = None  # of the optimizer when the assignments were compiled
        self.host_scalars: list[dict[str, float]] = []  # the values in ``scalar_table``
        self.device_scalars: list[dict[str, Tensor]] = []  # views of ``scalar_table``

    @cached_property
    def snapshot(self) -> Snapshot:
        """Copies of the parameters and states, for a step that may fail between two writes."""
        return Snapshot([t for w, _, *states in self.rows for t in (w, *states)])

    def is_current(self) -> bool:
        """Return whether no other optimizer has updated a parameter, nor ``set_states`` replaced its states."""
        return not [w for w, k in self.members if w.updates is not self.updates[k]]

    def set_updates(self, updates: list[tuple[str, int]]) -> None:
        """Set (kind, t) of the parameters."""
        self.updates = updates
        for w, k in self.members:
            w.updates = updates[k]

    def to_device(self, scalars: list[dict[str, float]]) -> list[dict[str, Tensor]]:
        """Return scalars as tensors (1, 1), so that trees and CUDA graphs are the same in every step."""
        if self.host_scalars != scalars:
            values = [x for named in scalars for x in named.values()]
            if not self.device_scalars:
                self.scalar_table = self.be.zeros((len(values), 1), dtype=self.factor.info.dtype)
                self.host_table = self.scalar_table.get()
                views = iter([self.scalar_table[n : n + 1] for n in range(len(values))])
                self.device_scalars = [{name: next(views) for name in named} for named in scalars]
            self.host_scalars = []  # unknown if the write fails
            self.host_table[:, 0] = values
            write_array(self.be, self.scalar_table, self.host_table)
            self.host_scalars = scalars
        return self.device_scalars

    def clip_factor(self, limit: float, n: float) -> Tensor:
        """Return ``limit / (n max(norm, limit))`` as a tensor (1, 1), for the norm of all gradients divided by n."""
        be, factor = self.be, self.factor
        for view, (w, dw, *_) in zip(self.square_sum_views, self.rows, strict=True):
            view[:] = be.sum(be.square(be.astype(dw, compute_dtype(w))), keepdims=False)
        # a separate evaluation, so that the update itself remains a single pass over memory
        factor[:] = limit / be.maximum(be.sqrt(be.sum(self.square_sums)), limit * n)
        return factor

    def compile(self, row: int, values: Sequence[Any]) -> None:
        """Compile the assignment of new values to the parameter and the states of a row."""
        assignment = self.assignments.get(row)
        if assignment is None or not assignment.update_scalars(values):
            w, _, *states = self.rows[row]
            self.assignments[row] = self.be.compile([w, *states], values)


def last_writer(optimizer: Any) -> Any:
    """Return an optimizer if ``optimize`` does nothing that may fail after the update; None for other classes."""
    method = getattr(optimizer, "optimize", None)
    return optimizer if getattr(method, "__module__", "").startswith("neonlite.") else None


def pass_last_write(outer: Optimizer, inner: Optimizer) -> None:
    """Let the write of ``inner`` be the last of the transaction, if that of ``outer``, which calls it, is."""
    if log.last is outer:
        log.last = last_writer(inner)


def restore_counts(optimizer: Optimizer, t: int, group: ParameterGroup, updates: list[tuple[str, int]]) -> None:
    """Restore the numbers of updates before a step that failed."""
    optimizer.t = t
    group.set_updates(updates)


def set_states(w: Tensor, updates: tuple[str, int] | None, states: list[Tensor], values: list[Tensor]) -> None:
    """Set the list of states of a parameter, and the kind of optimizer and number of updates that they belong to."""
    w.updates, states[:] = updates, values


def get_param_list(layer_list: Iterable[Layer]) -> list[Parameter]:
    """Return the parameters of all layers that have parameters.

    Parameters
    ----------
    layer_list : iterable of Layer
        Layers with ``get_params()``, which returns ((W, dW), states) or a list of these.

    Returns
    -------
    list of ((W, dW), states)
        Parameter, gradient and list of states of each parameter.

    Raises
    ------
    TypeError
        If an element is not a layer.
    """
    result: list[Parameter] = []
    for layer in layer_list:
        if getattr(layer, "has_params", True):
            if not hasattr(layer, "get_params"):
                raise TypeError(f"optimizer: expected a list of layers, each with get_params(), got {describe(layer)}.")
            params = layer.get_params()
            result += params if isinstance(params, list) else [params]
    return result


def tensor_ids(parameters: list[Parameter]) -> tuple[int, ...]:
    """Return the ids of all tensors of parameters. Raise TypeError for invalid results of ``get_params()``."""
    try:
        return tuple([id(x) for (w, dw), states in parameters for x in (w, dw, *states)])
    except (TypeError, ValueError):
        raise TypeError(
            f"get_params(): expected ((W, dW), states) or a list of these, got {describe(*parameters)}."
        ) from None


def check_parameters(parameters: list[Parameter]) -> None:
    """Raise TypeError or ValueError if parameters cannot be updated together."""
    for (w, dw), states in parameters:
        if not isinstance(w, Tensor) or not isinstance(dw, Tensor) or not isinstance(states, list):
            raise TypeError(
                f"get_params(): expected ((W, dW), states), two tensors and a list, got (({describe(w)}, "
                f"{describe(dw)}), {describe(states)}). Allocate the layers first."
            )
        if w.shape != dw.shape or not {w.info.dtype, dw.info.dtype} <= set(FLOAT_DTYPES):
            raise ValueError(
                f"optimizer: expected a parameter and a gradient of one shape and of float dtypes, got {describe(w)}, "
                f"{w.info.dtype}, and {describe(dw)}, {dw.info.dtype}."
            )
        first = parameters[0][0][0]
        if w.backend is not first.backend:
            raise ValueError(
                f"optimizer: expected parameters of one backend, got {describe(first)} of {first.backend!r} and "
                f"{describe(w)} of {w.backend!r}. Use an optimizer for each backend."
            )


def sort_by_address(parameters: list[Parameter]) -> list[Parameter]:
    """Return parameters in memory order, one buffer after another."""
    buffers: dict[int, int] = {}
    for (w, _), _ in parameters:
        buffers.setdefault(id(w.root), len(buffers))
    return sorted(parameters, key=lambda p: (buffers[id(p[0][0].root)], p[0][0].storage_offset))


def contiguous_runs(rows: Sequence[Row]) -> list[list[Row]]:
    """Split rows into runs, in which each tensor starts where that of the previous row, at the same index, ends."""
    result: list[list[Row]] = []
    for row in rows:
        if result and all(is_adjacent(x, y) for x, y in zip(result[-1][-1], row, strict=True)):
            result[-1].append(row)
        else:
            result.append([row])
    return result


def is_adjacent(x: Tensor, y: Tensor) -> bool:
    """Return whether y starts in memory where x ends, and both are contiguous."""
    is_contiguous = x.root.is_contiguous and x.is_contiguous and y.is_contiguous
    return x.root is y.root and x.span[1] == y.storage_offset and is_contiguous


def merge_contiguous(rows: Sequence[Row]) -> list[Row]:
    """Merge each contiguous run of rows into one row of column vectors (size, 1), which are views.

    >>> import neonlite as nl
    >>> flat = nl.gen_backend("cpu").zeros((10, 1))
    >>> [[x.shape for x in row] for row in merge_contiguous([(flat[:6].reshape(2, 3),), (flat[6:8],), (flat[9:],)])]
    [[(8, 1)], [(1, 1)]]
    """

    def join(first: Tensor, last: Tensor) -> Tensor:
        root = first.root
        return root.reshape(-1, 1)[first.storage_offset - root.storage_offset : last.span[1] - root.storage_offset]

    return [
        run[0] if len(run) == 1 else [join(x, y) for x, y in zip(run[0], run[-1], strict=True)]
        for run in contiguous_runs(rows)
    ]
