"""How are weights updated?  An optimizer says it for one tensor of weights; here it is done for all of them at once.

Weights that lie one after another in memory, as do their gradients and states, are one tensor to an optimizer: a
network whose parameters are views of one flat buffer is updated by one op-tree, in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from neonlite.backend import NervanaObject, Tensor
from neonlite.backend.numbers import check, number
from neonlite.backend.prepared import Prepared
from neonlite.initializers import wide
from neonlite.ops import DIGITS, FLOATS, HALVES
from neonlite.optimizers.schedule import CONSTANT, Schedule, check_schedule
from neonlite.optree import describe

Parameter = tuple[tuple[Tensor, Tensor], list[Tensor]]  # ((W, dW), states), as a layer gives it
Row = Sequence[Tensor]  # W, dW, and the states

NETWORKS = 8  # lists of parameters that an optimizer remembers
FRACTIONS = ("momentum_coef", "decay", "decay_rate", "beta_1", "beta_2")  # arguments from 0 below 1
AMOUNTS = ("learning_rate", "wdecay", "epsilon")  # arguments from 0
LIMITS = ("gradient_clip_norm", "gradient_clip_value", "param_clip_value")  # arguments above 0, or None


class Optimizer(NervanaObject):
    """Updates the weights of layers by their gradients. One of your own says ``rule``.

    ``stochastic_round``: whether weights of 16 bits are rounded up or down by chance, so that steps smaller than their
    precision are not lost on average; it has no effect on other dtypes. ``gradient_clip_norm``: the largest norm of
    all gradients together. ``gradient_clip_value`` and ``param_clip_value``: the largest magnitude of a gradient, and
    of a weight. Gradients are those of a minibatch's sum, and are divided by ``be.bsz`` first. Weights of
    16 bits are updated, and have their states, in float32.
    """

    keeps: tuple[str, ...] = ()  # the states that are kept for each tensor of weights
    stochastic_round: bool = False
    learning_rate: float
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    schedule: Schedule = CONSTANT
    divisor: float = 1  # of gradients, beside the batch size: what their errors were multiplied by
    graphs: bool = True  # whether a card may replay the update, as ``be.replay`` says
    results = ("t", "schedule", "_networks")  # attributes that an update depends on through its ``numbers`` alone

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.t = 0  # steps made
        self._networks: dict[tuple[int, ...], Network] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: all but the tensors it has met, which it would take for those of its own."""
        return {**vars(self), "_networks": {}}

    def __post_init__(self) -> None:
        """Name it, and check its arguments, once they are set."""
        Optimizer.__init__(self, self.name)
        given = vars(self)
        if not isinstance(self.stochastic_round, bool):
            raise TypeError(
                f"{self.classnm}: stochastic_round is True or False; got {self.stochastic_round!r}; "
                "a rate is given by its name, learning_rate=0.01"
            )
        check(self, *[name for name in AMOUNTS if name in given], low=0)
        check(self, *[name for name in FRACTIONS if name in given], low=0, below=1)
        for name in LIMITS:
            if (limit := getattr(self, name)) is not None and number(f"{self.classnm}: {name}", limit, 0) == 0:
                raise ValueError(f"{self.classnm}: {name} is a number above 0, or None for no limit; got {limit!r}")
        check_schedule(self)

    def rule(self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any) -> Sequence[Any]:
        """Return the new weights and the new states, as op-trees.

        ``g``: the gradient, divided and limited by value. ``step``: what to go along it by, the learning ``rate`` times
        the factor that keeps the norm of all gradients within its limit: a number or, with such a limit, a tensor.
        What else ``numbers`` gives follows by its name.
        """
        raise NotImplementedError(f"{self.classnm} has no rule: write rule(be, w, g, states, rate, step)")

    def numbers(self, epoch: float) -> dict[str, float]:
        """Return the numbers that differ from step to step, by the names under which ``rule`` takes them.

        To a rule that a card may replay they are tensors (1, 1): neonlite's own, and of a class with
        ``can_replay = True``.
        """
        return {"rate": self.rate(epoch)}

    def rate(self, epoch: float) -> float:
        """Return the learning rate of an epoch."""
        rate = self.schedule.get_learning_rate(self.learning_rate, epoch)
        return float(number(f"{self.classnm}: the learning rate of {self.schedule.classnm}, epoch {epoch},", rate, 0))

    def optimize(self, layer_list: Iterable[Any], epoch: float) -> None:
        """Update the weights of layers: each has ``get_params()``, which gives ((W, dW), states) or a list of those.

        The new values of all are spelled out before the first is written: an error leaves the weights as they were.
        ValueError when the batch size is not set.
        """
        parameters = get_param_list(layer_list)
        if not parameters:
            return
        network = self._network(parameters)
        be = network.be
        if not be.bsz:
            raise ValueError(f"{self.classnm} divides gradients by the batch size, which is not set yet: be.bsz = N")
        numbers: dict[str, Any] = self.numbers(number(f"{self.classnm}: the epoch", epoch))
        if be.graphs is not None and be.graphs.takes(self):
            numbers = network.on_card(numbers)
        be.replay("update", lambda: self._update_all(network, numbers), (self, network.rows), self.graphs)
        self.t += 1

    def get_state(self) -> dict[str, Any]:
        """Return what goes on from step to step, apart from the layers' own states: the number of steps."""
        return {"t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``get_state`` returned."""
        self.t = state["t"]

    def _update_all(self, network: Network, numbers: dict[str, Any]) -> None:
        """Work out the new values of all weights and states, and write them."""
        be, limit, step = network.be, self.gradient_clip_norm, numbers["rate"]
        if limit:
            step = within_norm(limit, step, network, be.bsz * self.divisor)
        updates = [self._update(be, row, step=step, **numbers) for row in network.rows]
        for row, values in enumerate(updates):
            network.assign(row, values)

    def _update(self, be: Any, row: Row, **numbers: Any) -> list[Any]:
        """Return the new values of weights and states."""
        w, dw, *states = row
        dtype = wide(w)
        g, full = (x if x.info.dtype == dtype else be.astype(x, dtype) for x in (dw, w))
        g = g / (be.bsz * self.divisor)
        if limit := self.gradient_clip_value:
            g = be.clip(g, -limit, limit)
        new, *others = self.rule(be, full, g, states, **numbers)
        if limit := self.param_clip_value:
            new = be.clip(new, -limit, limit)
        if self.stochastic_round and w.info.dtype in HALVES:
            new = rounded(be, new, w.info.dtype)
        return [new, *others]

    def _network(self, parameters: list[Parameter]) -> Network:
        """Return parameters as the optimizer sees them: with states, and merged where they lie side by side."""
        known = self._networks.get(identity(parameters))
        if known is None:
            check_parameters(parameters)
            ordered = in_memory_order(parameters)
            rest = iter(ordered)
            for run in runs([row for row, _ in ordered]):
                self._keep_states(list(islice(rest, len(run))))
            known = Network(ordered)
            if len(self._networks) >= NETWORKS:
                self._networks.clear()
            self._networks[identity(parameters)] = known
        return known

    def _keep_states(self, run: list[Parameter]) -> None:
        """See to it that parameters side by side have states side by side: of zeros, or of the values they had."""
        for (w, _), states in run:
            if states and [x.shape for x in states] != [w.shape] * len(self.keeps):
                raise ValueError(
                    f"{self.classnm} keeps {len(self.keeps)} states of the shape of {describe(w)}; "
                    f"it has {describe(*states)}, perhaps another optimizer's: empty the list to start afresh"
                )
        if all(states for _, states in run) and len(runs([states for _, states in run])) == 1:
            return
        w, size = run[0][0][0], sum(w.size for (w, _), _ in run)
        flat = [w.backend.zeros((size, 1), dtype=wide(w)) for _ in self.keeps]
        start = 0
        for (w, _), states in run:
            views = [x[start : start + w.size].reshape(w.shape) for x in flat]
            start += w.size
            for view, word in zip(views, self.keeps, strict=True):
                view.name = f"{w.name}.{word}" if w.name else word
            for view, old in zip(views, states, strict=False):  # there are none, or all
                view[:] = old
            states[:] = views


def within_norm(limit: float, rate: Any, network: Network, n: float) -> Tensor:
    """Return ``rate limit / max(norm, limit)``, the norm that of all gradients divided by n."""
    be, step = network.be, network.step
    for place, (w, dw, *_) in zip(network.places, network.rows, strict=True):
        place[:] = be.sum(be.square(be.astype(dw, wide(w))), keepdims=False)
    # worked out here and not in the tree of the update, which so stays one pass
    step[:] = rate * limit / be.maximum(be.sqrt(be.sum(network.squares)) / n, limit)
    return step


LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}  # above 0


