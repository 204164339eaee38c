"""Which layers read a sequence step by step?  Those that keep a state on their way through time.

Data is (F, T N): column t N + n is time step t of row n of the minibatch. One product takes the inputs of all steps;
then each step adds what it makes of the state before it. On the way back, too, the gradients of the weights are
products over all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from neonlite.backend import Tensor
from neonlite.layers.layer import accumulates
from neonlite.layers.parameter import Learned, ParameterLayer, Slot, fill
from neonlite.optree import describe
from neonlite.transforms import Transform

Program = list[Callable[[], Any]]
LOOKED_UP = 64  # rows of one-hot inputs from which a look-up is sooner than a product


class Recurrence(ParameterLayer):
    """The base of layers that read a sequence (nin, T), and have states of ``output_size`` in each step.

    All weights are one tensor ``W``, (ways (nin + output_size + 1), gates output_size). Its rows are those of
    ``W_input`` (gates output_size, nin), ``W_recur`` (gates output_size, output_size) and ``b`` (gates output_size, 1),
    read in these shapes. ``init`` fills each gate's part of W_input, and of W_recur unless there is ``init_inner``; b
    begins with zeros.

    The first step begins with the last state of the minibatch before, or with zeros: under ``reset_cells``, after
    another batch size or number of steps, and after ``reset()``. Gradients stop there.
    """

    gates = 1  # how many vectors of output_size a step makes of its inputs
    passed: tuple[str, ...] = ("h",)  # what goes on to the next step
    kept: tuple[str, ...] = ()  # what else the way back needs of each step
    multiplied: tuple[str, ...] = ()  # which of these W_recur is multiplied with, besides h
    ways = 1  # 2: there and back

    def __init__(
        self,
        output_size: int,
        init: Any,
        init_inner: Any = None,
        activation: Transform | None = None,
        reset_cells: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(init, name)
        if isinstance(output_size, bool) or not isinstance(output_size, int) or output_size < 1:
            raise ValueError(f"{self.name}: output_size is a whole number from 1; got {output_size!r}")
        self.output_size = self.nout = output_size
        self.init_inner, self.reset_cells = init_inner, bool(reset_cells)
        self.functions: list[Transform] = []
        self.activation = self.function("activation", activation)
        self.split_inputs = False
        self.fresh = True  # whether there is no state to go on from
        self.given: dict[str, Any] = {}  # a state that is to be gone on from
        self.paths: list[Path] = []
        self.init_state: Any = None  # what fprop begins with unless told otherwise: another layer's final states
        self.final_errors: list[Sequence[Tensor]] = []  # what came back from each layer that began with this one's

    def function(self, what: str, transform: Any) -> Transform:
        """Return a transform. TypeError when it is none, ValueError when its derivative needs its input."""
        if not isinstance(transform, Transform):
            raise TypeError(f"{self.name}: {what} is a transform such as Tanh(); got {transform!r}")
        if not transform.from_output:
            raise ValueError(
                f"{self.name}: the derivative of {what} has to follow from its output, as that of Tanh(), Logistic() "
                f"and Rectlin() does; got {transform.classnm}"
            )
        self.functions.append(transform)
        return transform

    # --- one step, as a kind of layer has it ---

    def step(self, at: Step) -> Program:
        """Return what computes a step's states, in ``at.now``, out of ``at.z`` and of the states ``at.before``."""
        raise NotImplementedError(f"{self.classnm}: write step(at), the program of a step")

    def step_back(self, at: Step) -> Program:
        """Return what computes ``at.dz``, and makes of the path's ``errors`` those of the states before the step."""
        raise NotImplementedError(f"{self.classnm}: write step_back(at), the program of a step on the way back")

    def sources(self, path: Path) -> list[tuple[slice, Sequence[tuple[Tensor, Tensor]]]]:
        """Return, for rows of W_recur, the errors and what they were multiplied with, as pairs over the steps."""
        return [(slice(None), path.shifted())]

    # --- the four steps of a layer ---

    def configure(self, in_obj: Any) -> Recurrence:
        """Take the inputs' shape (nin, T). ValueError when they have no time steps."""
        super().configure(in_obj)
        for function in self.functions:
            function.be = self.be
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2:
            raise ValueError(
                f"{self.name}: {self.classnm} reads sequences: inputs (F, T), of F features and T time steps; the "
                f"inputs' shape is {self.in_shape}: give the data set a shape (F, T), or put Reshape((F, T)) before it"
            )
        self.nin, self.nsteps = self.in_shape
        if self.split_inputs and self.nin % 2:
            raise ValueError(f"{self.name}: split_inputs halves the inputs' features; there are {self.nin}")
        self.nread = self.nin // 2 if self.split_inputs else self.nin
        self.out_shape = (self.ways * self.nout, self.nsteps)
        self.weight_shape = (self.ways * (self.nread + self.nout + 1), self.gates * self.nout)
        return self

    def slots(self) -> list[Slot]:
        """Return W, which is filled gate by gate."""
        return [Slot("W", "dW", self.weight_shape, Filling(self))]

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Make the buffers; the states begin anew."""
        super().allocate(shared_outputs, accumulate_updates)
        for k, end in enumerate(("",) if self.ways == 1 else ("_f", "_b")):
            for name, part in zip(("W_input", "W_recur", "b"), self.parts(self.W, k), strict=True):
                setattr(self, f"{name}{end}", part)
            for name, part in zip(("dW_input", "dW_recur", "db"), self.parts(self.dW, k), strict=True):
                setattr(self, f"{name}{end}", part)
        self.paths = [Path(self, k) for k in range(self.ways)]
        self.fresh = True

    def parts(self, W: Tensor, k: int) -> list[Tensor]:
        """Return the W_input, W_recur and b of a way within W."""
        n, F = self.nout, self.nread
        starts = (k * F, self.ways * F + k * n, self.ways * (F + n) + k)
        return [W[i : i + m].reshape(self.gates * n, m) for i, m in zip(starts, (F, n, 1), strict=True)]

    def reset(self) -> None:
        """Begin the next minibatch with states of zeros."""
        self.fresh, self.given = True, {}

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0, init_state: Any = None) -> Any:
        """Compute the states of all steps, from ``init_state`` on: an h (nout, N), or a list of all states."""
        self.accept(inputs)
        if beta:
            raise ValueError(
                f"{self.name}: the states go on from step to step, so nothing else is added; got beta={beta}"
            )
        begin = self.begin(self.init_state if init_state is None else init_state)
        if self.given:
            self.take_up()
        self.inputs, self.tree = inputs, None if inference else self
        for path in self.paths:
            path.begin(begin, self.fresh or self.reset_cells)
            path.run(inputs)
        self.fresh = False
        return self.outputs

    def begin(self, init_state: Any) -> list[Tensor] | None:
        """Return the states to begin with; None for none."""
        if init_state is None:
            return None
        given = list(init_state) if isinstance(init_state, list | tuple) else [init_state]
        wanted = (self.nout, self.be.bsz)
        if self.ways == 2 or len(given) > len(self.passed) or any(getattr(x, "shape", None) != wanted for x in given):
            what = f"{' and '.join(self.passed)}, each {wanted}" if self.ways == 1 else "none: it reads both ways"
            raise ValueError(f"{self.name}: init_state is of {what}; got {describe(*given)}")
        return given

    def final_state(self) -> Tensor:
        """Return the h of the last step."""
        return self.final_states[0]

    @property
    def final_states(self) -> list[Tensor]:
        """The states of the last step; of a layer that reads both ways, those of the way there."""
        return self.paths[0].last

    @accumulates
    def bprop(
        self, error: Any, alpha: float = 1.0, beta: float = 0.0, final_errors: Sequence[Tensor] | None = None
    ) -> Any:
        """Go back through time: compute dW and ``deltas = alpha dE/dinputs + beta deltas``.

        ``final_errors``: errors of ``final_states``, which came another way, as to an encoder. Those of ``init_state``
        are in ``initial_errors`` then.
        """
        self.check_error(error)
        ends = self.final_errors if final_errors is None else [final_errors]
        for path in self.paths:
            path.run_back(error, [] if path.k else ends)
            path.learn(self.inputs)
            if self.deltas is not None:
                path.pass_on(self.deltas, alpha, beta if path.k == 0 or self.split_inputs else 1.0)
        return self.deltas

    @property
    def initial_errors(self) -> list[Tensor]:
        """The errors of the states that the first step began with."""
        return list(self.paths[0].errors.values())

    def way_through(self, x: Tensor, k: int) -> Tensor:
        """Return the rows of inputs or deltas that a way reads."""
        return x[k * self.nread : (k + 1) * self.nread] if self.split_inputs else x

    # --- what goes on from minibatch to minibatch ---

    @property
    def carried(self) -> dict[str, Any]:
        """What the next minibatch begins with, as arrays; nothing where it begins with zeros."""
        if self.reset_cells or (self.fresh and not self.given):
            return {}
        return self.given or {name: t.get() for name, t in zip(self.passed, self.final_states, strict=True)}

    def carry(self, arrays: dict[str, Any]) -> None:
        """Begin the next minibatch with what ``carried`` was; with nothing, with zeros."""
        self.check_carried(arrays)
        self.fresh, self.given = True, dict(arrays)

    def check_carried(self, arrays: dict[str, Any]) -> None:
        """Raise ValueError unless these are nothing, or the states that go on, with nout rows each."""
        rows = {name: getattr(array, "shape", (0,))[:1] for name, array in arrays.items()}
        if arrays and rows != dict.fromkeys(self.passed, (self.nout,)):
            raise ValueError(f"{self.name}: states are {', '.join(self.passed)}, of {self.nout} rows each; got {rows}")

    def take_up(self) -> None:
        """Bring what is carried to where the last minibatch would have left it. ValueError when it does not fit."""
        for name, t in zip(self.passed, self.final_states, strict=True):
            if (given := self.given[name]).shape != t.shape:
                raise ValueError(f"{self.name}: the {name} to go on with is {t.shape}; got {describe(given)}")
        for name, t in zip(self.passed, self.final_states, strict=True):
            t[:] = self.given[name]
        self.fresh, self.given = False, {}


class Filling:
    """What fills the W of a recurrent layer, gate by gate."""

    def __init__(self, layer: Recurrence) -> None:
        self.layer = layer

    def fill(self, W: Tensor) -> None:
        """Fill W_input and W_recur; b stays 0."""
        layer, n = self.layer, self.layer.nout
        inner = layer.init if layer.init_inner is None else layer.init_inner
        for k in range(layer.ways):
            for part, init in zip(layer.parts(W, k), (layer.init, inner), strict=False):
                for gate in range(layer.gates):
                    block = part[gate * n : (gate + 1) * n]
                    block.name = f"{layer.name}.W"
                    fill(block, init)


class Step(NamedTuple):
    """What there is in one step of a way through time: tensors (nout, N), by gate or by name."""

    path: Path
    z: list[Tensor]  # the gates: at first what the inputs say, then their values
    said: list[Tensor]  # what the states before say to each gate
    dz: list[Tensor]
    b: list[Tensor] | None  # None where what the inputs say holds it already
    before: dict[str, Tensor]
    now: dict[str, Tensor]
    outer: Any  # the error of h from outside; None on the way there

    def product(self, x: Tensor, first: int = 0, last: int | None = None) -> Callable[[], Any]:
        """Return what computes ``said = W_recur x`` of gates."""
        rows = self.path.rows(first, last)
        return partial(self.path.be.compound_dot, self.path.W_recur[rows], x, self.path.said[rows])

    @property
    def sums(self) -> list[Any]:
        """What all that speaks to each gate adds up to, once ``said`` is computed."""
        sums = [z + said for z, said in zip(self.z, self.said, strict=True)]
        return [x + b for x, b in zip(sums, self.b, strict=True)] if self.b else sums

    def product_back(
        self, target: Tensor, first: int = 0, last: int | None = None, beta: float = 0.0
    ) -> Callable[[], Any]:
        """Return what computes ``target = W_recur^T dz + beta target`` of gates."""
        rows = self.path.rows(first, last)
        return partial(self.path.be.compound_dot, self.path.W_recur[rows].T, self.path.dz[rows], target, beta=beta)

    def write(self, targets: Sequence[Tensor], trees: Sequence[Any]) -> Callable[[], Any]:
        """Return what works out trees together."""
        return self.path.be.prepare(list(targets), list(trees))


class Path:
    """One way through time, there (k = 0) or back (k = 1): its weights, its buffers, and the programs of its steps.

    What a step computes with is (rows, N) of a buffer (T rows, N), so that it lies together in memory and is walked
    through at once. Products over all steps take (rows, T N): what they need is laid out so as well, in ``wide``.
    """

    def __init__(self, layer: Recurrence, k: int) -> None:
        self.layer, self.k, self.be = layer, k, layer.be
        n, T, g = layer.nout, layer.nsteps, layer.gates
        self.W_input, self.W_recur, self.b = layer.parts(layer.W, k)
        self.dW_input, self.dW_recur, self.db = layer.parts(layer.dW, k)

        def buffer(name: str, shape: Any) -> Any:
            return layer.buffer(f"{name}{k or ''}", shape)

        self.z, self.said, self.dz = buffer("z", T * g * n), buffer("said", g * n), buffer("dz", g * n)
        self.now = {name: buffer(name, T * n) for name in dict.fromkeys(("h", *layer.passed, *layer.kept))}
        self.wide = {"h": layer.outputs[k * n : (k + 1) * n], "dz": buffer("dz, wide", (g * n, T))}
        self.wide |= {name: buffer(f"{name}, wide", (n, T)) for name in layer.multiplied}
        self.first = {name: buffer(f"{name}, first", n) for name in layer.passed}
        self.errors = {name: buffer(f"d{name}", n) for name in layer.passed}
        self.spare = buffer("spare", n)
        self.last = [self.at(self.now[name], -1) for name in layer.passed]
        self.turned = self.W_input.T
        self.norm: Norm | None = None
        self.there: tuple[Any, Program] = (None, [])
        self.back: tuple[Any, Program] = (None, [])
        self.learned: tuple[Any, Program] = (None, [])

    def rows(self, first: int, last: int | None) -> slice:
        """Return the rows of some gates."""
        n = self.layer.nout
        return slice(first * n, None if last is None else last * n)

    def place(self, i: int) -> int:
        """Return the time step of the i-th step on this way; -1 is the last."""
        i = i % self.layer.nsteps
        return self.layer.nsteps - 1 - i if self.k else i

    def at(self, x: Tensor, i: int) -> Tensor:
        """Return what x (T rows, N) has of the i-th step on this way."""
        rows, t = x.shape[0] // self.layer.nsteps, self.place(i)
        return x[t * rows : (t + 1) * rows]

    def columns(self, x: Tensor, i: int) -> Tensor:
        """Return what x (rows, T N) has of the i-th step on this way."""
        N, t = self.be.bsz, self.place(i)
        return x[:, t * N : (t + 1) * N]

    def step(self, i: int, error: Tensor | None = None, with_bias: bool = True) -> Step:
        """Return the i-th step on this way."""
        n = self.layer.nout

        def gates(x: Tensor) -> list[Tensor]:
            return [x[k * n : (k + 1) * n] for k in range(self.layer.gates)]

        before = {name: self.at(self.now[name], i - 1) if i else first for name, first in self.first.items()}
        now = {name: self.at(x, i) for name, x in self.now.items()}
        outer = None if error is None else self.columns(error[self.k * n : (self.k + 1) * n], i)
        z, said, dz = map(gates, (self.at(self.z, i), self.said, self.dz))
        return Step(self, z, said, dz, gates(self.b) if with_bias else None, before, now, outer)

    def program(self, words: Tensor | None) -> Program:
        """Return what goes through time; where there are words, each step looks its own up."""
        program: Program = []
        for i in range(self.layer.nsteps):
            if words is not None:
                looked_up = self.be.take(self.table, self.columns(words, i), axis=1)
                program.append(self.be.prepare([self.at(self.z, i)], [looked_up]))
            program += self.layer.step(self.step(i, with_bias=words is None))
        for name in ("h", *self.layer.multiplied):
            target = self.wide[name].reshape(-1, self.layer.nsteps, self.be.bsz)
            program.append(self.be.prepare([target], [self.by_steps(self.now[name]).permute((1, 0, 2))]))
        return program

    def program_back(self, error: Tensor) -> Program:
        """Return what goes back, last step first."""
        program: Program = []
        for i in reversed(range(self.layer.nsteps)):
            program += self.layer.step_back(self.step(i, error))
            program.append(self.be.prepare([self.columns(self.wide["dz"], i)], [self.dz]))
        return program

    def by_steps(self, x: Tensor) -> Tensor:
        """Return x (T rows, N) as (T, rows, N)."""
        return x.reshape(self.layer.nsteps, -1, self.be.bsz)

    def steps_of(self, x: Tensor) -> Tensor:
        """Return x (rows, T N) as (T, rows, N); a copy of it where it has gaps."""
        whole = x if x.is_contiguous else self.be.array(x)
        return whole.reshape(-1, self.layer.nsteps, self.be.bsz).permute((1, 0, 2))

    def begin(self, given: list[Tensor] | None, fresh: bool) -> None:
        """Set the states that the first step begins with."""
        for i, (target, last) in enumerate(zip(self.first.values(), self.last, strict=True)):
            if given is not None:
                target[:] = given[i] if i < len(given) else 0
            else:
                target[:] = 0 if fresh or self.k else last

    def run(self, inputs: Tensor) -> None:
        """Go through time."""
        x = self.layer.way_through(inputs, self.k)
        words = self.words_of(x)
        if not self.there[1] or self.there[0] is not words:
            self.there = words, self.program(words)
        if words is None:
            self.be.batched_dot(self.W_input, self.steps_of(x), self.by_steps(self.z))
        else:
            self.table[:] = self.W_input + self.b
        if self.norm is not None:
            self.norm.run()
        for do in self.there[1]:
            do()

    def words_of(self, x: Tensor) -> Tensor | None:
        """Return which rows of x have the ones, where that is known and a look-up is sooner than a product."""
        return getattr(x, "words", None) if x.shape[0] >= LOOKED_UP and self.norm is None else None

    @cached_property
    def table(self) -> Tensor:
        """What each word says to all gates, in its column."""
        return self.be.zeros(self.W_input.shape, name=f"{self.layer.name}.table")

    def run_back(self, error: Tensor, ends: Sequence[Sequence[Tensor]]) -> None:
        """Go back, last step first; ``ends``: lists of errors of the final states, which add up."""
        if self.back[0] is not error:
            self.back = error, self.program_back(error)
        for i, target in enumerate(self.errors.values()):
            found = [errors[i] for errors in ends if i < len(errors)]
            target[:] = sum(found[1:], found[0]) if found else 0
        for do in self.back[1]:
            do()

    def learn(self, inputs: Tensor) -> None:
        """Compute the gradients, each over all steps at once."""
        if self.learned[0] is not inputs:
            self.learned = inputs, self.lessons(self.layer.way_through(inputs, self.k))
        for do in self.learned[1]:
            do()

    def lessons(self, x: Tensor) -> Program:
        """Return what computes the gradients."""
        be, dz, words = self.be, self.wide["dz"], self.words_of(x)
        program: Program = []
        for rows, pairs in self.layer.sources(self):
            for i, (errors, source) in enumerate(pairs):
                target = self.dW_recur[rows]
                program.append(partial(be.compound_dot, errors[rows], source.T, target, beta=float(i > 0)))
        if words is not None:  # one in each column, so that what all words learn together is what b learns
            learned = be.build("scatter", dz, words, axis=1, size=x.shape[0])
            program.append(be.prepare([self.dW_input], [learned]))
            return [*program, be.prepare([self.db], [be.sum(self.dW_input, axis=1)])]
        program.append(be.prepare([self.db], [be.sum(dz, axis=1)]))
        if self.norm is not None:
            program.append(self.norm.run_back)
        return [*program, partial(be.compound_dot, dz, x.T, self.dW_input)]

    def shifted(self) -> list[tuple[Tensor, Tensor]]:
        """Return errors with the h of the step before them: of the first step, and of all others together."""
        N, h, dz = self.be.bsz, self.wide["h"], self.wide["dz"]
        pairs = [(self.columns(dz, 0), self.first["h"])]
        if self.layer.nsteps > 1:
            pairs.append((dz[:, :-N], h[:, N:]) if self.k else (dz[:, N:], h[:, :-N]))
        return pairs

    def pass_on(self, deltas: Tensor, alpha: float, beta: float) -> None:
        """Compute the errors of the inputs."""
        target = self.layer.way_through(deltas, self.k)
        self.be.compound_dot(self.turned, self.wide["dz"], target, alpha=alpha, beta=beta)


# --- kinds -----------------------------------------------------------------------------------------------------------


class Recurrent(Recurrence):
    """``h_t = f(W_input x_t + W_recur h_(t-1) + b)``, with f = ``activation``.

    >>> import neonlite as nl
    >>> from neonlite.initializers import Constant
    >>> from neonlite.layers import Recurrent
    >>> from neonlite.transforms import Identity
    >>> be = nl.gen_backend("cpu", batch_size=1)
    >>> layer = Recurrent(1, Constant(1), activation=Identity()).configure((1, 3))
    >>> layer.allocate()
    >>> layer.fprop(be.array([[1.0, 2.0, 3.0]])).get()  # sums, step by step
    array([[1., 3., 6.]], dtype=float32)

    Source: Elman 1990.
    """

    def step(self, at: Step) -> Program:
        h = self.activation(at.sums[0])
        return [at.product(at.before["h"]), at.write([at.now["h"]], [h])]

    def step_back(self, at: Step) -> Program:
        dh = at.path.errors["h"]
        dz = self.activation.backward(dh + at.outer, at.now["h"])
        return [at.write([at.dz[0]], [dz]), at.product_back(dh)]


class Gated(Recurrence):
    """The base of layers whose gates have an activation of their own, such as Logistic()."""

    def __init__(
        self,
        output_size: int,
        init: Any,
        init_inner: Any = None,
        activation: Transform | None = None,
        gate_activation: Transform | None = None,
        reset_cells: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(output_size, init, init_inner, activation, reset_cells, name)
        self.gate_activation = self.function("gate_activation", gate_activation)


class LSTM(Gated):
    """``[i f o] = s(z)``, ``g = a(z)``, ``c_t = f c_(t-1) + i g``, ``h_t = o a(c_t)``.

    z = W_input x_t + W_recur h_(t-1) + b; a = ``activation``, s = ``gate_activation``; the rows of the weights are
    those of i, f, o and g, in this order.

    Source: Hochreiter and Schmidhuber 1997; the forget gate f: Gers, Schmidhuber and Cummins 2000.
    """

    gates, passed, kept = 4, ("h", "c"), ("a",)

    def step(self, at: Step) -> Program:
        *sums, last = at.sums
        i, f, o = map(self.gate_activation, sums)
        g = self.activation(last)
        c = f * at.before["c"] + i * g
        a = self.activation(c)
        targets = [*at.z, at.now["c"], at.now["a"], at.now["h"]]
        return [at.product(at.before["h"]), at.write(targets, [i, f, o, g, c, a, o * a])]

    def step_back(self, at: Step) -> Program:
        act, gate = self.activation.backward, self.gate_activation.backward
        (i, f, o, g), a = at.z, at.now["a"]
        errors = at.path.errors
        dh = errors["h"] + at.outer
        dc = errors["c"] + act(dh * o, a)
        values = [gate(dc * g, i), gate(dc * at.before["c"], f), gate(dh * a, o), act(dc * i, g), dc * f]
        return [at.write([*at.dz, errors["c"]], values), at.product_back(errors["h"])]


class GRU(Gated):
    """``[r u] = s(z)``, ``k = a(W_input x_t + W_recur (r h_(t-1)) + b)``, ``h_t = (1 - u) h_(t-1) + u k``.

    z = W_input x_t + W_recur h_(t-1) + b; a = ``activation``, s = ``gate_activation``; the rows of the weights are
    those of r, u and k, in this order.

    Source: Cho et al. 2014, equations 5 to 8, with u for 1 - z.
    """

    gates, kept, multiplied = 3, ("rh",), ("rh",)

    def step(self, at: Step) -> Program:
        h, rh = at.before["h"], at.now["rh"]
        *sums, last = at.sums
        r, u = map(self.gate_activation, sums)
        k = self.activation(last)
        return [
            at.product(h, 0, 2),
            at.write([at.z[0], at.z[1], rh], [r, u, r * h]),
            at.product(rh, 2, 3),
            at.write([at.z[2], at.now["h"]], [k, h + at.z[1] * (k - h)]),
        ]

    def step_back(self, at: Step) -> Program:
        act, gate = self.activation.backward, self.gate_activation.backward
        (r, u, k), h, (error, drh) = at.z, at.before["h"], (at.path.errors["h"], at.path.spare)
        dh = error + at.outer
        return [
            at.write([at.dz[1], at.dz[2], error], [gate(dh * (k - h), u), act(dh * u, k), dh * (1 - u)]),
            at.product_back(drh, 2, 3),
            at.write([at.dz[0], error], [gate(drh * h, r), error + drh * r]),
            at.product_back(error, 0, 2, beta=1.0),
        ]

    def sources(self, path: Path) -> list[tuple[slice, Sequence[tuple[Tensor, Tensor]]]]:
        return [(path.rows(0, 2), path.shifted()), (path.rows(2, 3), [(path.wide["dz"], path.wide["rh"])])]


# --- both ways -------------------------------------------------------------------------------------------------------


class BiRNN(Recurrent):
    """Two Recurrent layers over one sequence, one there and one back: outputs (2 output_size, T), those there first.

    The rows of W are W_input there and back, W_recur there and back, and both b: attributes ``W_input_f``,
    ``W_input_b`` and so on. With ``split_inputs`` the way there reads the first half of the inputs' rows, and the way
    back the second, as of two ways below. The way back always begins with zeros.

    Source: Schuster and Paliwal 1997.
    """

    ways = 2

    def __init__(
        self,
        output_size: int,
        init: Any,
        init_inner: Any = None,
        activation: Transform | None = None,
        reset_cells: bool = False,
        split_inputs: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
    ) -> None:
        super().__init__(output_size, init, init_inner, activation, reset_cells, name)
        self.split_inputs, self.parallelism = bool(split_inputs), parallelism


class BiLSTM(LSTM):
    """Two LSTM layers over one sequence, one there and one back, with the rows of ``BiRNN``.

    Source: Graves and Schmidhuber 2005.
    """

    ways = 2

    def __init__(
        self,
        output_size: int,
        init: Any,
        init_inner: Any = None,
        activation: Transform | None = None,
        gate_activation: Transform | None = None,
        reset_cells: bool = False,
        split_inputs: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(output_size, init, init_inner, activation, gate_activation, reset_cells, name)
        self.split_inputs = bool(split_inputs)


class BiBNRNN(BiRNN):
    """A BiRNN with ``(W_input x - mean) / sqrt(var + eps)`` for ``W_input x``, over all steps and the minibatch.

    Running means stand in at inference, ``gmean = rho gmean + (1 - rho) mean``, and gvar alike; both begin with 0.

    Source: Laurent et al. 2016, Batch normalized recurrent neural networks, equation 10; Amodei et al. 2016, 3.2.
    """

    gmean, gvar = Learned(), Learned()

    def __init__(
        self,
        output_size: int,
        init: Any,
        init_inner: Any = None,
        activation: Transform | None = None,
        reset_cells: bool = False,
        split_inputs: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(output_size, init, init_inner, activation, reset_cells, split_inputs, name)
        self.rho, self.eps = 0.9, 1e-3

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Make the buffers; the running means begin with 0."""
        super().allocate(shared_outputs, accumulate_updates)
        shape = self.ways * self.nout, 1
        if self.gmean is None:
            self.gmean = self.be.zeros(shape, name=f"{self.name}.gmean")
            self.gvar = self.be.zeros(shape, name=f"{self.name}.gvar")
        n = self.nout
        for path in self.paths:
            path.norm = Norm(
                path, self.rho, self.eps, *(x[path.k * n : (path.k + 1) * n] for x in (self.gmean, self.gvar))
            )

    @property
    def stored(self) -> dict[str, Any]:
        """What a file keeps of this layer: weights, and running means."""
        return {**super().stored, "gmean": self.gmean, "gvar": self.gvar}


