"""How does each step of a sequence look at the others?  By attention: it takes a mean of what they say, by likeness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from neonlite.backend import Tensor
from neonlite.backend.numbers import number
from neonlite.initializers import Constant
from neonlite.layers.activation import Dropout
from neonlite.layers.branch import SkipNode
from neonlite.layers.compound import Affine
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.layer import Layer, accumulates
from neonlite.layers.merge import MergeSum
from neonlite.layers.norm import LayerNorm
from neonlite.layers.parameter import Learned, ParameterLayer, Slot
from neonlite.optree import Operand, describe
from neonlite.transforms import GELU

PERIOD = 10000  # the longest wave of a position is 2 pi times so many steps


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Return ``softmax(Q K^T / sqrt(d)) V``: for each query a mean of the values, by its likeness to their keys.

    **Shapes**: q (..., T, d), k (..., S, d), v (..., S, e) -> (..., T, e). ``mask``, of a shape that broadcasts to
    (..., T, S), has 1 where a query may look at a key, else 0. A query that may look at none gets zeros.

    The result is an op-tree, which Autodiff differentiates. Source: Vaswani et al. 2017, equation 1.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> q, k, v = be.array([[1.0, 0.0]]), be.array([[99.0, 0.0], [0.0, 9.0]]), be.array([[1.0, 2.0], [3.0, 4.0]])
    >>> attention(q, k, v).asnumpyarray()
    array([[1., 2.]], dtype=float32)
    >>> attention(q, k, v, mask=be.array([[0.0, 1.0]])).asnumpyarray()
    array([[3., 4.]], dtype=float32)
    """
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, Operand):
            raise TypeError(f"attention: {name} is a tensor or an op-tree; got {describe(x)}")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-2] != k.shape[:-2]:
        raise ValueError(
            f"attention takes q (..., T, d), k (..., S, d) and v (..., S, e); got q {describe(q)}, k {describe(k)}, "
            f"v {describe(v)}"
        )
    return shares(q @ k.T * (1 / math.sqrt(q.shape[-1])), mask, -1) @ v


def shares(scores: Any, mask: Any, axis: int) -> Any:
    """Return the softmax of scores along an axis, over those that a mask lets through; zeros where there are none."""
    be = scores.backend
    if mask is None:
        return be.softmax(scores, axis)
    scores = be.where(mask, scores, -math.inf)
    largest = be.stop_gradient(be.max(scores, axis=axis))
    e = be.exp(scores - be.where(be.finite(largest), largest, 0))
    total = be.sum(e, axis=axis)
    return e / be.where(total == 0, 1, total)


