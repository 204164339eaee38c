"""Scaled dot-product attention, multi-head attention, position encodings, and the transformer block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.batch_size import draw_minibatch_mask, draw_samples
from neonlite.backend.validation import check_numbers, checks_arguments, instance, integer
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers.activation import ActivationLike, Dropout, keep_probability
from neonlite.layers.container import LayerList
from neonlite.layers.layer import LayerInput
from neonlite.layers.linear import Affine
from neonlite.layers.merge import MergeSum, SkipNode
from neonlite.layers.norm import LayerNorm
from neonlite.layers.parameter import InitLike, ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.layers.weights import accumulates
from neonlite.optree import Operand


def attention(q: Operand, k: Operand, v: Operand, mask: Operand | None = None) -> Operand:
    """Return scaled dot-product attention, ``softmax(Q K^T / sqrt(d)) V``, as an op-tree.

    Parameters
    ----------
    q : Tensor or op-tree
        Queries (..., T, d).
    k : Tensor or op-tree
        Keys (..., S, d).
    v : Tensor or op-tree
        Values (..., S, e).
    mask : Tensor or op-tree, optional
        Broadcasts to (..., T, S): 1 where a query may attend to a key, else 0. The output is 0 for a query that may
        attend to no key.

    Returns
    -------
    op-tree
        (..., T, e). It can be differentiated with ``Autodiff``.

    References
    ----------
    Vaswani et al. 2017, equation 1.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> q, k, v = be.array([[1.0, 0.0]]), be.array([[99.0, 0.0], [0.0, 9.0]]), be.array([[1.0, 2.0], [3.0, 4.0]])
    >>> attention(q, k, v).asnumpyarray()
    array([[1., 2.]], dtype=float32)
    >>> attention(q, k, v, mask=be.array([[0.0, 1.0]])).asnumpyarray()
    array([[3., 4.]], dtype=float32)
    """
    for name, x in {"q": q, "k": k, "v": v}.items():
        instance(f"attention: {name}", x, Operand, "a tensor or an op-tree")
    return q.backend.attention(q, k, v, mask)


class MultiHeadAttention(ParameterLayer):
    """Multi-head self-attention, (F, T) -> (F, T).

    ``W_out concat_h attention(Q_h, K_h, V_h) + b_out``, where ``[Q; K; V] = W_qkv x + b_qkv``, and head h has F / heads
    rows of each. The parameters are W_qkv (3 F, F), W_out (F, F) and, with ``bias``, b_qkv (3 F, 1) and b_out (F, 1).

    Set the attribute ``mask``, a tensor (1, T N), to 0 at padding steps: no step attends to them. Exclude their own
    outputs from the cost, for example with GeneralizedCostMask.

    Parameters
    ----------
    heads : int
        Number of heads, a divisor of F.
    init : initializer, array, Tensor or str, optional
        Fills W_qkv and W_out. Default: ``GlorotUniform()``, and biases of zeros.
    causal : bool
        A step attends only to itself and to earlier steps.
    keep : float
        Probability of keeping each attention weight in training; the kept weights are divided by it;
        default: 1.
    bias : initializer, array, Tensor or str, optional
        Fills b_qkv and b_out (default: no biases; without ``init`` zeros).
    name : str, optional
        Name of the layer.
    alibi_slopes : sequence of float, optional
        For each head, the amount by which its scores decrease per time step of distance.
    alibi_offsets : sequence of int, optional
        For each head, the distance in time steps at which its bias is 0 (default: 0): a head with offset 2 favors the
        second step before the query. Requires ``alibi_slopes``.
    dropout : float, optional
        Instead of ``keep``, the probability of dropping an attention weight, ``1 - keep``.

    Attributes
    ----------
    attention_weights : Tensor
        (heads, N, T, T), after fprop: [h, n, s, t] is the weight of step s in the output of step t.
    mask : Tensor or None
        (1, T N), 0 at padding steps, or None.

    References
    ----------
    Vaswani et al. 2017, section 3.2.2; ``keep``: Srivastava et al. 2014; ``alibi_slopes``: Press et al. 2022, ALiBi;
    ``alibi_offsets``: You, Sun and Iyyer 2020, Hard-coded Gaussian attention.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import GlorotUniform
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> MultiHeadAttention(4, GlorotUniform(), causal=True).configure((8, 5)).out_shape
    (8, 5)
    """

    alternative_arguments = ("dropout",)
    needs_outputs = False
    W_qkv, W_out, b_qkv, b_out = TensorAttribute(), TensorAttribute(), TensorAttribute(), TensorAttribute()
    dW_qkv, dW_out, db_qkv, db_out = TensorAttribute(), TensorAttribute(), TensorAttribute(), TensorAttribute()

    def __init__(
        self,
        heads: int,
        init: InitLike | None = None,
        causal: bool = False,
        keep: float | None = None,
        bias: InitLike | None = None,
        name: str | None = None,
        alibi_slopes: Sequence[float] | None = None,
        alibi_offsets: Sequence[int] | None = None,
        dropout: float | None = None,
    ) -> None:
        if init is None:
            init, bias = GlorotUniform(), Constant(0) if bias is None else bias
        super().__init__(init, name)
        heads = integer(f"{self.name}: heads", heads)
        self.keep = keep_probability(self.name, keep, dropout, 1.0)
        self.heads, self.causal, self.bias = heads, causal, self.initial_values(bias)
        self.alibi_slopes, self.alibi_offsets = (
            None if values is None else check_numbers(f"{self.name}: {label}", values, heads, "head")
            for label, values in {"alibi_slopes": alibi_slopes, "alibi_offsets": alibi_offsets}.items()
        )
        if alibi_offsets is not None and alibi_slopes is None:
            raise ValueError(
                f"{self.name}: expected alibi_slopes together with alibi_offsets, got alibi_offsets alone. Pass "
                "alibi_slopes as well"
            )
        self.nin = 0  # features; parameter_specs needs it before configure
        self.mask: Tensor | Any = None
        self.causal_mask: Tensor | Any = None  # (T, T): 1 where step s is not later than step t
        self.alibi_bias: Tensor | Any = None  # (heads, 1, T, T): subtracted from the scores
        self.workspace: Tensor | Any = None  # buffer for the gradients with respect to intermediate values

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.nin, self.steps = self._check_sequence_shape()
        if self.nin % self.heads:
            divisors = ", ".join(str(n) for n in range(1, self.nin + 1) if self.nin % n == 0)
            raise ValueError(
                f"{self.name}: expected heads to divide the {self.nin} features, got {self.heads}. Use "
                f"one of {divisors}"
            )
        self.scale = 1 / math.sqrt(self.nin // self.heads)
        return self

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the weights, then the biases if there are any."""
        F = self.nin
        weights = [
            ParameterSpec("W_qkv", "dW_qkv", (3 * F, F), self.init),
            ParameterSpec("W_out", "dW_out", (F, F), self.init),
        ]
        biases = [
            ParameterSpec("b_qkv", "db_qkv", (3 * F, 1), self.bias),
            ParameterSpec("b_out", "db_out", (F, 1), self.bias),
        ]
        return weights if self.bias is None else weights + biases

    # --- buffers: batch-major (column n T + t), so that one head of one sequence is a matrix view ---

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        be, (F, T), H = self.be, self.in_shape, self.heads
        self.inputs_by_sequence, self.context, self.scratch = (
            self.buffer(name, (F, T)) for name in ("inputs_by_sequence", "context", "scratch")
        )
        self.qkv = self.buffer("qkv", (3 * F, T))
        self.q, self.k, self.v, self.context_by_head = self.split_heads(self.qkv, self.context)
        square = (H * T, T)
        self.attention_weights = self.dropped_weights = self.buffer("attention_weights", square).reshape(
            H, be.bsz, T, T
        )
        if self.keep < 1:
            self.dropout_mask = self.buffer("dropout_mask", square).reshape(self.attention_weights.shape)
            self.dropped_weights = self.buffer("dropped_weights", square).reshape(self.attention_weights.shape)
        self.weights_by_head, self.dropped_by_head = (
            self.list_heads(self.attention_weights),
            self.list_heads(self.dropped_weights),
        )
        self.workspace = None
        self.allocate_parameters()

    def allocate_parameters(self) -> None:
        super().allocate_parameters()
        be, (_, T), H = self.be, self.in_shape, self.heads
        if self.causal and (self.causal_mask is None or self.causal_mask.shape != (T, T)):
            step = be.array(list(range(T)))
            self.causal_mask = be.zeros((T, T), name=f"{self.name}.causal_mask")
            self.causal_mask[:] = be.less_equal(step, step.T)
        if self.alibi_slopes is not None and (self.alibi_bias is None or self.alibi_bias.shape[2:] != (T, T)):
            step = be.array([list(range(T))])
            slope, lag = (
                be.reshape(be.array(x), (H, 1, 1, 1)) for x in (self.alibi_slopes, self.alibi_offsets or [0] * H)
            )
            self.alibi_bias = be.zeros((H, 1, T, T), name=f"{self.name}.alibi_bias")
            self.alibi_bias[:] = slope * be.absolute(step - step.T - lag)

    def split_heads(self, *tensors: Tensor) -> list[list[Tensor]]:
        """Split tensors into blocks of F rows; return a list of views (N, F / heads, T), one per head, for each block.

        Parameters
        ----------
        *tensors : Tensor
            Batch-major tensors whose number of rows is a multiple of F.
        """
        size = self.nin // self.heads
        rows = [x[i : i + size] for x in tensors for i in range(0, x.shape[0], size)]
        stacks = [x.reshape(size, -1, self.steps).permute((1, 0, 2)) for x in rows]
        return [stacks[i : i + self.heads] for i in range(0, len(stacks), self.heads)]

    def list_heads(self, x: Tensor) -> list[Tensor]:
        """Return the list of ``x[h]``, one for each head h.

        Parameters
        ----------
        x : Tensor
            (heads, ...).
        """
        return [x[h] for h in range(self.heads)]

    @property
    def bprop_workspace_size(self) -> int:  # type: ignore[override]
        """Elements per sequence of the workspace."""
        return sum(self.workspace_sizes)

    @property
    def workspace_sizes(self) -> list[int]:
        """Elements per sequence of the gradients of the attention weights, of q, k and v, and of the context."""
        F, T = self.in_shape
        return [self.heads * T * T, 3 * F * T, F * T]

    def set_workspace(self, workspace: Tensor) -> None:
        """Set the buffer for the gradients with respect to intermediate values.

        Parameters
        ----------
        workspace : Tensor
            A buffer of ``bprop_workspace_size`` elements per sequence.
        """
        squares, qkv, _ = (size * self.be.bsz for size in self.workspace_sizes)
        self.workspace, flat, num_columns = workspace, workspace.reshape(-1, 1), self.inputs_by_sequence.shape[1]
        self.dattention_weights = flat[:squares].reshape(self.attention_weights.shape)
        self.dqkv = flat[squares : squares + qkv].reshape(-1, num_columns)
        self.dcontext = flat[squares + qkv : squares + qkv + self.context.size].reshape(-1, num_columns)
        self.dq, self.dk, self.dv, self.dcontext_by_head = self.split_heads(self.dqkv, self.dcontext)
        self.dweights_by_head = self.list_heads(self.dattention_weights)

    # --- forward and backward pass ---
    # fprop and bprop are written by hand: a step takes 1.3 to 1.9 times as long if both are derived from the formula
    # (cpu, one thread, float32: 2 to 8 heads, 16 to 256 features, 8 to 128 time steps, 4 to 128 sequences).

    def formula(self, x: Tensor) -> Operand:
        """Return the outputs, with the dropout mask that ``fprop`` has drawn."""
        return self.build_output(x, lambda weights: self.dropout_mask)

    def training_formula(self, x: Operand) -> Operand:
        """Return the outputs, with a dropout mask that the op-tree draws."""
        be, H, T = self.be, self.heads, self.steps

        def draw_mask(weights: Operand) -> Operand:
            draw = partial(be.random_mask, keep=self.keep)
            mask: Operand = draw_samples(be, lambda n: draw((H, n, T, T)), weights.shape[1], axis=1)
            return mask

        return self.build_output(x, draw_mask)

    def inference_formula(self, x: Tensor) -> Operand:
        """Return the outputs without dropout."""
        return self.build_output(x)

    def build_output(self, x: Operand, mask_of: Callable[[Operand], Operand] | None = None) -> Operand:
        """Return the outputs as an op-tree.

        Parameters
        ----------
        x : Tensor or op-tree
            Inputs (F, T N).
        mask_of : callable, optional
            Returns the dropout mask of the attention weights (heads, N, s, t).
        """
        be, (F, T), mask = self.be, self.in_shape, self.get_attention_mask()
        heads = self.heads, F // self.heads, -1, T
        qkv = be.dot(self.W_qkv, be.reshape(self.to_batch_major(x), (F, -1)))  # one product is faster than three
        qkv = qkv if self.bias is None else qkv + self.b_qkv

        def split_heads(i: int) -> Operand:
            y = be.build("slice", qkv, index=((i * F, F, 1), (0, x.shape[1], 1)))
            return be.transpose(be.reshape(y, heads), (0, 2, 1, 3))

        q, k, v = map(split_heads, range(3))
        scores = k.T @ q * self.scale
        scores = scores if self.alibi_bias is None else scores - self.alibi_bias
        weights = be.softmax(scores, 2) if mask is None else be.masked_softmax(scores, mask, 2)
        if mask_of is not None and self.keep < 1:
            weights = weights * mask_of(weights) * (1 / self.keep)
        context = be.reshape(be.transpose(v @ weights, (0, 2, 1, 3)), (F, -1))
        y = be.dot(self.W_out, context)
        y = y if self.bias is None else y + self.b_out
        return be.reshape(self.to_time_major(y), (F, -1))

    def get_attention_mask(self) -> Operand | None:
        """Return an op-tree that broadcasts to (heads, N, s, t), 1 where step t may attend to step s, or None."""
        if self.mask is None:
            return self.causal_mask
        self.check_tensor("mask", self.mask, (1, self.steps))
        be = self.be
        mask = be.transpose(be.reshape(self.mask, (1, self.steps, -1, 1)), (0, 2, 1, 3))
        return mask if self.causal_mask is None else mask * self.causal_mask

    def to_batch_major(self, x: Operand) -> Operand:
        """Convert time-major x (column t N + n) to (F, N, T).

        Parameters
        ----------
        x : Tensor or op-tree
            (F, T N), time-major.
        """
        return self.be.transpose(self.be.reshape(x, (self.nin, self.steps, -1)), (0, 2, 1))

    def to_time_major(self, x: Operand) -> Operand:
        """Convert batch-major x (column n T + t) to (F, T, N).

        Parameters
        ----------
        x : Tensor or op-tree
            (F, N T), batch-major.
        """
        return self.be.transpose(self.be.reshape(x, (self.nin, -1, self.steps)), (0, 2, 1))

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        self.set_inputs(inputs, inference)
        be, mask = self.be, self.get_attention_mask()
        used = self.weights_by_head if inference else self.dropped_by_head
        self.inputs_by_sequence.reshape(self.nin, -1, self.steps)[:] = self.to_batch_major(inputs)
        be.compound_dot(self.W_qkv, self.inputs_by_sequence, self.qkv)
        if self.bias is not None:
            self.qkv[:] = self.qkv + self.b_qkv
        for q, k, weights in zip(self.q, self.k, self.weights_by_head, strict=True):
            be.batched_dot(k.T, q, weights)
        scores = self.scale * self.attention_weights
        scores = scores if self.alibi_bias is None else scores - self.alibi_bias
        self.attention_weights[:] = be.softmax(scores, 2) if mask is None else be.masked_softmax(scores, mask, 2)
        if self.keep < 1 and not inference:
            draw_minibatch_mask(be, self.dropout_mask, self.keep, self.dropout_mask.shape, axis=1)
            self.dropped_weights[:] = self.attention_weights * self.dropout_mask * (1 / self.keep)
        for v, weights, context in zip(self.v, used, self.context_by_head, strict=True):
            be.batched_dot(v, weights, context)
        be.compound_dot(self.W_out, self.context, self.scratch)
        y = self.to_time_major(self.scratch)
        y = y if self.bias is None else y + be.reshape(self.b_out, (-1, 1, 1))
        outputs = self.outputs.reshape(y.shape)
        outputs[:] = y + beta * outputs if beta else y
        return self.outputs

    @accumulates
    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        self.check_error(error)
        if self.workspace is None:
            self.set_workspace(self.buffer("workspace", self.bprop_workspace_size))
        be, H, F = self.be, self.heads, self.nin
        self.scratch.reshape(F, -1, self.steps)[:] = self.to_batch_major(error)
        be.compound_dot(self.scratch, self.context.T, self.dW_out)
        be.compound_dot(self.W_out.T, self.scratch, self.dcontext)
        for h in range(H):
            be.batched_dot(self.dcontext_by_head[h], self.dropped_by_head[h].T, self.dv[h])
            be.batched_dot(self.v[h].T, self.dcontext_by_head[h], self.dweights_by_head[h])
        # softmax backward subtracts sum_s weights dweights; the equal sum_i context dcontext has fewer rows
        by_head = H, F // H, -1, self.steps
        correction: Operand = be.reshape(self.context, by_head) * be.reshape(self.dcontext, by_head)
        correction = be.reshape(be.sum(correction, axis=1), (H, -1, 1, self.steps))
        dweights: Operand = self.dattention_weights
        if self.keep < 1:
            dweights = dweights * self.dropout_mask * (1 / self.keep)
        self.dattention_weights[:] = self.attention_weights * (dweights - correction) * self.scale
        for h in range(H):
            be.batched_dot(self.k[h], self.dweights_by_head[h], self.dq[h])
            be.batched_dot(self.q[h], self.dweights_by_head[h].T, self.dk[h])
        be.compound_dot(self.dqkv, self.inputs_by_sequence.T, self.dW_qkv)
        if self.bias is not None:
            self.db_qkv[:] = be.sum(self.dqkv, axis=1)
            self.db_out[:] = be.sum(error, axis=1)
        if self.deltas is not None:
            be.compound_dot(self.W_qkv.T, self.dqkv, self.scratch)
            dx = self.to_time_major(self.scratch)
            deltas = self.deltas.reshape(dx.shape)
            deltas[:] = alpha * dx + beta * deltas if beta else alpha * dx
        return self.deltas


