"""Optimizers of other optimizers: one for each layer, averages of the weights, and loss scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar, cast

from neonlite.backend import Backend, NervanaObject, Tensor
from neonlite.backend.transaction import atomic, log, on_failure, restore_on_failure, set_attributes
from neonlite.backend.validation import check_attributes, check_keys, checked_dataclass, from_name, instance, integer
from neonlite.initializers import compute_dtype
from neonlite.messages import describe
from neonlite.optimizers.optimizer import MAX_PENDING_STEPS, Optimizer, Row, Settings, get_param_list, last_writer
from neonlite.optimizers.rules import OPTIMIZERS
from neonlite.optree import Operand, OpTreeNode
from neonlite.programs import Trace
from neonlite.tree_structure import untraced
from neonlite.typing import Model

if TYPE_CHECKING:
    from neonlite.layers import Layer

Errors = TypeVar("Errors", bound="Operand | list[Tensor]")


@checked_dataclass
class MultiOptimizer(Optimizer):
    """Different optimizers for different layers, selected by the name of the layer or of its class.

    The name of the layer has precedence over that of its class. All other layers use the optimizer of 'default'.

    Parameters
    ----------
    optimizer_mapping : dict of str to Optimizer or str
        Maps names of layers or classes, and 'default', to optimizers, or their names such as "adam".
    name : str, optional
        Name; default: the class name and a counter.

    Attributes
    ----------
    map_list : dict of Optimizer to list of Layer
        The layers of the last ``optimize``, by optimizer.

    Raises
    ------
    TypeError
        If ``optimizer_mapping`` is not a dict of optimizers, or one of them is a ``LossScaling``.
    ValueError
        If there is no 'default'; in ``optimize``, if a key is neither the name of a layer nor of a class.

    Examples
    --------
    >>> from neonlite.optimizers import Adam, GradientDescentMomentum, MultiOptimizer, RMSProp
    >>> mapping = {"default": Adam(), "Bias": RMSProp(), "output": GradientDescentMomentum(0.1, 0.9)}
    >>> optimizer = MultiOptimizer(mapping)
    """

    optimizer_mapping: dict[str, Any]  # Optimizers; the constructor also accepts their names
    name: str | None = None  # type: ignore[assignment]

    result_attributes = unread_attributes = (*Optimizer.unread_attributes, "map_list")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = instance("MultiOptimizer: optimizer_mapping", self.optimizer_mapping, dict, "a dict of optimizers")
        self.optimizer_mapping = mapping = {
            key: from_name("MultiOptimizer: each of optimizer_mapping", x, OPTIMIZERS) for key, x in given.items()
        }
        for x in mapping.values():
            instance("MultiOptimizer: each of optimizer_mapping", x, Optimizer, "an optimizer, such as Adam(),")
            if isinstance(x, LossScaling):
                raise TypeError(
                    f"MultiOptimizer: expected optimizers without loss scaling, got {describe(x)}. Wrap the "
                    "MultiOptimizer as a whole: LossScaling(MultiOptimizer(...))."
                )
        if "default" not in mapping:
            have = ", ".join(mapping) or "none"
            raise ValueError(f"MultiOptimizer: expected a key 'default' for all other layers, got the keys: {have}.")

    def optimize(self, layer_list: Iterable[Layer], epoch: float = 0) -> None:
        layer_list = list(layer_list)
        chosen = self._choose([(getattr(layer, "name", ""), type(layer).__name__) for layer in layer_list])
        self.map_list: dict[Any, list[Layer]] = {optimizer: [] for optimizer in self.optimizer_mapping.values()}
        for layer, optimizer in zip(layer_list, chosen, strict=True):
            self.map_list[optimizer].append(layer)
        if None in map(last_writer, flatten_optimizers(self)):
            atomic(self._optimize_each, epoch)
        else:
            super().optimize(layer_list, epoch)
        restore_on_failure(self, "t")
        self.t += 1

    def _optimize_each(self, epoch: float) -> None:
        """Update the layers of each optimizer by its ``optimize``, as one may be of the user."""
        for optimizer, layers in self.map_list.items():
            optimizer.cuda_graphs = self.cuda_graphs
            if layers:
                optimizer.optimize(layers, epoch)

    def _choose(self, names: Sequence[tuple[str, str]]) -> list[Optimizer]:
        """Return the optimizer of each layer, given its name and that of its class. ValueError for an unknown key."""
        mapping = self.optimizer_mapping
        unknown = mapping.keys() - {"default", *(key for pair in names for key in pair)}
        if unknown and (unknown := unknown - layer_class_names()):
            have = ", ".join(f"{name} ({classnm})" for name, classnm in names if name) or "none"
            raise ValueError(
                f"MultiOptimizer: expected keys that are names or classes of layers, got {', '.join(sorted(unknown))}. "
                f"The layers are {have}."
            )
        return [mapping[next(key for key in (*pair, "default") if key in mapping)] for pair in names]

    def _make_steps(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings) -> list[Any]:
        optimizers = self._choose(settings.owners)
        rows = list(zip(optimizers, parameters, gradients, settings.owners, strict=True))
        steps: list[Any] = []
        for optimizer in dict.fromkeys(optimizers):
            ws, gs, owners = zip(*[row for other, *row in rows if other is optimizer], strict=True)
            steps += updates_of(optimizer, ws, gs, settings._replace(owners=owners))
        return steps

    def get_state(self) -> dict[str, Any]:
        return {key: optimizer.get_state() for key, optimizer in self.optimizer_mapping.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for key, optimizer in self.optimizer_mapping.items():
            optimizer.set_state(state[key])


class OptimizerWrapper(Optimizer):
    """Base class of optimizers that wrap another one, which updates the parameters; it may be given by its name."""

    optimizer: Optimizer | str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer = from_name(f"{self.classnm}: optimizer", self.optimizer, OPTIMIZERS)
        if not isinstance(self.optimizer, Optimizer) or isinstance(self.optimizer, type(self)):
            raise TypeError(f"{self.classnm}: expected an optimizer, such as Adam(), got {describe(self.optimizer)}.")

    @property
    def wrapped(self) -> Optimizer:
        """The optimizer that updates the parameters."""
        return cast(Optimizer, self.optimizer)

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "optimizer": self.wrapped.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        check_keys(f"{self.classnm}: the state", state, self.get_state())
        if self.wrapped.get_state().keys() == state["optimizer"].keys():  # else a different optimizer
            self.wrapped.set_state(state["optimizer"])
        set_attributes(self, {name: x for name, x in state.items() if name != "optimizer"})


@checked_dataclass
class WeightAverage(OptimizerWrapper):
    """Wrap an optimizer: beside each parameter, keep the exponential moving average of its values after each update.

    Formula: ``a = decay a + (1 - decay) w``; the average is ``a / (1 - decay^t)`` after t updates. It is a state of the
    parameter: checkpoints store it, ``fit`` continues it, and a step that fails leaves it unchanged. Moments of
    ``BatchNorm`` are not averaged.

    Parameters
    ----------
    optimizer : Optimizer or str
        An optimizer with an update rule, or its name such as "adam". For a MultiOptimizer, wrap those that it contains;
        wrap LossScaling around this one.
    decay : float
        Decay rate of the average per update, in [0, 1); default: 0.999.
    name : str, optional
        Name; default: the class name and a counter.

    Raises
    ------
    TypeError
        If ``optimizer`` is not an optimizer with an update rule.

    References
    ----------
    Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.optimizers import Adam, WeightAverage
    >>> be, optimizer = nl.gen_backend("cpu"), WeightAverage(Adam(0.01), decay=0.9)
    >>> model = nl.Model([nl.layers.Affine(1)])
    >>> history = model.fit([[0.0], [1.0]], [1.0, 3.0], optimizer=optimizer, progress_bar=False)
    >>> optimizer.averaged(model).predict([[0.0], [1.0]]).shape
    (2,)
    """

    optimizer: Optimizer | str
    decay: float = 0.999
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wrapped._check_rule(self.classnm)
        self.merges_parameters = self.wrapped.merges_parameters

    @property
    def _all_state_names(self) -> tuple[str, ...]:
        return (*self.wrapped._all_state_names, "average")

    @property
    def kind(self) -> str:
        return f"{self.classnm}Of{self.wrapped.classnm}({', '.join(self._all_state_names)})"

    def averaged(self, model: Model) -> Model:
        """Return a copy of a model with the averages as weights: to evaluate it, predict with it, or save it.

        Parameters
        ----------
        model : Model
            A model that this optimizer trains.

        Returns
        -------
        Model
            The copy. The model itself is unchanged.

        Raises
        ------
        ValueError
            If the model has no averages of this optimizer.
        """
        result, found = model.copy(), False
        for (w, _), states in get_param_list(result.layers.leaves()):
            kind, t = w.updates or ("", 0)
            if kind == self.kind and t:
                w[:], found = states[-1] / (1 - self.decay**t), True
        if not found:
            raise ValueError(
                f"{self.classnm}.averaged: expected a model that was trained by {self.name}, got {model.name} without "
                "averages. Call model.fit(X, y, optimizer=optimizer) first."
            )
        return result

    def _get_scalars_at(self, t: int, epoch: float) -> dict[str, Any]:
        self.t = t
        return self.wrapped._get_scalars_at(t, epoch)

    def _update(self, be: Backend, w: Tensor, g: Operand, states: Row, scalars: dict[str, Any]) -> list[Any]:
        self.wrapped.t = self.t
        new, *others = self.wrapped._update(be, w, g, states[:-1], scalars)
        return [new, *others, self.decay * states[-1] + (1 - self.decay) * new]


def layer_class_names() -> set[str]:
    """Return the names of all classes of layers, also of those that no network contains."""
    classes: list[Any] = [NervanaObject]
    for cls in classes:  # which grows
        classes += cls.__subclasses__()
    return {cls.__name__ for cls in classes if hasattr(cls, "configure")}


# --- lossScaling: scale errors for float16 training, and skip updates whose gradients overflow ---

MAX_CONSECUTIVE_SKIPS = 40  # after that many, the scale is not the cause
SCALE_COUNTS = ("good_steps", "consecutive_skips", "total_skips")
DEVICE_STATE = ("scale", *SCALE_COUNTS)  # and the number of updates that the host has not counted
MAX_SCALE = 2.0**127


@checked_dataclass
class LossScaling(OptimizerWrapper):
    """Wrap an optimizer: errors are multiplied by ``scale`` before the backward pass, and gradients divided by it.

    The division is in float32. A step whose gradients are not all finite is skipped: parameters and states are
    unchanged. With ``dynamic``, the scale is halved after a skipped step, and doubled after ``growth_interval`` steps
    without one. ``Model.fit`` scales the errors; in a custom training loop, call
    ``net.bprop(optimizer.scale_errors(errors))``. The program of a step decides all this, and a GPU runs up to 8 steps
    before the host reads it; to read an attribute, such as ``scale``, waits for the last step.

    Parameters
    ----------
    optimizer : Optimizer or str
        The optimizer, or its name such as "adam". To use a MultiOptimizer, wrap it as a whole, not its optimizers.
    scale : float
        Initial factor of the errors; default: 1024.
    dynamic : bool
        Whether the scale is adapted; default: True.
    growth_interval : int
        Steps without overflow after which the scale is doubled; default: 2000.
    name : str, optional
        Name; default: the class name and a counter.

    Attributes
    ----------
    good_steps, consecutive_skips : int
        Updates since the last skipped step, and skipped steps since the last update.
    total_skips : int
        Number of skipped steps.

    Raises
    ------
    TypeError
        If ``optimizer`` is not an optimizer.
    ValueError
        If ``scale`` or ``growth_interval`` is not positive.
    RuntimeError
        In ``optimize`` and ``step``, if the errors or the cost were not scaled by ``scale_errors``.
    FloatingPointError
        In ``optimize`` and ``step``, after 40 consecutive skipped steps, when the host next reads their number.

    References
    ----------
    Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2.

    Examples
    --------
    >>> from neonlite.optimizers import Adam, LossScaling
    >>> optimizer = LossScaling(Adam(learning_rate=0.001), scale=2.0**15)
    """

    optimizer: Optimizer | str  # an Optimizer; the constructor also accepts its name
    scale: float = 2.0**10
    dynamic: bool = True
    growth_interval: int = 2000
    name: str | None = None  # type: ignore[assignment]

    result_attributes = unread_attributes = (*Optimizer.unread_attributes, *DEVICE_STATE, "_state", "_pending")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "scale", above=0)
        self.growth_interval = integer("LossScaling: growth_interval", self.growth_interval)
        self.good_steps = self.consecutive_skips = self.total_skips = 0
        self._state: Any = None  # the tensors (1, 1) of DEVICE_STATE and of the number of updates, views of one
        self._pending: tuple[Any, int] = None, 0  # the ScaledStep of the steps that are not counted, and their number

    def __getattribute__(self, name: str) -> Any:
        if name in (*DEVICE_STATE, "t") and vars(self).get("_pending", (None,))[0]:
            self.settle()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DEVICE_STATE and vars(self).get("_state"):
            self.settle()
            self._state[DEVICE_STATE.index(name)].fill(value)
            self._state[-1].fill(0)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {**vars(self), "_state": None}

    def settle(self) -> None:
        """Count the steps that only the device has counted; wait for it."""
        step, _ = self._pending
        if step is None:
            return
        with untraced():
            scale, *counts, updates = map(float, self._state[0].base.get().ravel())
        self._pending, n = (None, 0), int(updates)
        vars(self).update(zip(SCALE_COUNTS, map(int, counts), strict=True), t=vars(self)["t"] + n)
        if self.dynamic:
            vars(self)["scale"] = scale
        self._state[-1].fill(0)
        step.count_updates(n)

    def _check_skips(self) -> None:
        """Raise FloatingPointError after too many skipped steps in a row; wait for the device."""
        self.settle()
        if self.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
            raise FloatingPointError(
                f"LossScaling: expected finite gradients, got NaN or infinity in {self.consecutive_skips} consecutive "
                f"steps, down to a scale of {self.scale:g}. Training diverged: reduce the learning rate or the scale."
            )

    def scale_errors(self, errors: Errors) -> Errors:
        """Multiply errors by the scale: tensors in place. CUDA graphs and programs read the current scale in each run.

        Parameters
        ----------
        errors : Tensor, list of Tensor or OpTreeNode
            The errors of a cost; or the cost as an op-tree, of which ``step`` then takes the gradients.

        Returns
        -------
        Tensor, list of Tensor or OpTreeNode
            The same tensors; for an op-tree, its product with the scale.
        """
        x: Any = errors
        if isinstance(x, list | tuple):
            x = [self.scale_errors(error) for error in x]
        elif isinstance(x, OpTreeNode):
            x = x * self._scale_on(x.backend)
        else:
            x[:] = x * self._scale_on(x.backend)
        return cast(Errors, x)

    def _scale_on(self, be: Any) -> Tensor:
        """Return the scale as a tensor (1, 1) on a backend."""
        if self._state is None or self._state[0].backend is not be:
            self.settle()
            with untraced():
                rows = be.zeros((len(DEVICE_STATE) + 1, 1), dtype="float32")
                self._state = [rows[i : i + 1] for i in range(len(rows))]
                for name, x in zip(DEVICE_STATE, self._state, strict=False):
                    x.fill(getattr(self, name))
        return cast(Tensor, self._state[0])

    def _state_after(self, finite: Operand) -> list[tuple[Tensor, Operand]]:
        """Return the state on the device with its values after a step; finite: 1 or 0, whether it was an update."""
        be: Any = finite.backend
        scale, good, consecutive, total, updates = self._state
        values = [scale, finite * (good + 1), (1 - finite) * (consecutive + 1), total + 1 - finite, updates + finite]
        if self.dynamic:
            is_grown = finite * (be.remainder(good + 1, self.growth_interval) == 0)
            values[0] = be.minimum(scale * (0.5 + 0.5 * finite + is_grown), MAX_SCALE)
        return list(zip(self._state, values, strict=True))

    def optimize(self, layer_list: Iterable[Layer], epoch: float = 0) -> None:
        layer_list = list(layer_list)
        if None in map(last_writer, flatten_optimizers(self)):
            atomic(self._optimize_by_wrapped, layer_list, epoch)
        else:
            super().optimize(layer_list, epoch)

    def _optimize_by_wrapped(self, layer_list: list[Layer], epoch: float) -> None:
        """Divide the gradients by the scale, and call ``optimize`` of the wrapped optimizer, a method of the user."""
        gradients = [dw for (_, dw), _ in get_param_list(layer_list)]
        if not gradients:
            return
        self._check_skips()
        be = cast("Backend", gradients[0].backend)
        scale = self._check_scaled(be)
        restore_on_failure(self, "t", *DEVICE_STATE)
        pairs = self._state_after(are_finite(be, gradients))
        pairs += [(g, be.astype(g, compute_dtype(g)) / scale) for g in gradients]
        targets, values = zip(*pairs, strict=True)
        be.assign(list(targets), list(values))
        before, self._pending = self.t, (ScaledStep(self, [], gradients), 1)
        if self.t == before:  # a skipped step
            return
        self.wrapped.cuda_graphs = self.cuda_graphs
        self.wrapped.optimize(layer_list, epoch)

    def _check_scaled(self, be: Backend, gradients: Sequence[Operand] = ()) -> Tensor:
        """Return the scale as a tensor; RuntimeError unless errors, or the cost of gradients, were multiplied by it."""
        trees = [g.leaves.values() for g in gradients if isinstance(g, OpTreeNode) and g.leaves is not None]
        scale = None if self._state is None else self._scale_on(be)
        if scale is None or (trees and not any(x is scale for leaves in trees for x in leaves)):
            raise RuntimeError(
                "LossScaling: expected errors that were scaled before the backward pass, got none. Call "
                "net.bprop(optimizer.scale_errors(errors)), as Model.fit does, or take the gradients of "
                "optimizer.scale_errors(cost)."
            )
        return scale

    def _make_steps(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings) -> list[Any]:
        scale = self._check_scaled(cast("Backend", parameters[0].backend), gradients)
        settings = settings._replace(divisors=(scale, *settings.divisors), num_updates=self._state[-1])
        return [ScaledStep(self, updates_of(self.wrapped, parameters, gradients, settings), gradients)]

    def _trace(self, trace: Trace, steps: Sequence[Any]) -> None:
        if any(getattr(step, "optimizer", None) is self for step in trace.steps):
            trace.refuse("a second step of a LossScaling", "Pass all parameters to one step, or use one for each step")
        super()._trace(trace, steps)

    def get_state(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in SCALE_COUNTS}
        return {"t": self.t, "scale": float(self.scale), **counts, **super().get_state()}


class ScaledStep:
    """An update by scaled gradients; without effect if one of them is not finite, which only the device knows."""

    def __init__(self, optimizer: LossScaling, steps: Sequence[Any], gradients: Sequence[Operand]) -> None:
        self.optimizer, self.steps = optimizer, steps
        self.be: Any = gradients[0].backend
        self.is_replayed = all(step.is_replayed for step in steps)

    def current_updates(self) -> list[Any] | None:
        """Return what the steps of the wrapped optimizer return; None if one returns None."""
        if self.optimizer._pending[0] is self:
            are_unread = all(w.unread_updates == self.optimizer.settle for w in self.parameters)
            return [] if are_unread and all(step.has_states() for step in self.steps) else None
        updates = [step.current_updates() for step in self.steps]
        return None if None in updates else updates

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all steps."""
        return [w for step in self.steps for w, *_ in step.members]

    def count(self, epoch: float | None = None) -> None:
        """Write the scalars of the next update; ``settle`` counts it, if it is one."""
        step, self.num_pending = self.optimizer._pending
        if step is not self or self.num_pending == MAX_PENDING_STEPS:
            self.optimizer._check_skips()
            self.num_pending = 0
            for part in self.steps:
                part.before = part.optimizer.t, [w.updates for w in part.first]
        for part in self.steps:
            part.write_scalars(epoch, self.num_pending)

    def defer_count(self) -> None:
        """Let ``updates`` of the parameters be counted when it is read."""
        for w in self.parameters:
            w.unread_updates = self.optimizer.settle

    def count_updates(self, n: int) -> None:
        """Count n updates of the pending steps."""
        for step in self.steps:
            step.optimizer.t, updates = step.after(n)
            for w, k, _ in step.members:
                if w.unread_updates == self.optimizer.settle:  # else it has been set
                    w.updates = updates[k]

    def finish(self) -> None:
        """Let the host count the update later; at once if the transaction may still fail."""
        optimizer = self.optimizer
        can_fail = log.undo is not None and not log.is_writing
        if can_fail:
            values = vars(optimizer)  # to read the attributes would count the steps before
            on_failure(values.update, {name: values[name] for name in ("t", "_pending", *DEVICE_STATE)})
            if self.num_pending:
                on_failure(self.defer_count)
            for step in self.steps:
                restore_on_failure(step, "before")
                on_failure(step.restore, *step.before)
        optimizer._pending = self, self.num_pending + 1
        self.defer_count()
        if can_fail:
            optimizer.settle()

    def assignments(self) -> list[tuple[Tensor, Operand]]:
        """Return the state of the scale, parameters and states with new values, or with old ones in a skipped step."""
        be = self.be
        finite = are_finite(be, [g for step in self.steps for _, g in step.gradients])
        pairs = [pair for step in self.steps for pair in step.assignments()]
        return [*self.optimizer._state_after(finite), *((t, be.where(finite, value, t)) for t, value in pairs)]


def are_finite(be: Backend, gradients: Sequence[Operand]) -> Operand:
    """Return whether all elements of gradients are finite: 1 or 0, as an op-tree (1, 1)."""
    return reduce(be.minimum, [be.astype(be.reshape(be.min(be.finite(g)), (1, 1)), "float32") for g in gradients])


def updates_of(
    optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings
) -> list[Any]:
    """Return the update by an optimizer that another one contains; TypeError if it defines ``optimize``."""
    if last_writer(optimizer) is None:
        raise TypeError(
            f"optimizer: expected an optimizer that defines update_rule or get_scalars, got {describe(optimizer)}, "
            "which defines optimize."
        )
    return optimizer._make_steps(parameters, gradients, settings)


def flatten_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that a MultiOptimizer, LossScaling or Distributed contains, or the optimizer itself."""
    if isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        return flatten_optimizers(inner)
    if isinstance(optimizer, MultiOptimizer):
        return [x for part in optimizer.optimizer_mapping.values() for x in flatten_optimizers(part)]
    return [optimizer]