class MultiHeadAttention(ParameterLayer):
    """Each step takes from all steps of its sequence what they have for it, by several attentions side by side.

    ``W_out concat_h attention(Q_h, K_h, V_h) + b_out``, where ``[Q; K; V] = W_qkv x + b_qkv``, and the head h has rows
    ``h F / heads`` and following of each. ``causal``: a step looks at itself and at those before it. ``keep``: in
    training, the fraction of weights of the attention that stays, drawn anew each time; those are divided by keep.
    ``bias``: what fills b_qkv and b_out; None for none. ``slopes``, a number for each head: how much is taken off its
    scores for each step that a step is away, so that a head with a large one looks nearby; ``lags``: away from how many
    steps back, for each head, 0 unless given.

    **Shapes**: (F, T) -> (F, T). W_qkv (3 F, F), W_out (F, F), b_qkv (3 F, 1), b_out (F, 1). After fprop ``weights``,
    (heads, N, T, T), has at [h, n, s, t] how much of step s step t takes.

    ``mask``, a tensor (1, T N) that you set, as for GeneralizedCostMask, has 0 at steps that are only there to fill up
    a sequence: nobody looks at them. What they compute themselves is for such a cost to leave out.

    Source: Vaswani et al. 2017, section 3.2.2; ``keep``: Srivastava et al. 2014; ``slopes``: Press et al. 2022, ALiBi;
    ``lags``: You, Sun and Iyyer 2020, Hard-coded Gaussian attention.

    >>> import neonlite as nl
    >>> from neonlite.initializers import GlorotUniform
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> MultiHeadAttention(4, GlorotUniform(), causal=True).configure((8, 5)).out_shape
    (8, 5)
    """

    reads_outputs = False
    W_qkv, W_out, b_qkv, b_out = Learned(), Learned(), Learned(), Learned()
    dW_qkv, dW_out, db_qkv, db_out = Learned(), Learned(), Learned(), Learned()

    def __init__(
        self,
        heads: int,
        init: Any,
        causal: bool = False,
        keep: float = 1.0,
        bias: Any = None,
        name: str | None = None,
        slopes: Sequence[float] | None = None,
        lags: Sequence[int] | None = None,
    ) -> None:
        super().__init__(init, name)
        if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
            raise ValueError(f"{self.name}: heads is a whole number from 1; got {heads!r}")
        self.keep = number(f"{self.name}: keep", keep)
        if not 0 < self.keep <= 1:
            raise ValueError(f"{self.name}: keep, the fraction that stays, is above 0 and at most 1; got {keep!r}")
        self.heads, self.causal, self.bias = heads, causal, bias
        self.slopes = None if slopes is None else [number(f"{self.name}: a slope", x) for x in slopes]
        self.lags = None if lags is None else [number(f"{self.name}: a lag", x) for x in lags]
        for what, given in {"slopes": self.slopes, "lags": self.lags}.items():
            if given is not None and len(given) != heads:
                raise ValueError(f"{self.name}: {what} are {heads} numbers, one for each head; got {len(given)}")
        if lags is not None and slopes is None:
            raise ValueError(
                f"{self.name}: lags say where scores are highest, slopes how much lower elsewhere: give both"
            )
        self.nin = 0  # features, which its slots are asked for before there are inputs
        self.mask: Any = None
        self.earlier: Any = None  # (T, T): where a step is no later than another
        self.far: Any = None  # (heads, 1, T, T): what is taken off scores
        self.room: Any = None  # a buffer for the errors within

    def configure(self, in_obj: Any) -> MultiHeadAttention:
        """Take the inputs' shape, which is the outputs' as well. ValueError unless it is (F, T), and heads divide F."""
        super().configure(in_obj)
        self.out_shape = self.nin, self.steps = with_steps(self)
        if self.nin % self.heads:
            divisors = ", ".join(str(n) for n in range(1, self.nin + 1) if self.nin % n == 0)
            raise ValueError(
                f"{self.name}: each head takes as many of the {self.nin} features, which {self.heads} heads do not "
                f"divide: heads is one of {divisors}"
            )
        self.scale = 1 / math.sqrt(self.nin // self.heads)
        return self

    def slots(self) -> list[Slot]:
        """Return the weights, then the biases where there are some."""
        F = self.nin
        weights = [Slot("W_qkv", "dW_qkv", (3 * F, F), self.init), Slot("W_out", "dW_out", (F, F), self.init)]
        biases = [Slot("b_qkv", "db_qkv", (3 * F, 1), self.bias), Slot("b_out", "db_out", (F, 1), self.bias)]
        return weights if self.bias is None else weights + biases

    # --- buffers: sequence by sequence, a column n T + t, so that what a head has of a sequence is a matrix ---

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Make the buffers, but for those of errors."""
        super().allocate(shared_outputs, accumulate_updates)
        be, (F, T), H = self.be, self.in_shape, self.heads
        self.turned, self.mixed, self.side = (self.buffer(name, (F, T)) for name in ("turned", "mixed", "side"))
        self.qkv = self.buffer("qkv", (3 * F, T))
        self.q, self.k, self.v, self.mixed_heads = self.by_heads(self.qkv, self.mixed)
        square = (H * T, T)
        self.weights = self.used = self.buffer("weights", square).reshape(H, be.bsz, T, T)
        if self.keep < 1:
            self.kept = self.buffer("kept", square).reshape(self.weights.shape)
            self.used = self.buffer("used", square).reshape(self.weights.shape)
        self.weights_heads, self.used_heads = self.of_heads(self.weights), self.of_heads(self.used)
        if self.causal and (self.earlier is None or self.earlier.shape != (T, T)):
            step = be.array(list(range(T)))
            self.earlier = be.zeros((T, T), name=f"{self.name}.earlier")
            self.earlier[:] = be.less_equal(step, step.T)
        if self.slopes is not None and (self.far is None or self.far.shape[2:] != (T, T)):
            step = be.array([list(range(T))])
            slope, lag = (be.reshape(be.array(x), (H, 1, 1, 1)) for x in (self.slopes, self.lags or [0] * H))
            self.far = be.zeros((H, 1, T, T), name=f"{self.name}.far")
            self.far[:] = slope * be.absolute(step - step.T - lag)
        self.room = None

    def by_heads(self, *tensors: Any) -> list[list[Any]]:
        """Return, for every F rows of tensors, what each head has of them: a stack of matrices (N, F / heads, T)."""
        size = self.nin // self.heads
        rows = [x[i : i + size] for x in tensors for i in range(0, x.shape[0], size)]
        stacks = [x.reshape(size, -1, self.steps).permute((1, 0, 2)) for x in rows]
        return [stacks[i : i + self.heads] for i in range(0, len(stacks), self.heads)]

    def of_heads(self, x: Any) -> list[Any]:
        """Return the weights of each head."""
        return [x[h] for h in range(self.heads)]

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Say where the deltas are to lie, and the errors within, whose place is free for others afterwards."""
        room = deltas.take(sum(self.rooms), self.work_in)
        place = super().reserve(deltas, error)
        deltas.free(room)
        return place

    @property
    def rooms(self) -> list[int]:
        """How many elements the errors have, for each of the minibatch: of weights; of q, k and v; of what is mixed."""
        F, T = self.in_shape
        return [self.heads * T * T, 3 * F * T, F * T]

    def work_in(self, room: Any) -> None:
        """Take a buffer for the errors within."""
        squares, qkv, _ = (size * self.be.bsz for size in self.rooms)
        self.room, flat, wide = room, room.reshape(-1, 1), self.turned.shape[1]
        self.dweights = flat[:squares].reshape(self.weights.shape)
        self.dqkv = flat[squares : squares + qkv].reshape(-1, wide)
        self.dmixed = flat[squares + qkv : squares + qkv + self.mixed.size].reshape(-1, wide)
        self.dq, self.dk, self.dv, self.dmixed_heads = self.by_heads(self.dqkv, self.dmixed)
        self.dweights_heads = self.of_heads(self.dweights)

    # --- forward and back ---

    def formula(self, x: Any) -> Any:
        """Return the outputs."""
        return self.looking(x, thinned=self.keep < 1)

    def inference_formula(self, x: Any) -> Any:
        """Return the outputs, with all weights of the attention."""
        return self.looking(x, thinned=False)

    def looking(self, x: Any, thinned: bool) -> Any:
        """Return the outputs, by all weights of the attention, or by those that were drawn last."""
        be, (F, T), mask = self.be, self.in_shape, self.allowed()

        def heads(i: int) -> Any:
            rows = slice(i * F, (i + 1) * F)
            y = be.dot(self.W_qkv[rows], x)
            y = y if self.bias is None else y + self.b_qkv[rows]
            return be.transpose(be.reshape(y, (self.heads, F // self.heads, T, -1)), (0, 3, 2, 1))

        q, k, v = heads(0), heads(1), heads(2)
        scores = q @ k.T * self.scale
        scores = scores if self.far is None else scores - self.far.T
        weights = shares(scores, None if mask is None else mask.T, -1)
        if thinned:
            weights = weights * self.kept.T * (1 / self.keep)
        mixed = be.reshape(be.transpose(weights @ v, (0, 3, 2, 1)), (F, -1))
        y = be.dot(self.W_out, mixed)
        return y if self.bias is None else y + self.b_out

    def allowed(self) -> Any:
        """Return where step t may look at step s, as an op-tree that broadcasts to (heads, N, s, t); None: anywhere."""
        if self.mask is None:
            return self.earlier
        self.check("mask, the steps to look at,", self.mask, (1, self.steps))
        be = self.be
        filled = be.transpose(be.reshape(self.mask, (1, self.steps, -1, 1)), (0, 2, 1, 3))
        return filled if self.earlier is None else filled * self.earlier

    def by_sequence(self, x: Any) -> Any:
        """Return columns t N + n as (F, N, T)."""
        return self.be.transpose(self.be.reshape(x, (self.nin, self.steps, -1)), (0, 2, 1))

    def by_step(self, x: Any) -> Any:
        """Return columns n T + t as (F, T, N)."""
        return self.be.transpose(self.be.reshape(x, (self.nin, -1, self.steps)), (0, 2, 1))

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta`` times what they were."""
        self.accept(inputs)
        be, allowed, used = self.be, self.allowed(), self.weights_heads if inference else self.used_heads
        self.inputs, self.tree = inputs, None if inference else self  # not None: bprop may come, which needs no tree
        self.turned.reshape(self.nin, -1, self.steps)[:] = self.by_sequence(inputs)
        be.compound_dot(self.W_qkv, self.turned, self.qkv)
        if self.bias is not None:
            self.qkv[:] = self.qkv + self.b_qkv
        for q, k, weights in zip(self.q, self.k, self.weights_heads, strict=True):
            be.batched_dot(k.T, q, weights)
        scores = self.scale * self.weights
        self.weights[:] = shares(scores if self.far is None else scores - self.far, allowed, 2)
        if self.keep < 1 and not inference:
            be.make_binary_mask(self.kept, self.keep)
            self.used[:] = self.weights * self.kept * (1 / self.keep)
        for v, weights, mixed in zip(self.v, used, self.mixed_heads, strict=True):
            be.batched_dot(v, weights, mixed)
        be.compound_dot(self.W_out, self.mixed, self.side)
        y = self.by_step(self.side)
        y = y if self.bias is None else y + be.reshape(self.b_out, (-1, 1, 1))
        outputs = self.outputs.reshape(y.shape)
        outputs[:] = y + beta * outputs if beta else y
        return self.outputs

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute the gradients, and ``deltas = alpha dE/dinputs + beta deltas``."""
        self.check_error(error)
        if self.room is None:
            self.work_in(self.buffer("room", sum(self.rooms)))
        be, H, F, whole = self.be, self.heads, self.nin, self.keep == 1
        self.side.reshape(F, -1, self.steps)[:] = self.by_sequence(error)
        be.compound_dot(self.side, self.mixed.T, self.dW_out)
        be.compound_dot(self.W_out.T, self.side, self.dmixed)
        for h in range(H):
            be.batched_dot(self.dmixed_heads[h], self.used_heads[h].T, self.dv[h])
            be.batched_dot(self.v[h].T, self.dmixed_heads[h], self.dweights_heads[h])
        # the derivative of a softmax takes off sum_s weights dweights: that is sum_i mixed dmixed, over fewer rows
        off = be.reshape(self.mixed, (H, F // H, -1, self.steps)) * be.reshape(self.dmixed, (H, F // H, -1, self.steps))
        off = be.reshape(be.sum(off, axis=1), (H, -1, 1, self.steps))
        dweights = self.dweights if whole else self.dweights * self.kept * (1 / self.keep)
        self.dweights[:] = self.weights * (dweights - off) * self.scale
        for h in range(H):
            be.batched_dot(self.k[h], self.dweights_heads[h], self.dq[h])
            be.batched_dot(self.q[h], self.dweights_heads[h].T, self.dk[h])
        be.compound_dot(self.dqkv, self.turned.T, self.dW_qkv)
        if self.bias is not None:
            self.db_qkv[:] = be.sum(self.dqkv, axis=1)
            self.db_out[:] = be.sum(error, axis=1)
        if self.deltas is not None:
            be.compound_dot(self.W_qkv.T, self.dqkv, self.side)
            back = self.by_step(self.side)
            deltas = self.deltas.reshape(back.shape)
            deltas[:] = alpha * back + beta * deltas if beta else alpha * back
        return self.deltas


class PositionalEncoding(Layer):
    """``x + PE``, which tells steps apart: ``PE[2i, t] = sin(t / 10000^(2i / F))``, and PE[2i + 1, t] is its cosine.

    **Shapes**: (F, T) -> (F, T). Source: Vaswani et al. 2017, section 3.5.
    """

    in_place = True
    reads_outputs = False

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.table: Any = None

    def configure(self, in_obj: Any) -> PositionalEncoding:
        """Take the inputs' shape, which is the outputs' as well. ValueError unless it is (F, T)."""
        super().configure(in_obj)
        self.out_shape = with_steps(self)
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Make the buffer of the outputs, and the table of what is added."""
        super().allocate(shared_outputs)
        F, T = self.in_shape
        if self.table is None or self.table.shape != (F, T):
            self.table = self.be.array([wave(i, F, T) for i in range(F)], name=f"{self.name}.table")

    def formula(self, x: Any) -> Any:
        """Return ``x + PE``."""
        return plus_steps(x, self.table)


class LearnedPosition(ParameterLayer):
    """``x + W[:, t]`` at the step t: W (F, steps), which is learned, tells steps apart.

    **Shapes**: (F, T) -> (F, T), for T up to ``steps``. Source: Gehring et al. 2017, section 3.1.
    """

    in_place = True
    reads_outputs = False

    def __init__(self, steps: int, init: Any, name: str | None = None) -> None:
        super().__init__(init, name)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"{self.name}: steps is a whole number from 1; got {steps!r}")
        self.steps = steps

    def configure(self, in_obj: Any) -> LearnedPosition:
        """Take the inputs' shape, which is the outputs' as well. ValueError unless it is (F, T), T up to ``steps``."""
        super().configure(in_obj)
        self.out_shape = F, T = with_steps(self)
        if self.steps < T:
            raise ValueError(f"{self.name}: it knows {self.steps} steps, and its inputs have {T}: give it more steps")
        self.weight_shape = (F, self.steps)
        return self

    def formula(self, x: Any) -> Any:
        """Return ``x + W``, of W the columns of the steps that there are."""
        T = self.in_shape[1]
        return plus_steps(x, self.W if self.steps == T else self.W[:, :T])


class TransformerBlock(list[Any]):
    """``y = x + attention(norm(x))``, then ``y + W_2 f(W_1 norm(y) + b_1) + b_2``, for inputs of ``width`` features.

    A list of layers, as Affine is one: ``norm`` is a LayerNorm, f is ``activation``, W_1 (hidden, width). ``keep``:
    the fraction that stays of the weights of the attention and of what is added to x and y. ``slopes``
    and ``lags``: those of the attention. In the paper the norm comes after the sum; before, it trains without a
    warm-up.

    **Shapes**: (width, T) -> (width, T). Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020, figure 1b.

    >>> from neonlite.initializers import GlorotUniform
    >>> [layer.name for layer in TransformerBlock(64, 4, 256, GlorotUniform(), causal=True, name="block")]
    ['block_attention', 'block_feedforward']
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        init: Any,
        causal: bool = False,
        keep: float = 1.0,
        bias: Any = None,
        activation: Any = None,
        name: str | None = None,
        slopes: Sequence[float] | None = None,
        lags: Sequence[int] | None = None,
    ) -> None:
        bias = Constant(0) if bias is None else bias
        look = MultiHeadAttention(heads, init, causal, keep, bias, name and f"{name}_heads", slopes, lags)
        base = name or look.name
        think = [
            LayerNorm(name=f"{base}_norm_2"),
            Affine(hidden, init, bias=bias, activation=activation or GELU(), name=f"{base}_1"),
            Affine(width, init, bias=bias, name=f"{base}_2"),
        ]
        ways: dict[str, list[Any]] = {"attention": [LayerNorm(name=f"{base}_norm_1"), look], "feedforward": think}
        for what, way in ways.items():
            dropout = [Dropout(keep, name=f"{base}_{what}_dropout")] if keep < 1 else []
            self.append(MergeSum([SkipNode(name=f"{base}_{what}_skip"), [*way, *dropout]], name=f"{base}_{what}"))


def with_steps(layer: Layer) -> Any:
    """Return the inputs' shape of a layer; ValueError unless it is (F, T)."""
    if not isinstance(layer.in_shape, tuple) or len(layer.in_shape) != 2:
        raise ValueError(
            f"{layer.name}: its inputs have time steps, (F, T), such as a LookupTable makes of words (1, T); "
            f"got {layer.in_shape}"
        )
    return layer.in_shape


def wave(i: int, F: int, T: int) -> list[float]:
    """Return the row i of the table of positions."""
    turn = math.cos if i % 2 else math.sin
    return [turn(t / PERIOD ** ((i - i % 2) / F)) for t in range(T)]


def plus_steps(x: Any, table: Any) -> Any:
    """Return x, columns t N + n, plus the column t of a table."""
    F, T = table.shape
    return x.backend.reshape(x.backend.reshape(x, (F, T, -1)) + x.backend.reshape(table, (F, T, 1)), x.shape)