def rounded(be: Any, x: Any, dtype: str) -> Any:
    """Return ``x``, float32, as one of the two numbers of 16 bits around it, the nearer one more often: the mean is x.

    P(far) = |x - near| / |far - near|. A number of 16 bits stays as it is, and beyond the largest there is infinity.
    """
    near = be.astype(be.astype(x, dtype), "float32")
    # a number between half a gap and one and a half gaps away from near: the cast takes it to the next one
    beyond = near + be.sgn(x - near) * be.maximum(be.absolute(near) * (1.25 * 2.0 ** -DIGITS[dtype]), LEAST[dtype])
    far = be.astype(be.astype(beyond, dtype), "float32")
    chance = be.astype(be.rand(x.shape), "float32")
    if be.default in HALVES:  # whose random numbers have few bits
        chance = chance + be.astype(be.rand(x.shape), "float32") * 2.0 ** -DIGITS[be.default]
    return be.where(chance * be.absolute(far - near) < be.absolute(x - near), far, near)


# --- parameters, and where they lie --------------------------------------------------------------------------------


class Network:
    """What an optimizer remembers of a list of parameters, all of them with states."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters = parameters  # held, so that no other tensor gets their ids
        self.rows = merged([(*row, *states) for row, states in parameters])
        self.be = self.rows[0][0].backend
        dtype = "float64" if any(wide(w) == "float64" for w, *_ in self.rows) else "float32"
        self.squares = self.be.zeros((len(self.rows), 1), dtype=dtype)  # the sum of squares of each row's gradients
        self.places = list(self.squares)
        self.step: Tensor = self.be.zeros((1, 1), dtype=dtype)
        self.prepared: dict[int, Prepared] = {}  # the updates of rows, of which the next differ in numbers alone
        self.numbers: dict[str, float] = {}  # what the card was told
        self.words: dict[str, Tensor] = {}  # where it finds them

    def on_card(self, numbers: dict[str, float]) -> dict[str, Tensor]:
        """Return numbers as words of the card: tensors (1, 1), which an update that was recorded reads anew."""
        if self.numbers != numbers:
            if not self.words:
                self.table = self.be.zeros((len(numbers), 1), dtype=self.step.info.dtype)
                self.words = {name: self.table[n : n + 1] for n, name in enumerate(numbers)}
            self.table[:] = [[x] for x in numbers.values()]
            self.numbers = numbers
        return self.words

    def assign(self, row: int, values: Sequence[Any]) -> None:
        """Write the new values of a row: of weights and states."""
        prepared = self.prepared.get(row)
        if prepared is None or not prepared.take(values):
            w, _, *states = self.rows[row]
            prepared = self.prepared[row] = self.be.prepare([w, *states], values)
        prepared()


def get_param_list(layer_list: Iterable[Any]) -> list[Parameter]:
    """Return the parameters of those layers that have some, ((W, dW), states) each; TypeError for what is no layer."""
    found: list[Parameter] = []
    for layer in layer_list:
        if getattr(layer, "has_params", True):
            if not hasattr(layer, "get_params"):
                raise TypeError(f"an optimizer takes a list of layers, each with get_params(); got {describe(layer)}")
            params = layer.get_params()
            found += params if isinstance(params, list) else [params]
    return found


def identity(parameters: list[Parameter]) -> tuple[int, ...]:
    """Return the ids of all tensors of parameters; TypeError when there is something else."""
    try:
        return tuple([id(x) for (w, dw), states in parameters for x in (w, dw, *states)])
    except (TypeError, ValueError):
        raise TypeError(
            f"get_params() gives ((W, dW), states) or a list of those; got {describe(*parameters)}"
        ) from None


def check_parameters(parameters: list[Parameter]) -> None:
    """Raise an error when an optimizer could not update parameters."""
    for (w, dw), states in parameters:
        if not isinstance(w, Tensor) or not isinstance(dw, Tensor) or not isinstance(states, list):
            raise TypeError(
                f"get_params() gives ((W, dW), states), two tensors and a list; got (({describe(w)}, {describe(dw)}), "
                f"{describe(states)}): are the layers allocated?"
            )
        if w.shape != dw.shape or not {w.info.dtype, dw.info.dtype} <= set(FLOATS):
            raise ValueError(
                f"weights and their gradient are floats of one shape; got {describe(w)}, {w.info.dtype}, "
                f"and {describe(dw)}, {dw.info.dtype}"
            )
        if w.backend is not parameters[0][0][0].backend:
            raise ValueError(
                f"{describe(w)} belongs to {w.backend!r}, {describe(parameters[0][0][0])} to "
                f"{parameters[0][0][0].backend!r}: update them with an optimizer each"
            )


def in_memory_order(parameters: list[Parameter]) -> list[Parameter]:
    """Return parameters in the order in which their weights lie in memory, one buffer after another."""
    buffers: dict[int, int] = {}
    for (w, _), _ in parameters:
        buffers.setdefault(id(w.root), len(buffers))
    return sorted(parameters, key=lambda p: (buffers[id(p[0][0].root)], p[0][0].start))


def runs(rows: Sequence[Row]) -> list[list[Row]]:
    """Return rows of tensors, cut wherever a tensor does not begin where the one above it in its column ends."""
    found: list[list[Row]] = []
    for row in rows:
        if found and all(follows(x, y) for x, y in zip(found[-1][-1], row, strict=True)):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def follows(x: Tensor, y: Tensor) -> bool:
    """Tell whether a tensor begins in memory where another ends, and both lie there without gaps."""
    return x.root is y.root and x.span[1] == y.start and x.root.is_contiguous and x.is_contiguous and y.is_contiguous


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return rows of tensors, those that lie one after another as one: a column view of the buffer they share.

    >>> import neonlite as nl
    >>> flat = nl.gen_backend("cpu").zeros((10, 1))
    >>> [[x.shape for x in row] for row in merged([(flat[:6].reshape(2, 3),), (flat[6:8],), (flat[9:],)])]
    [[(8, 1)], [(1, 1)]]
    """

    def one(first: Tensor, last: Tensor) -> Tensor:
        root = first.root
        return root.reshape(-1, 1)[first.start - root.start : last.span[1] - root.start]

    return [
        run[0] if len(run) == 1 else [one(x, y) for x, y in zip(run[0], run[-1], strict=True)] for run in runs(rows)
    ]