class Norm:
    """What a BiBNRNN makes of a way's inputs: rows with the mean 0 and the variance 1."""

    def __init__(self, path: Path, rho: float, eps: float, gmean: Tensor, gvar: Tensor) -> None:
        layer, k, n = path.layer, path.k or "", path.layer.nout
        self.path, self.rho, self.eps = path, rho, eps
        self.gmean, self.gvar = gmean.reshape(1, n, 1), gvar.reshape(1, n, 1)
        self.normed = path.by_steps(layer.buffer(f"normed{k}", layer.nsteps * n))
        self.inverse = layer.be.zeros((1, n, 1), name=f"{layer.name}.inverse{k}")

    def run(self) -> None:
        """Norm what the inputs say, in place."""
        be, z = self.path.be, self.path.by_steps(self.path.z)
        if self.path.layer.tree is None:
            z[:] = (z - self.gmean) / be.sqrt(self.gvar + self.eps)
            return
        mean, var = be.mean(z, axis=(0, 2)), be.var(z, axis=(0, 2))
        running = [self.rho * old + (1 - self.rho) * new for old, new in ((self.gmean, mean), (self.gvar, var))]
        inverse = 1 / be.sqrt(var + self.eps)
        be.assign([self.gmean, self.gvar, self.inverse, self.normed], [*running, inverse, (z - mean) * inverse])
        z[:] = self.normed

    def run_back(self) -> None:
        """Make of the errors of what was normed those of what the inputs said, in place."""
        be, dz, y = self.path.be, self.path.steps_of(self.path.wide["dz"]), self.normed
        dz[:] = self.inverse * (dz - be.mean(dz, axis=(0, 2)) - y * be.mean(dz * y, axis=(0, 2)))
