"""Optimizer base class, which updates parameters that are adjacent in memory as one tensor.

This requires that their gradients and states are adjacent too. A network whose parameters are views of one flat buffer
is updated by one op-tree, in a single pass over memory.

The states, and the number of updates t, belong to the parameters: lists of layers hold the states, and
``Tensor.updates`` of a parameter holds (kind of optimizer, t). An optimizer holds settings and caches only.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby, islice, repeat
from numbers import Real
from operator import add, or_, truediv
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload

from neonlite import name_hints, tree_structure, typing
from neonlite.backend import Backend, NervanaObject, Tensor, concurrency
from neonlite.backend.batch_size import RemoteStates, check_states_are_local, global_batch_size, require_batch_size
from neonlite.backend.objects import can_replay, constructor_arguments, same_objects
from neonlite.backend.planning.assignment import write_array
from neonlite.backend.transaction import Snapshot, atomic, begin_last_write, log, on_failure, restore_on_failure
from neonlite.backend.validation import boolean, check_attributes, check_boolean_fields, check_number, check_signature
from neonlite.functions import match
from neonlite.initializers import compute_dtype
from neonlite.messages import describe
from neonlite.optimizers.schedule import CONSTANT_SCHEDULE, Schedule, check_schedule, counts_updates
from neonlite.optree import Operand, OpTreeNode
from neonlite.programs import Program, Trace, flatten, label_leaves, operand_of, tracing, unflatten
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, SIGNIFICAND_BITS

if TYPE_CHECKING:
    from neonlite.layers import Layer
    from neonlite.layers.parameter import Parameter

Row = Sequence[Tensor]  # W, dW and the states of a parameter, or of adjacent parameters
Owner = tuple[str, str]  # the name of the layer of a parameter, and of its class
Container = TypeVar("Container")  # nested dicts, lists and tuples of arrays or tensors

MAX_PENDING_STEPS = 8  # steps that may be updates or not, as only the device knows
MAX_PROGRAMS = 16  # of an optimizer: for each list of parameters and batch size
FRACTION_FIELDS = ("momentum_coef", "decay", "decay_rate", "beta_1", "beta_2")  # 0 <= x < 1
NON_NEGATIVE_FIELDS = ("learning_rate", "wdecay", "epsilon")
LIMIT_FIELDS = ("gradient_clip_norm", "gradient_clip_value", "param_clip_value")  # positive, or None


@name_hints.add_hints(name_hints.OPTIMIZER)
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
    merges_parameters : bool
        Whether parameters that are adjacent in memory may be updated as one column, as for a rule of single elements.
        False if ``update_rule`` needs the shape or the norm of a parameter.
    stochastic_round : bool
        Whether 16-bit parameters are rounded stochastically, which preserves small updates on average. No effect on
        other dtypes.
    master_weights : bool
        Whether each parameter has a state "master", a float32 copy that is updated and rounded to the parameter, so
        that updates too small for 16 bits add up. A parameter that is set otherwise, as by ``set_weights``, counts.
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
    merges_parameters: bool = True
    stochastic_round: bool | float = False
    master_weights: bool = False
    learning_rate: float
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    schedule: Schedule = CONSTANT_SCHEDULE
    cuda_graphs: bool = True  # whether the update may be captured in a CUDA graph, see ``be.replay``
    # attributes that affect an update only through ``get_scalars``
    result_attributes: tuple[str, ...] = ("t", "schedule", "_programs")
    unread_attributes: tuple[str, ...] = (*result_attributes, "learning_rate", "cuda_graphs")  # by ``Step.assignments``

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
        self._programs = concurrency.Cache(MAX_PROGRAMS)

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
        if self.stochastic_round and self.master_weights:
            raise ValueError(f"{self.classnm}: expected stochastic_round or master_weights, got both. Leave one out.")
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
        """Return the learning rate of an epoch, or with an ``UpdateSchedule`` that after ``t`` updates.

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
        rate = self.schedule.get_learning_rate(self.learning_rate, self.t if counts_updates(self.schedule) else epoch)
        if (type(rate) is float and 0 <= rate < math.inf) or isinstance(rate, Operand):  # of an epoch that is a tensor
            return rate
        label = f"{self.classnm}: the learning rate of {type(self.schedule).__name__}, epoch={epoch}"
        return float(check_number(label, rate, 0))

    @property
    def _all_state_names(self) -> tuple[str, ...]:
        """The names of the states of the rule, and of the float32 copy."""
        return (*self.state_names, "master") if self.master_weights else self.state_names

    @property
    def kind(self) -> str:
        """The class and the names of its states. Parameters with states of another kind start with new ones."""
        return f"{self.classnm}({', '.join(self._all_state_names)})"

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

    def optimize(self, layer_list: Iterable[Layer], epoch: float = 0) -> None:
        """Update the parameters of layers. If it raises an error, parameters, states and ``t`` are unchanged.

        Parameters with states of this kind of optimizer continue from them. Others start with zeros and t = 0.

        Parameters
        ----------
        layer_list : iterable of Layer
            Layers with ``get_params()``, which returns ((W, dW), states) or a list of these.
        epoch : float, default 0
            Index of the epoch, from 0, for the schedule.

        Raises
        ------
        TypeError
            If an element is not a layer, or is not allocated.
        ValueError
            If the batch size is not set, or states do not match.
        """
        if parameters := owned_parameters(layer_list):
            atomic(self._optimize, parameters, check_number(f"{self.classnm}: the epoch", epoch), last=self)

    def init(self, parameters: object) -> dict[str, Any]:
        """Return the state with which ``step(parameters, gradients, state)`` starts.

        Parameters
        ----------
        parameters : dict, list or tuple of Array or Tensor
            The parameters, in containers nested to any depth.

        Returns
        -------
        dict
            "t": the number of updates, 0, an array or tensor. For each of ``state_names``: zeros in the containers of
            the parameters, in float32 for 16-bit parameters.

        Raises
        ------
        TypeError
            If a parameter is no array or tensor of floats, or the optimizer has no update rule, as a MultiOptimizer.
        """
        where = f"{self.classnm}.init"
        self._check_rule(where)
        structure, leaves = flatten_parameters(where, parameters)
        like = leaves[0] if leaves else None
        be: Any = typing.current_backend() if like is None else like.backend
        state: dict[str, Any] = {"t": like_array(like, be.zeros((1, 1), dtype="int32"), shape=())}
        for name in self._all_state_names:
            zeros = [be.zeros(w.shape, dtype=compute_dtype(w)) for w in map(operand_of, leaves)]
            state[name] = unflatten(structure, map(like_array, leaves, zeros))
        return state

    @overload
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], *, epoch: float = 0) -> None: ...
    @overload
    def step(
        self, parameters: Container, gradients: object, state: dict[str, Any], epoch: float | Operand = 0
    ) -> tuple[Container, dict[str, Any]]: ...
    def step(self, parameters: Any = None, gradients: Any = None, state: Any = None, epoch: Any = 0) -> Any:
        """Update parameters by gradients, as an expression or in one assignment: for training loops, also in ``jit``.

        With a state, it changes nothing, and returns the new parameters and the new state. Parameters are then arrays
        or tensors in nested dicts, lists and tuples. In a function that is compiled or transformed, as by ``grad``, the
        results are op-trees; elsewhere, they are computed at once.

        Without a state, it assigns to the parameters, a list of tensors. Their states are the attributes ``states``,
        those that ``optimize`` and checkpoints use as well.

        The gradients are not divided by the batch size, unlike in ``optimize``.

        Parameters
        ----------
        parameters : list of Tensor, or container of Array or Tensor
            The parameters, such as ``net.parameters``.
        gradients : list of OpTreeNode or Tensor, or container of Array, Tensor or OpTreeNode
            The gradient of a cost with respect to each; in a container by the same keys and indices.
        state : dict, optional
            The result of ``init(parameters)`` or of the last step.
        epoch : float, default 0
            Index of the epoch, from 0, for the schedule.

        Returns
        -------
        None, or (container, dict)
            With a state, the new parameters and the new state.

        Raises
        ------
        TypeError
            Without parameters or gradients, or if a parameter is not of a float dtype.
        ValueError
            If keys, numbers or shapes of parameters, gradients and state differ.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.optimizers import Adam, GradientDescentMomentum
        >>> be = nl.gen_backend("cpu")
        >>> w, optimizer = be.array([[4.0]], name="w"), GradientDescentMomentum(0.1, 0)
        >>> @nl.jit
        ... def step():
        ...     cost = w * w
        ...     optimizer.step([w], [nl.Autodiff(cost).get_grad_op_tree(w)])
        ...     return cost
        >>> [float(step().get()) for _ in range(3)]
        [16.0, 10.24..., 6.55...]

        >>> adam = Adam(0.1)
        >>> @nl.jit
        ... def update(params, state):
        ...     gradients = {"w": 2 * params["w"]}
        ...     return adam.step(params, gradients, state)
        >>> params = {"w": nl.array_api.asarray([4.0, -2.0])}
        >>> state = adam.init(params)
        >>> for _ in range(3):
        ...     params, state = update(params, state)
        >>> params["w"], int(state["t"])
        (Array([ 3.7..., -1.7...], dtype=float32), 3)
        """
        if parameters is None or gradients is None:  # as in PyTorch
            raise TypeError(
                f"{self.classnm}.step: expected parameters and their gradients, got none. Use "
                "optimizer.step(net.parameters, gradients), or optimizer.optimize(model.layers_to_optimize, epoch=0)."
            )
        if state is not None:
            return self._step_containers(parameters, gradients, state, epoch)
        check_gradients(self.classnm, parameters, gradients)
        if parameters:
            epoch = check_number(f"{self.classnm}: the epoch", epoch)
            atomic(self._step_by, parameters, gradients, epoch, last=self)
        return None

    def _step_containers(self, parameters: Any, gradients: Any, state: Any, epoch: Any) -> tuple[Any, dict[str, Any]]:
        """Return new parameters and the new state, given containers and the state; nothing changes."""
        where, names = f"{self.classnm}.step", ("t", *self._all_state_names)
        self._check_rule(where)
        structure, like = flatten_parameters(where, parameters)
        way_out = f". Start with {self.classnm}.init(parameters)"
        if not isinstance(state, dict) or state.keys() != {*names}:
            got = f"a dict with {', '.join(map(str, state))}" if isinstance(state, dict) else describe(state)
            hint = f", or pass epoch={state}" if is_number(state) else ""
            raise TypeError(f"{where}: expected a state with {', '.join(names)}, got {got}{way_out}{hint}.")
        given = [("gradients", gradients, ". Pass the gradient of each parameter by its key")]
        given += [(f"the state {name}", state[name], way_out) for name in names[1:]]
        columns, live = zip(*[match(where, what, x, structure, like, hint) for what, x, hint in given], strict=True)
        if any(x is None for column in columns for x in column):
            raise TypeError(
                f"{where}: expected arrays, tensors or op-trees as gradients and states, got None{way_out}."
            )
        if not isinstance(epoch := operand_of(epoch), Operand):
            epoch = check_number(f"{self.classnm}: the epoch", epoch)
        if (trace := tracing()) is not None:
            trace.uses.append(AllSettings(self))
        t = operand_of(state["t"])
        be: Any = t.backend
        rule = copy.copy(self)
        rule.t = be.astype(t, "float64")  # scalars have the digits of those that optimize computes in Python
        scalars = rule.get_scalars(epoch)
        ws = [*map(operand_of, like)]
        gradients = [be.astype(g, compute_dtype(w)) for w, g in zip(ws, columns[0], strict=True)]
        gradients = clip_norm(be, gradients, self.gradient_clip_norm, gradients)
        results: list[Any] = [t + 1]
        for w, g, *states in zip(ws, gradients, *columns[1:], strict=True):
            dtype = compute_dtype(w)
            cast = {name: be.astype(x, dtype) if isinstance(x, Operand) else x for name, x in scalars.items()}
            new, *others = rule._update(be, w, g, states, cast)
            results += [be.astype(new, w.info.dtype), *others]
        is_live = None
        if tree_structure.is_inside():
            is_live = reduce(or_, [*live, *(getattr(x, "is_live", 0) for x in like)])
        else:
            results = be.evaluate(results)
        parts = [
            unflatten(structure, map(like_array, like, results[i :: len(names)], repeat(is_live)))
            for i in range(1, len(names) + 1)
        ]
        return parts[0], dict(zip(names, [like_array(state["t"], results[0], is_live), *parts[1:]], strict=True))

    def _check_rule(self, where: str) -> None:
        """Raise TypeError for an optimizer that calls others."""
        if type(self).update_rule is Optimizer.update_rule:
            raise TypeError(
                f"{where}: expected an optimizer with an update_rule, got {self.classnm}. Use an optimizer such as "
                "Adam() for each part of the parameters."
            )

    def _optimize(self, parameters: list[tuple[Owner, Parameter]], epoch: float) -> None:
        """Update parameters by a program, compiled once for these tensors and this batch size, and count the update."""
        tree_structure.refuse_in_trace(f"{self.classnm}.optimize", "Use optimizer.step(parameters, gradients)")
        program: Program | None = self._programs.find(program_key(parameters))
        if program is None or not program.is_current():
            steps = self._prepare(parameters, epoch)
            if not all(step.is_replayed for step in steps):
                return self._run_once(steps)
            with Trace(f"{self.classnm}.optimize") as trace:
                self._trace(trace, steps)
            program = self._programs.replace(program_key(parameters), Program(steps[0].be, (), trace, ()))
        for step in program.steps:
            step.count(epoch)
        be: Any = program.be
        assignment: Any = program.assignment
        if not begin_last_write(self):
            program.snapshot.take(self.cuda_graphs)
        if assignment is not None:  # None: other processes update all parameters
            be.replay("update", assignment, (self, assignment.tensors, assignment.operands), self.cuda_graphs)
        for step in program.steps:
            step.finish()

    def _prepare(self, parameters: list[tuple[Owner, Parameter]], epoch: float) -> list[Any]:
        """Return the update of checked parameters by their gradients, divided by the batch size."""
        check_parameters([parameter for _, parameter in parameters])
        for _, ((w, _), states) in parameters:
            if w.states is not states:  # the list of a custom layer
                on_failure(setattr, w, "states", w.states)
                w.states = states
        be = parameters[0][1][0][0].backend
        require_batch_size(be, self.classnm)
        owners = [owner for owner, _ in parameters]
        tensors, gradients = ([pair[i] for _, (pair, _) in parameters] for i in (0, 1))
        return self._make_steps(tensors, gradients, Settings(epoch, owners, (global_batch_size(be),), merges=True))

    def _step_by(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], epoch: float) -> None:
        """Update parameters by gradients; in a function that is traced, record it for each run."""
        with tree_structure.untraced() as trace:
            owners = [w.owner or ("", "") for w in parameters]
            steps = self._make_steps(parameters, gradients, Settings(epoch, owners))
        if trace is None:
            return self._run_once(steps)
        if not all(step.is_replayed for step in steps):
            trace.refuse(
                f"{self.classnm}.step, whose update_rule may read other values than its arguments in each step",
                "If it reads its arguments only, set can_replay = True in the class",
            )
        self._trace(trace, steps)

    def _trace(self, trace: Trace, steps: Sequence[Any]) -> None:
        """Record an update for each run of the program that this thread traces."""
        trace.steps += steps
        trace.uses.append(self)
        if pairs := [pair for step in steps for pair in step.assignments()]:
            tensors, values = zip(*pairs, strict=True)
            tensors[0].backend.assign(list(tensors), list(values))

    def _run_once(self, steps: Sequence[Any]) -> None:
        """Run an update that is not compiled."""
        for step in steps:
            step.count()
        if pairs := [pair for step in steps for pair in step.assignments()]:
            tensors, values = zip(*pairs, strict=True)
            if not begin_last_write(self):
                Snapshot(tensors).take()
            tensors[0].backend.assign(list(tensors), list(values))
        for step in steps:
            step.finish()

    def _make_steps(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings) -> list[Any]:
        """Return the update of parameters by gradients; of each part by its own optimizer."""
        return [Step(self, parameters, gradients, settings)]

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

    def _update(self, be: Backend, w: Tensor, g: Operand, states: Row, scalars: dict[str, Any]) -> list[Any]:
        """Return the new parameter and states as op-trees, given the gradient."""
        full = be.astype(w, compute_dtype(w))
        states, master = (states[:-1], states[-1]) if self.master_weights else (states, None)
        if master is not None:  # unless the parameter has been set otherwise, or this is the first update
            full = be.where(be.astype(be.astype(master, w.info.dtype), full.info.dtype) == full, master, full)
        if limit := self.gradient_clip_value:
            g = be.clip(g, -limit, limit)
        new, *others = self._call_update_rule(be, full, g, states, scalars)
        if limit := self.param_clip_value:
            new = be.clip(new, -limit, limit)
        if self.stochastic_round and w.info.dtype in HALF_DTYPES:
            new = round_stochastically(be, new, w.info.dtype)
        return [new, *others] if master is None else [new, *others, new]

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

    def _continue_states(self, parameters: Sequence[Tensor], runs: Sequence[Sequence[Row]]) -> None:
        """Let parameters continue from their states of this kind of optimizer; others get zeros, and t = 0.

        The states of the parameters of a run, which are adjacent in memory, are adjacent too.
        """
        for w in parameters:
            restore_on_failure(w, "updates")
            if isinstance(w.states, RemoteStates):
                kind, t = w.updates or (self.kind, 0)
                w.updates = self.kind, t if kind == self.kind else 0
                continue
            if w.states is None:
                on_failure(setattr, w, "states", None)
                w.states = []
            states = w.states
            on_failure(states.__setitem__, slice(None), [*states])
            kind, t = w.updates or (self.kind, self.t if states else 0)
            if kind != self.kind:
                states.clear()
            w.updates = self.kind, t if states or (kind == self.kind and not self._all_state_names) else 0
        rest = iter(parameters)
        for run in runs:
            self._allocate_states([w for w in islice(rest, len(run)) if not isinstance(w.states, RemoteStates)])

    def _allocate_states(self, run: list[Tensor]) -> None:
        """Allocate adjacent states for adjacent parameters; new states are zeros, existing values are copied."""
        if not run:
            return
        names = self._all_state_names
        for w in run:
            if w.states and [x.shape for x in w.states] != [w.shape] * len(names):
                raise ValueError(
                    f"{self.classnm}: expected {len(names)} states of the shape of {describe(w)}, "
                    f"got {describe(*w.states)}. Empty the list of states to start again."
                )
        all_states: list[list[Tensor]] = [w.states for w in run if w.states is not None]
        if all(all_states) and len(contiguous_runs(all_states)) == 1:
            return
        size, start = sum(w.size for w in run), 0
        flat = [run[0].backend.zeros((size, 1), dtype=compute_dtype(run[0])) for _ in names]
        for w, states in zip(run, all_states, strict=True):
            views = [x[start : start + w.size].reshape(w.shape) for x in flat]
            start += w.size
            for view, name in zip(views, names, strict=True):
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


