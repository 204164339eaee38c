"""How does a recurrent layer go through time?  Step by step; or at once, where the backend has a primitive for it.

Data is (F, T N): column t N + n is time step t of row n of the minibatch. One product takes the inputs of all steps;
then each step adds what it makes of the state before it. On the way back, too, the gradients of the weights are
products over all steps at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from neonlite.backend import Tensor

Program = list[Callable[[], Any]]
LOOKED_UP = 64  # rows of one-hot inputs from which a look-up is sooner than a product


def way_through_time(layer: Any, k: int) -> Path:
    """Return a way of a recurrent layer, there (k = 0) or back (k = 1): at once if the backend knows how."""
    way = known(layer, k)
    return AtOnce(layer, k, way) if way else StepByStep(layer, k)


def known(layer: Any, k: int) -> Any:
    """Return what the backend knows a way of a layer by that it goes at once; None when it has none."""
    sizes = layer.known_as, layer.nsteps, layer.be.bsz, layer.nread, layer.nout, k == 1
    ask = getattr(layer.be.primitives, "recurrent", None)
    return ask(sizes, layer.be.default) if ask and layer.known_as else None


class Path(ABC):
    """One way through time: its weights, the states at both ends, and their errors."""

    first: dict[str, Tensor]  # the states that the first step begins with
    last: list[Tensor]  # those of the last step
    errors: dict[str, Tensor]  # on the way back at last those of the first states

    def __init__(self, layer: Any, k: int) -> None:
        self.layer, self.k, self.be = layer, k, layer.be
        self.W_input, self.W_recur, self.b = layer.parts(layer.W, k)
        self.dW_input, self.dW_recur, self.db = layer.parts(layer.dW, k)

    def buffer(self, name: str, shape: Any) -> Tensor:
        """Return a buffer of the layer for this way."""
        made: Tensor = self.layer.buffer(f"{name}{self.k or ''}", shape)
        return made

    @abstractmethod
    def run(self, inputs: Tensor) -> None:
        """Go through time."""

    @abstractmethod
    def run_back(self, error: Tensor, ends: Sequence[Sequence[Tensor]], alpha: float, beta: float) -> None:
        """Go back: compute the gradients, and the layer's deltas if it has any.

        ``ends``: lists of errors of the final states, which add up.
        """

    def begin(self, given: list[Tensor] | None, fresh: bool) -> None:
        """Set the states that the first step begins with."""
        for i, (target, last) in enumerate(zip(self.first.values(), self.last, strict=True)):
            if given is not None:
                target[:] = given[i] if i < len(given) else 0
            else:
                target[:] = 0 if fresh or self.k else last

    def end(self, targets: Sequence[Tensor], ends: Sequence[Sequence[Tensor]]) -> None:
        """Add up errors of the final states."""
        for i, target in enumerate(targets):
            found = [errors[i] for errors in ends if i < len(errors)]
            target[:] = sum(found[1:], found[0]) if found else 0


class AtOnce(Path):
    """A way that is a primitive of the backend's: ``known`` is what it knows it by. A state (nout, N) lies by rows."""

    def __init__(self, layer: Any, k: int, known: Any) -> None:
        super().__init__(layer, k)
        self.known = known
        self.first, self.errors = self.states("{}, first"), self.states("d{}")
        self.last, self.ends = (list(self.states(name).values()) for name in ("{}, last", "d{}, last"))
        self.kept: Any = None  # from the way there to the way back
        self.read: Tensor | None = None  # the inputs, where they are no words

    def states(self, name: str) -> dict[str, Tensor]:
        """Return a buffer for each state."""
        n, N = self.layer.nout, self.be.bsz
        return {x: self.buffer(name.format(x), n).reshape(N, n).T for x in self.layer.passed}

    def run(self, inputs: Tensor) -> None:
        """Go through time."""
        n, layer = self.layer.nout, self.layer
        learns = layer.tree is not None
        if learns:
            room = self.be.primitives.recurrent_room(self.known)
            if self.kept is None or self.kept.size < room:
                self.kept = self.buffer("kept", -(-room // self.be.bsz))
        x, y = layer.way_through(inputs, self.k), layer.outputs[self.k * n : (self.k + 1) * n]
        words = getattr(x, "words", None)
        self.read = x if words is None else None
        arrays = [None if t is None else t._array for t in (self.kept if learns else None, x, y, words)]
        self.be.primitives.recurrent_fprop(self.known, *self.arrays, *arrays)

    @property
    def arrays(self) -> list[list[Any]]:
        """The weights, and the states of both ends."""
        tensors = (self.W_input, self.W_recur, self.b), self.first.values(), self.last
        return [[x._array for x in group] for group in tensors]

    def run_back(self, error: Tensor, ends: Sequence[Sequence[Tensor]], alpha: float, beta: float) -> None:
        """Go back."""
        layer, n, deltas = self.layer, self.layer.nout, self.layer.deltas
        self.end(self.ends, ends)
        e = error[self.k * n : (self.k + 1) * n]
        gradients = self.dW_input, self.dW_recur, self.db
        groups = [[x._array for x in group] for group in (self.ends, self.errors.values(), gradients)]
        target = None if deltas is None else layer.way_through(deltas, self.k)._array
        y = layer.outputs[self.k * n : (self.k + 1) * n]
        arrays = [None if t is None else t._array for t in (self.kept, self.read, y, e)]
        self.be.primitives.recurrent_bprop(self.known, *self.arrays, *arrays, *groups, target, alpha, beta)


class StepByStep(Path):
    """A way by programs of steps, as the layer's kind has them.

    What a step computes with is (rows, N) of a buffer (T rows, N), so that it lies together in memory and is walked
    through at once. Products over all steps take (rows, T N): what they need is laid out so as well, in ``wide``.
    """

    def __init__(self, layer: Any, k: int) -> None:
        super().__init__(layer, k)
        n, T, g, buffer = layer.nout, layer.nsteps, layer.gates, self.buffer
        self.z, self.dz = buffer("z", T * g * n), buffer("dz", g * n)
        self.now = {name: buffer(name, T * n) for name in dict.fromkeys(("h", *layer.passed, *layer.kept))}
        self.wide = {"h": layer.outputs[k * n : (k + 1) * n], "dz": buffer("dz, wide", (g * n, T))}
        self.wide |= {name: buffer(f"{name}, wide", (n, T)) for name in layer.multiplied}
        self.first = {name: buffer(f"{name}, first", n) for name in layer.passed}
        self.errors = {name: buffer(f"d{name}", n) for name in layer.passed}
        self.spare = buffer("spare", n)
        self.last = [self.at(self.now[name], -1) for name in layer.passed]
        self.turned = self.W_input.T
        self.norm: Any = None  # what norms what the inputs say: run() and run_back()
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
            return [x[self.rows(k, k + 1)] for k in range(self.layer.gates)]

        before = {name: self.at(self.now[name], i - 1) if i else first for name, first in self.first.items()}
        now = {name: self.at(x, i) for name, x in self.now.items()}
        outer = None if error is None else self.columns(error[self.k * n : (self.k + 1) * n], i)
        whole, b = self.at(self.z, i), gates(self.b) if with_bias else None
        wide = gates(self.columns(self.wide["dz"], i))
        return Step(self, whole, gates(whole), gates(self.dz), wide, b, before, now, outer)

    def program(self, words: Tensor | None) -> Program:
        """Return what goes through time; where there are words, each step looks its own up."""
        program: Program = []
        for i in range(self.layer.nsteps):
            if words is not None:
                looked_up = self.be.take(self.table, self.columns(words, i), axis=1)
                program.append(self.be.prepare([self.at(self.z, i)], [looked_up]))
            program += self.layer.step(self.step(i, with_bias=words is None))
        names = "h", *self.layer.multiplied
        targets = [self.wide[name].reshape(-1, self.layer.nsteps, self.be.bsz) for name in names]
        values = [self.by_steps(self.now[name]).permute((1, 0, 2)) for name in names]
        return [*program, self.be.prepare(targets, values)]

    def program_back(self, error: Tensor) -> Program:
        """Return what goes back, last step first."""
        program: Program = []
        for i in reversed(range(self.layer.nsteps)):
            program += self.layer.step_back(self.step(i, error))
        return program

    def by_steps(self, x: Tensor) -> Tensor:
        """Return x (T rows, N) as (T, rows, N)."""
        return x.reshape(self.layer.nsteps, -1, self.be.bsz)

    def steps_of(self, x: Tensor) -> Tensor:
        """Return x (rows, T N) as (T, rows, N); a copy of it where it has gaps."""
        whole: Tensor = x if x.is_contiguous else self.be.array(x)
        return whole.reshape(-1, self.layer.nsteps, self.be.bsz).permute((1, 0, 2))

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
        made: Tensor = self.be.zeros(self.W_input.shape, name=f"{self.layer.name}.table")
        return made

    def run_back(self, error: Tensor, ends: Sequence[Sequence[Tensor]], alpha: float, beta: float) -> None:
        """Go back, last step first."""
        if self.back[0] is not error:
            self.back = error, self.program_back(error)
        self.end(list(self.errors.values()), ends)
        for do in self.back[1]:
            do()
        self.learn(self.layer.inputs)
        if self.layer.deltas is not None:
            target = self.layer.way_through(self.layer.deltas, self.k)
            self.be.compound_dot(self.turned, self.wide["dz"], target, alpha=alpha, beta=beta)

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


class Step(NamedTuple):
    """What there is in one step of a way through time: tensors (nout, N), by gate or by name."""

    path: StepByStep
    gates: Tensor  # those of z, as one
    z: list[Tensor]  # the gates: at first what the inputs say, then what the states before say too, then their values
    dz: list[Tensor]
    wide: list[Tensor]  # where dz is kept, beside that of the other steps
    b: list[Tensor] | None  # None where what the inputs say holds it already
    before: dict[str, Tensor]
    now: dict[str, Tensor]
    outer: Any  # the error of h from outside; None on the way there

    def product(self, x: Tensor, first: int = 0, last: int | None = None) -> Callable[[], Any]:
        """Return what computes ``z += W_recur x`` of gates."""
        rows = self.path.rows(first, last)
        return partial(self.path.be.compound_dot, self.path.W_recur[rows], x, self.gates[rows], beta=1.0)

    @property
    def sums(self) -> list[Any]:
        """What all that speaks to each gate adds up to, once ``product`` is computed."""
        return [z + b for z, b in zip(self.z, self.b, strict=True)] if self.b else self.z

    def product_back(
        self, target: Tensor, first: int = 0, last: int | None = None, beta: float = 0.0
    ) -> Callable[[], Any]:
        """Return what computes ``target = W_recur^T dz + beta target`` of gates."""
        rows = self.path.rows(first, last)
        return partial(self.path.be.compound_dot, self.path.W_recur[rows].T, self.path.dz[rows], target, beta=beta)

    def write(self, targets: Sequence[Tensor], trees: Sequence[Any]) -> Callable[[], Any]:
        """Return what works out trees together, and keeps errors of gates."""
        pairs = list(zip(targets, trees, strict=True))
        pairs += [(wide, x) for dz, wide in zip(self.dz, self.wide, strict=True) for t, x in pairs if t is dz]
        prepared: Callable[[], Any] = self.path.be.prepare(*zip(*pairs, strict=True))
        return prepared
