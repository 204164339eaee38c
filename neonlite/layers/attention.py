"""Scaled dot-product attention, multi-head attention, position encodings, and the transformer block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from neonlite.backend import Tensor, batch_size, validation
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import container, linear, merge, norm
from neonlite.layers.activation import ActivationLike, Dropout, keep_probability
from neonlite.layers.layer import LayerInput, as_tensor
from neonlite.layers.parameter import InitLike, ParameterLayer, ParameterSpec, TensorAttribute
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
        validation.instance(f"attention: {name}", x, Operand, "a tensor or an op-tree")
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
        (heads, N, T, T), of the inputs of the last fprop: [h, n, s, t] is the weight of step s in the output of step t.
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
        heads = validation.integer(f"{self.name}: heads", heads)
        self.keep = keep_probability(self.name, keep, dropout, 1.0)
        self.heads, self.causal, self.bias = heads, causal, self.initial_values(bias)
        self.alibi_slopes, self.alibi_offsets = (
            None if values is None else validation.check_numbers(f"{self.name}: {label}", values, heads, "head")
            for label, values in {"alibi_slopes": alibi_slopes, "alibi_offsets": alibi_offsets}.items()
        )
        if alibi_offsets is not None and alibi_slopes is None:
            raise ValueError(
                f"{self.name}: expected alibi_slopes together with alibi_offsets, got alibi_offsets alone. Pass "
                "alibi_slopes as well"
            )
        self.nin = 0  # features; parameter_specs needs it before configure
        self.mask: Tensor | Any = None
        self.causal_mask: Tensor | Any = None  # (T, T): at (t, s), 1 where step s is not later than step t
        self.alibi_bias: Tensor | Any = None  # (heads, 1, T, T): subtracted from the scores

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

    def allocate_parameters(self) -> None:
        super().allocate_parameters()
        be, (_, T), H = self.be, self.in_shape, self.heads
        if self.causal and (self.causal_mask is None or self.causal_mask.shape != (T, T)):
            step = be.array(list(range(T)))
            self.causal_mask = be.zeros((T, T), name=f"{self.name}.causal_mask")
            self.causal_mask[:] = be.greater_equal(step, step.T)
        if self.alibi_slopes is not None and (self.alibi_bias is None or self.alibi_bias.shape[2:] != (T, T)):
            step = be.array([list(range(T))])
            slope, lag = (
                be.reshape(be.array(x), (H, 1, 1, 1)) for x in (self.alibi_slopes, self.alibi_offsets or [0] * H)
            )
            self.alibi_bias = be.zeros((H, 1, T, T), name=f"{self.name}.alibi_bias")
            self.alibi_bias[:] = slope * be.absolute(step.T - step - lag)

    def formula(self, x: Tensor) -> Operand:
        """Return the outputs, with a dropout mask that the op-tree draws."""
        be, H, T = self.be, self.heads, self.steps

        def draw_mask(weights: Operand) -> Operand:
            draw = partial(be.random_mask, keep=self.keep)
            mask: Operand = batch_size.draw_samples(be, lambda n: draw((H, n, T, T)), weights.shape[1], axis=1)
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
            Returns the dropout mask of the attention weights (heads, N, t, s).
        """
        be, F, T = self.be, self.nin, self.steps
        drops = mask_of is not None and self.keep < 1
        if not drops and self.mask is None and self.alibi_bias is None:
            shape = T, x.shape[1] // T, 3, self.heads, F // self.heads
            if be.primitives.computes_attention([shape], x.info.dtype, self.causal):
                return self.build_fused_output(x, shape)
        weights, v = self.build_weights(x)
        if mask_of is not None and drops:
            weights = weights * mask_of(weights) * (1 / self.keep)
        context = be.reshape(v @ be.reshape(weights, (-1, T, T)).T, (self.heads, -1, F // self.heads, T))
        y = self.to_time_major(be.dot(self.W_out, be.reshape(be.transpose(context, (0, 2, 1, 3)), (F, -1))))
        y = y if self.bias is None else y + be.reshape(self.b_out, (F, 1, 1))
        return be.reshape(y, (F, -1))

    def build_fused_output(self, x: Operand, shape: Sequence[int]) -> Operand:
        """Return the outputs by an op of a library for attention, which computes no weights in memory.

        Parameters
        ----------
        x : Tensor or op-tree
            Inputs (F, T N).
        shape : sequence of int
            (T, N, 3, heads, F / heads), that of the queries, keys and values as a matrix (T N, 3 F), which the product
            writes in this order.
        """
        be, F = self.be, self.nin
        qkv = x.T @ self.W_qkv.T
        qkv = qkv if self.bias is None else qkv + be.reshape(self.b_qkv, (1, -1))
        context = be.build("fused_attention", be.reshape(qkv, shape), causal=self.causal)
        y = self.W_out @ be.reshape(context, (-1, F)).T
        return y if self.bias is None else y + self.b_out

    def build_weights(self, x: Operand) -> tuple[Operand, Operand]:
        """Return the attention weights (heads, N, t, s) and the values (heads N, F / heads, s) as op-trees.

        The queries, keys and values of all heads and samples are one stack of matrices in memory, so that each product
        is a single batched one.

        Parameters
        ----------
        x : Tensor or op-tree
            Inputs (F, T N).
        """
        be, (F, T), H, mask = self.be, self.in_shape, self.heads, self.get_attention_mask()
        d, stack = F // H, H * (x.shape[1] // T)
        qkv = be.dot(self.W_qkv, be.reshape(self.to_batch_major(x), (F, -1)))  # one product is faster than three
        qkv = be.transpose(be.reshape(qkv, (3 * H, d, -1, T)), (0, 2, 1, 3))
        qkv = qkv if self.bias is None else qkv + be.reshape(self.b_qkv, (3 * H, 1, d, 1))
        qkv = be.reshape(qkv, (-1, d, T))
        q, k, v = (be.build("slice", qkv, index=((i * stack, stack, 1), (0, d, 1), (0, T, 1))) for i in range(3))
        scores = be.reshape(q.T @ k, (H, -1, T, T)) * self.scale
        scores = scores if self.alibi_bias is None else scores - self.alibi_bias
        return be.softmax(scores, -1) if mask is None else be.masked_softmax(scores, mask, -1), v

    @property
    def attention_weights(self) -> Tensor:
        """The attention weights for the inputs of the last ``fprop``, (heads, N, T, T)."""
        return as_tensor(self.build_weights(self.inputs)[0].T)

    def get_attention_mask(self) -> Operand | None:
        """Return an op-tree that broadcasts to (heads, N, t, s), 1 where step t may attend to step s, or None."""
        if self.mask is None:
            return self.causal_mask
        self.check_tensor("mask", self.mask, (1, self.steps))
        be = self.be
        mask = be.transpose(be.reshape(self.mask, (1, self.steps, 1, -1)), (0, 3, 2, 1))
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


class TransformerBlock(container.LayerList):
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

    @validation.checks_arguments
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
        attention_branch = [norm.LayerNorm(name=f"{base}_norm_1"), attention_layer]
        feedforward_branch = [
            norm.LayerNorm(name=f"{base}_norm_2"),
            linear.Affine(hidden, init, bias=bias, activation=activation or "gelu", name=f"{base}_1"),
            linear.Affine(width, init, bias=bias, name=f"{base}_2"),
        ]
        branches: dict[str, list[Any]] = {"attention": attention_branch, "feedforward": feedforward_branch}
        for label, branch in branches.items():
            dropout_layers = [Dropout(keep, name=f"{base}_{label}_dropout")] if keep < 1 else []
            self.append(
                merge.MergeSum(
                    [merge.SkipNode(name=f"{base}_{label}_skip"), [*branch, *dropout_layers]], name=f"{base}_{label}"
                )
            )