# --- updates ----------------------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """How an update is built: the epoch, the layers of the parameters, and by what gradients are divided.

    With ``merges``, parameters that are adjacent in memory, like their gradients, are updated as one. ``num_updates``
    is a tensor (1, 1): how many of the last steps, at most ``MAX_PENDING_STEPS``, were updates, if the host has not
    read it.
    """

    epoch: float
    owners: Sequence[Owner]
    divisors: tuple[Any, ...] = ()
    merges: bool = False
    num_updates: Tensor | None = None


class Step:
    """An update of parameters by gradients, in which the scalars that change from step to step are tensors (1, 1)."""

    def __init__(
        self, optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Any], settings: Settings
    ) -> None:
        self.optimizer, self.epoch, self.divisors = optimizer, settings.epoch, settings.divisors
        self.be: Any = parameters[0].backend
        self.rule: Optimizer = getattr(optimizer, "optimizer", optimizer)  # that which a WeightAverage wraps
        self.kind, self.is_replayed = optimizer.kind, can_replay(self.rule)
        pairs: Any = list(zip(parameters, gradients, strict=True))
        merges = settings.merges and optimizer.merges_parameters
        pairs = sort_by_address(pairs) if merges else pairs
        runs = contiguous_runs(pairs) if merges else [[(w,)] for w, _ in pairs]
        if not self.shards_states:
            check_states_are_local(optimizer.classnm, parameters)
        optimizer._continue_states([w for w, _ in pairs], runs)
        counts = sorted({w.updates for w, _ in pairs})  # parameters of an equal number of updates have the same scalars
        # each parameter, the index of its number of updates, and its states; None if another process has these
        self.members: list[tuple[Tensor, int, Any]] = [
            (w, counts.index(w.updates), None if isinstance(w.states, RemoteStates) else (*w.states,)) for w, _ in pairs
        ]
        self.first = [next(w for w, k, _ in self.members if k == i) for i in range(len(counts))]  # one of each index
        self.rows: list[tuple[int, Sequence[Any]]] = []  # this index; and the parameter, its gradient and its states
        self.gradients: list[tuple[Any, Any]] = []  # of all parameters, also those that other processes update
        for updates, part in groupby(pairs, lambda pair: pair[0].updates):
            group = list(part)
            rows: Any = [(w, g, *w.states) for w, g in group if not isinstance(w.states, RemoteStates)]
            is_complete, rows = len(rows) == len(group), merge_contiguous(rows) if merges else rows
            self.rows += [(counts.index(updates), x) for x in rows]
            every = rows if is_complete else merge_contiguous(group) if merges else group
            self.gradients += [(w, g) for w, g, *_ in every]
        self.before: tuple[int, Any] = optimizer.t, counts  # the numbers of updates before the last ``count``
        self.counts = [t for _, t in counts]  # when the expressions are built
        self.scalars: list[dict[str, Any]] = [optimizer._get_scalars_at(t, self.epoch) for t in self.counts]
        self.table_values: list[list[float]] | None = None  # None: unknown
        self.table: Tensor | None = None
        if self.is_replayed:
            dtype = "float64" if any(compute_dtype(w) == "float64" for w in parameters) else "float32"
            n = settings.num_updates
            width = 1 if n is None else MAX_PENDING_STEPS  # a column for each number of updates
            self.table = table = self.be.zeros((sum(map(len, self.scalars)), width), dtype=dtype)
            self.host_table = table.get()
            views: Any = iter([table[i : i + 1] for i in range(len(table))])
            if n is not None:
                index = self.be.astype(n, "int32")
                views = (self.be.take(view, index, 1) for view in views)
            self.scalars = [{name: next(views) for name in named} for named in self.scalars]

    def current_updates(self) -> list[tuple[str, int]] | None:
        """Return (kind, t) of each group of parameters; None if they or the states are not those of the expressions."""
        updates: list[Any] = [w.updates for w in self.first]
        is_of_kind = all(x is not None and x[0] == self.kind for x in updates)
        are_same = is_of_kind and all(w.updates == updates[k] for w, k, _ in self.members)
        return updates if are_same and self.has_states() else None

    @property
    def shards_states(self) -> bool:
        """Whether another process may have the states of a parameter, which it then updates."""
        shard = self.be.minibatch_shard
        return shard is not None and bool(shard.shards_states)

    def has_states(self) -> bool:
        """Return whether the states of all parameters are those of the expressions."""
        for w, _, states in self.members:
            is_remote = states is None and isinstance(w.states, RemoteStates)
            if not (is_remote and self.shards_states) and (states is None or not same_objects(w.states or (), states)):
                return False
        return True

    def count(self, epoch: float | None = None) -> None:
        """Write the scalars of the next update, by default of the same epoch, and count it."""
        self.before = self.optimizer.t, [w.updates for w in self.first]
        on_failure(self.restore, *self.before)
        self.write_scalars(epoch)
        self.restore(*self.after(1))

    def write_scalars(self, epoch: float | None, num_pending: int = 0) -> None:
        """Write the scalars of the next update, after up to ``num_pending`` updates since ``before``."""
        self.epoch = self.epoch if epoch is None else epoch
        columns: list[list[float]] = []
        for n in range(num_pending + 1):
            columns.append([])
            for _, t in self.before[1]:
                columns[n] += self.optimizer._get_scalars_at(t + n, self.epoch).values()
        if self.table is not None and columns != self.table_values:
            self.table_values = None
            self.host_table.T[: num_pending + 1] = columns
            self.host_table.T[num_pending + 1 :] = columns[-1]
            write_array(self.be, self.table, self.host_table)
            self.table_values = columns
        self.optimizer.t = self.before[0]

    def after(self, n: int) -> tuple[int, list[tuple[str, int]]]:
        """Return the numbers of updates after n updates since ``before``."""
        t, updates = self.before
        return (max(updates)[1] + n if n else t), [(kind, t + n) for kind, t in updates]

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
        scaled: dict[int, Any] = {}  # by the id of the gradient
        for w, g in (*self.gradients, *((w, g) for _, (w, g, *_) in self.rows)):
            if id(g) not in scaled:
                scaled[id(g)] = reduce(truediv, self.divisors, be.astype(g, compute_dtype(w)))
        gradients = [scaled[id(g)] for _, (_, g, *_) in self.rows]
        every = [scaled[id(g)] for _, g in self.gradients]
        gradients = clip_norm(be, gradients, self.rule.gradient_clip_norm, every)
        result: list[tuple[Tensor, Operand]] = []
        t = optimizer.t
        for (k, (w, _, *states)), g in zip(self.rows, gradients, strict=True):
            optimizer.t = self.counts[k]
            result += zip([w, *states], optimizer._update(be, w, g, states, self.scalars[k]), strict=True)
        optimizer.t = t
        return result


def clip_norm(be: Any, gradients: list[Any], limit: float | None, every: list[Any]) -> list[Any]:
    """Return gradients scaled so that the norm of every gradient together is at most a limit, if there is one."""
    if not limit or not gradients:
        return gradients
    norm = be.sqrt(reduce(add, [be.reshape(be.sum(be.square(g)), (1, 1)) for g in every]))
    return [g * (limit / be.maximum(norm, limit)) for g in gradients]


def check_gradients(where: str, parameters: Sequence[Tensor], gradients: Sequence[Operand]) -> None:
    """Raise an error unless there is a gradient of its shape for each parameter, a tensor of floats."""
    if len(parameters) != len(gradients):
        raise ValueError(
            f"{where}.step: expected a gradient for each of {len(parameters)} parameters, got {len(gradients)}"
        )
    if any(w is None for w in parameters):
        raise TypeError(
            f"{where}.step: expected allocated parameters, got {describe(*parameters)}. Call net(x) first, which "
            "allocates net.parameters."
        )
    if len({*map(id, parameters)}) < len(parameters):
        raise ValueError(f"{where}.step: expected each parameter once, got {describe(*parameters)}")
    for w, g in zip(parameters, gradients, strict=True):
        if not isinstance(w, Tensor) or w.info.dtype not in FLOAT_DTYPES or not hasattr(g, "info"):
            raise TypeError(
                f"{where}.step: expected parameters as tensors of floats, and gradients as op-trees or tensors, got "
                f"{describe(w)} and {describe(g)}. For arrays and containers, pass a state: "
                "optimizer.step(parameters, gradients, optimizer.init(parameters))."
            )
        if w.shape != g.shape:
            raise ValueError(f"{where}.step: expected a gradient of the shape of {describe(w)}, got {describe(g)}")


# --- containers of parameters -----------------------------------------------------------------------------------------


class AllSettings:
    """All attributes of an optimizer but its counts: a change of one, also of the rate, compiles a function again."""

    can_replay, unread_attributes = True, ("t", "_programs", "cuda_graphs")

    def __init__(self, optimizer: Optimizer) -> None:
        self.__dict__ = vars(optimizer)


def like_array(like: Any, x: Operand, is_live: int | None = None, shape: tuple[int, ...] | None = None) -> Any:
    """Return an operand as an array if ``like`` is one; by default a variable if that is one."""
    if not hasattr(like, "with_operand"):
        return x
    return like.with_operand(x, shape, like.is_live & 1 if is_live is None else is_live)


def flatten_parameters(where: str, parameters: Any) -> tuple[Any, list[Any]]:
    """Return the structure of a container, and its leaves; TypeError unless all are of floats."""
    leaves: list[Any] = []
    structure = flatten(parameters, leaves)
    for name, x in zip(label_leaves(structure, "parameters"), leaves, strict=True):
        operand = operand_of(x)
        if not isinstance(operand, Operand) or operand.info.dtype not in FLOAT_DTYPES:
            kind = f" of {operand.info.dtype}" if isinstance(operand, Tensor) and operand is x else ""
            raise TypeError(
                f"{where}: expected arrays or tensors of floats in nested dicts, lists and tuples, got {describe(x)}"
                f"{kind} as {name}. Cast it to a float dtype, or pass it beside the parameters."
            )
    return structure, leaves


def last_writer(optimizer: Any) -> Any:
    """Return an optimizer if ``optimize`` does nothing that may fail after the update; None for other classes."""
    method = getattr(optimizer, "optimize", None)
    return optimizer if getattr(method, "__module__", "").startswith("neonlite.") else None


def pass_last_write(outer: Optimizer, inner: Optimizer) -> None:
    """Let the write of ``inner`` be the last of the transaction, if that of ``outer``, which calls it, is."""
    if log.last is outer:
        log.last = last_writer(inner)


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
    return [parameter for _, parameter in owned_parameters(layer_list)]


def owned_parameters(layer_list: Iterable[Layer]) -> list[tuple[Owner, Parameter]]:
    """Return the parameters of all layers that have parameters, each after the names of its layer and its class."""
    result: list[tuple[Owner, Parameter]] = []
    for layer in layer_list:
        if getattr(layer, "has_params", True):
            if not hasattr(layer, "get_params"):
                raise TypeError(f"optimizer: expected a list of layers, each with get_params(), got {describe(layer)}.")
            params, owner = layer.get_params(), (getattr(layer, "name", ""), type(layer).__name__)
            result += [(owner, x) for x in (params if isinstance(params, list) else [params])]
    return result


def program_key(parameters: list[tuple[Owner, Parameter]]) -> tuple[object, ...]:
    """Return what distinguishes the updates of an optimizer: the tensors, their layers, and the batch size."""
    ids: list[object] = []
    try:
        for owner, ((w, dw), states) in parameters:
            ids += [owner, id(w), id(dw), *map(id, states)]
    except (TypeError, ValueError):
        got = describe(*[parameter for _, parameter in parameters])
        raise TypeError(f"get_params(): expected ((W, dW), states) or a list of these, got {got}.") from None
    return (global_batch_size(w.backend) if isinstance(w, Tensor) else 0, *ids)


def check_parameters(parameters: list[Parameter]) -> None:
    """Raise TypeError or ValueError if parameters cannot be updated together."""
    for (w, dw), states in parameters:
        if not isinstance(w, Tensor) or not isinstance(dw, Tensor) or not isinstance(states, list | RemoteStates):
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


def sort_by_address(rows: Sequence[Row]) -> list[Row]:
    """Return rows in the memory order of their parameters, one buffer after another."""
    buffers: dict[int, int] = {}
    for w, *_ in rows:
        buffers.setdefault(id(w.root), len(buffers))
    return sorted(rows, key=lambda row: (buffers[id(row[0].root)], row[0].storage_offset))


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
