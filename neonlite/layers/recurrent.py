"""Which layers read a sequence step by step?  Those that keep a state on their way through time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neonlite.backend import Tensor
from neonlite.layers.buffers import turned
from neonlite.layers.layer import accumulates
from neonlite.layers.parameter import Learned, ParameterLayer, Slot, fill
from neonlite.layers.path import Program, Step, StepByStep, known, way_through_time
from neonlite.optree import describe
from neonlite.transforms import Logistic, Tanh, Transform


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
    known_as = ""  # by what name a backend may know all steps at once

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
        self.paths: list[Any] = []  # of Path
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

    def sources(self, path: StepByStep) -> list[tuple[slice, Sequence[tuple[Tensor, Tensor]]]]:
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
        if self.paths:  # else it may have been given what a file keeps
            self.given = {}
        self.paths = [way_through_time(self, k) for k in range(self.ways)]
        reader = getattr(self.next_layer, "reads_columns", False)
        self.by_columns = reader and self.reads_columns and shared_outputs is None
        if self.by_columns:
            self.outputs = turned(self.outputs)
        self.fresh = True

    @property
    def reads_columns(self) -> bool:  # type: ignore[override]
        """Whether it goes through time at once: what goes there goes row by row of (T N, F)."""
        return self.ways == 1 and known(self, 0) is not None

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
        if "int" in inputs.info.dtype:
            raise ValueError(
                f"{self.name}: {self.classnm} reads vectors; got {describe(inputs)} of {inputs.info.dtype}: words go "
                "through a LookupTable first, or come as one-hot columns, onehot_input=True"
            )
        if self.outputs.shape[1] != inputs.shape[1]:
            raise ValueError(
                f"{self.name}: its buffers are for a batch size of {self.outputs.shape[1] // self.nsteps}; be.bsz is "
                f"{self.be.bsz}: set_batch_size({self.be.bsz}) makes it ready"
            )
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
        if not self.paths:
            raise RuntimeError(f"{self.name}: it has no buffers yet: call allocate() before")
        last: list[Tensor] = self.paths[0].last
        return last

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
            path.run_back(error, [] if path.k else ends, alpha, beta if path.k == 0 or self.split_inputs else 1.0)
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

    @property
    def known_as(self) -> str:  # type: ignore[override]
        """The kind's name where the activations are as textbooks have them, and no step was written anew."""
        usual = type(self.activation) is Tanh and type(self.gate_activation) is Logistic
        return NAMES.get(type(self), "") if usual else ""


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

    def sources(self, path: StepByStep) -> list[tuple[slice, Sequence[tuple[Tensor, Tensor]]]]:
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

    def __init__(self, path: StepByStep, rho: float, eps: float, gmean: Tensor, gvar: Tensor) -> None:
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


NAMES: dict[type, str] = {LSTM: "lstm", BiLSTM: "lstm", GRU: "gru"}