class TransformerBlock(LayerList):
    """Pre-norm transformer block, a list of layers (width, T) -> (width, T).

    ``y = x + attention(norm(x))``, then ``y + W_2 f(W_1 norm(y) + b_1) + b_2``, where norm is a LayerNorm, and W_1 is
    (hidden, width). In the original paper the norm follows the sum; with the norm first, training needs no warm-up.

    Parameters
    ----------
    width : int
        Number of features.
    heads : int
        Number of attention heads, a divisor of ``width``.
    hidden : int
        Number of hidden units of the feedforward layers.
    init : initializer, array, Tensor or str, optional
        Fills all weights. Default: as for MultiHeadAttention and Affine.
    causal : bool
        A step attends only to itself and to earlier steps.
    keep : float
        Keep probability of the dropout of the attention weights and of both branches (the terms added to x and y);
        default: 1.
    bias : initializer, array, Tensor or str, optional
        Fills all biases (default: ``Constant(0)``).
    activation : Transform or str, optional
        f, or its name (default: ``GELU()``).
    name : str, optional
        Prefix of the layers' names.
    alibi_slopes : sequence of float, optional
        As for MultiHeadAttention.
    alibi_offsets : sequence of int, optional
        As for MultiHeadAttention.
    dropout : float, optional
        Instead of ``keep``, the probability of dropping an element, ``1 - keep``.

    References
    ----------
    Vaswani et al. 2017, section 3.1; Xiong et al. 2020, figure 1b.

    Examples
    --------
    >>> from neonlite.initializers import GlorotUniform
    >>> [layer.name for layer in TransformerBlock(64, 4, 256, GlorotUniform(), causal=True, name="block")]
    ['block_attention', 'block_feedforward']
    """

    @checks_arguments
    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        init: InitLike | None = None,
        causal: bool = False,
        keep: float | None = None,
        bias: InitLike | None = None,
        activation: ActivationLike | None = None,
        name: str | None = None,
        alibi_slopes: Sequence[float] | None = None,
        alibi_offsets: Sequence[int] | None = None,
        dropout: float | None = None,
    ) -> None:
        bias = Constant(0) if bias is None else bias
        keep = keep_probability(name or type(self).__name__, keep, dropout, 1.0)
        attention_layer = MultiHeadAttention(
            heads, init, causal, keep, bias, name and f"{name}_heads", alibi_slopes, alibi_offsets
        )
        base = name or attention_layer.name
        attention_branch = [LayerNorm(name=f"{base}_norm_1"), attention_layer]
        feedforward_branch = [
            LayerNorm(name=f"{base}_norm_2"),
            Affine(hidden, init, bias=bias, activation=activation or "gelu", name=f"{base}_1"),
            Affine(width, init, bias=bias, name=f"{base}_2"),
        ]
        branches: dict[str, list[Any]] = {"attention": attention_branch, "feedforward": feedforward_branch}
        for label, branch in branches.items():
            dropout_layers = [Dropout(keep, name=f"{base}_{label}_dropout")] if keep < 1 else []
            self.append(
                MergeSum([SkipNode(name=f"{base}_{label}_skip"), [*branch, *dropout_layers]], name=f"{base}_{label}")
            )
