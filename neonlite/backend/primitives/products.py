"""Backend methods for matrix products, fully connected layers, unrolled recurrent layers and lookup tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from neonlite import optree, typing
from neonlite.backend.primitives import geometry
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import check_open, check_shape, ignore_fp_errors, restore_fp_errors
from neonlite.messages import describe


class MatmulMethods(typing.BackendBase):
    """The methods of ``Backend`` for matrix products and what they consist of."""

    def compound_dot(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        bsum: Tensor | None = None,
    ) -> Tensor:
        """Compute the matrix product ``C = alpha A B + beta C``.

        With ``relu``: ``C = max(alpha A B, 0) + beta C``. With beta 0, C is not read.

        Parameters
        ----------
        A, B : Tensor
            Matrices (m, k) and (k, n), also transposed views.
        C : Tensor
            Output (m, n). It may overlap A and B.
        alpha, beta : float
            Scale of the product and of the old values of C.
        relu : bool
            Whether to apply max(., 0) to the product.
        bsum : Tensor, optional
            Output (m, 1): the sums of the rows of C.

        Returns
        -------
        Tensor
            C.

        Raises
        ------
        ValueError
            If the shapes do not fit.
        TypeError
            If the dtypes differ, or are no float dtypes.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.Backend("cpu")
        >>> be.compound_dot(be.ones((2, 3)), be.ones((3, 2)), be.ones((2, 2)), beta=0.5).get().tolist()
        [[3.5, 3.5], [3.5, 3.5]]
        """
        return _checked_dot(self, "compound_dot", A, B, C, alpha, beta, relu, bsum)

    def batched_dot(
        self, A: Tensor, B: Tensor, C: Tensor, alpha: float = 1.0, beta: float = 0.0, relu: bool = False
    ) -> Tensor:
        """Compute matrix products of stacks of X matrices: ``C = alpha A B + beta C``.

        ``batched_dot(A, B, C)``: A (K, C), B (X, C, N), C (X, K, N). ``batched_dot(A.T, B, C)``: A (K, C), B (X, K, N),
        C (X, C, N). ``batched_dot(A, B.T, C)``: A (X, K, N), B (X, C, N), C (K, C), the sum over X.

        Parameters
        ----------
        A, B : Tensor
            The operands.
        C : Tensor
            The output.
        alpha, beta : float
            Scale of the product and of the old values of C.
        relu : bool
            As in ``compound_dot``.

        Returns
        -------
        Tensor
            C.

        Raises
        ------
        ValueError
            If the shapes do not fit.
        TypeError
            If the dtypes differ, or are no float dtypes.
        """
        geometry.check_tensors(self, "batched_dot", A=A, B=B, C=C)
        stacks = {t.shape[0] for t in (A, B, C) if t.ndim == 3}
        (m, k), (k2, n) = A.shape[-2:], B.shape[-2:]
        fits = {A.ndim, B.ndim, C.ndim} <= {2, 3} and (A.ndim == 3 or B.ndim == 3) and len(stacks) == 1
        if not fits or k != k2 or C.shape[-2:] != (m, n) or (C.ndim == 2 and not A.ndim == B.ndim == 3):
            raise ValueError(
                "be.batched_dot: expected A (K, C), B (X, C, N), C (X, K, N), or A (X, K, N), B.T (X, N, C), C (K, C), "
                f"got A {describe(A)}, B {describe(B)}, C {describe(C)}"
            )
        geometry.check_same_dtype("batched_dot", A=A, B=B, C=C)
        return _dot_with_epilogue(self, "batched_dot", A, B, C, alpha, beta, relu, None)

    def xnor_compound_dot(
        self, A: Tensor, B: Tensor, C: Tensor, beta: float = 0.0, bsum: Tensor | None = None
    ) -> Tensor:
        """Compute ``C = A B + beta C`` of matrices of +1 and -1, as XNOR and a bit count would compute it.

        Parameters
        ----------
        A, B : Tensor
            Matrices (m, k) and (k, n).
        C : Tensor
            Output (m, n).
        beta : float
            Scale of the old values of C.
        bsum : Tensor, optional
            Output (m, 1): the sums of the rows of C.

        Returns
        -------
        Tensor
            C.
        """
        return _checked_dot(self, "xnor_compound_dot", A, B, C, 1.0, beta, False, bsum)

    # --- fully connected layers ---

    def add_fc_bias(self, inputs: Tensor, bias: Tensor) -> Tensor:
        """Add a bias to each column of a tensor, in place.

        Parameters
        ----------
        inputs : Tensor
            Tensor (F, N), also the output.
        bias : Tensor
            Bias (F, 1).

        Returns
        -------
        Tensor
            inputs.
        """
        geometry.check_tensors(self, "add_fc_bias", inputs=inputs, bias=bias)
        _check_columns("add_fc_bias", inputs, bias=bias)
        inputs[:] = inputs + bias
        return inputs

    def update_fc_bias(self, err: Tensor, out: Tensor) -> Tensor:
        """Compute the gradient of a bias, the sum of the columns of an error.

        Parameters
        ----------
        err : Tensor
            Error (F, N).
        out : Tensor
            Output (F, 1).

        Returns
        -------
        Tensor
            out.
        """
        geometry.check_tensors(self, "update_fc_bias", err=err, out=out)
        _check_columns("update_fc_bias", err, out=out)
        out[:] = self.sum(err, axis=1)
        return out

    def compound_rnn_unroll_fprop(
        self,
        W_recur: Tensor,
        h_prev_s: Sequence[Tensor],
        h_ff_s: Sequence[Tensor],
        h_s: Sequence[Tensor],
        bias: Tensor,
        nout: int,
        num_steps: int,
        num_used_steps: int | None,
        activation: Callable[[Tensor], optree.Operand],
        reverse: bool = False,
    ) -> None:
        """Run the steps of a recurrent layer: ``h[t] = activation(W_recur h_prev[t] + h_ff[t] + bias)``.

        Parameters
        ----------
        W_recur : Tensor
            Recurrent weights (nout, nout).
        h_prev_s, h_ff_s : sequence of Tensor
            The previous hidden state and the input of each step, each (nout, N).
        h_s : sequence of Tensor
            Output: the hidden state of each step, each (nout, N).
        bias : Tensor
            Bias (nout, 1).
        nout : int
            Number of hidden units.
        num_steps : int
            Number of steps.
        num_used_steps : int or None
            Number of steps to run; None for all.
        activation : callable
            The activation function.
        reverse : bool
            Whether to start at the last step.
        """
        steps = {"h_prev_s": h_prev_s, "h_ff_s": h_ff_s, "h_s": h_s}
        used = _check_steps(
            self, "compound_rnn_unroll_fprop", W_recur, nout, num_steps, num_used_steps, steps, bias=bias
        )
        for h_prev, h_ff, h in _zip_steps(used, reverse):
            h[:] = activation(self.dot(W_recur, h_prev) + h_ff + bias)

    compound_rnn_unroll_fprop_bibnrnn = compound_rnn_unroll_fprop

    def compound_rnn_unroll_bprop(
        self,
        W_recur: Tensor,
        delta_prev_s: Sequence[Tensor],
        delta_s: Sequence[Tensor],
        h_s: Sequence[Tensor],
        nout: int,
        num_steps: int,
        num_used_steps: int | None,
        activation: HasBprop,
        reverse: bool = True,
    ) -> None:
        """Run the backward pass of ``compound_rnn_unroll_fprop``, in place.

        For each step: ``delta[t] *= activation.bprop(h[t])``, ``delta_prev[t] += W_recur^T delta[t]``.

        Parameters
        ----------
        W_recur : Tensor
            Recurrent weights (nout, nout).
        delta_prev_s, delta_s : sequence of Tensor
            The errors of the previous step and of each step, each (nout, N); both are written.
        h_s : sequence of Tensor
            The hidden states of the forward pass.
        nout : int
            Number of hidden units.
        num_steps : int
            Number of steps.
        num_used_steps : int or None
            Number of steps to run; None for all.
        activation : Transform
            The activation, with ``bprop``.
        reverse : bool
            Whether to start at the last step, as needed if the forward pass started at the first.
        """
        steps = {"delta_prev_s": delta_prev_s, "delta_s": delta_s, "h_s": h_s}
        used = _check_steps(self, "compound_rnn_unroll_bprop", W_recur, nout, num_steps, num_used_steps, steps)
        for delta_prev, delta, h in _zip_steps(used, reverse):
            backward = getattr(activation, "backward", None)  # bprop may be a shortcut, as Softmax's is
            delta[:] = backward(delta, h) if backward else activation.bprop(h) * delta
            delta_prev[:] = delta_prev + self.dot(W_recur.T, delta)

    compound_rnn_unroll_bprop_bibnrnn = compound_rnn_unroll_bprop

    # --- lookup tables ---

    def compound_bprop_lut(
        self,
        nin: int,
        inputs: Tensor,
        error: Tensor,
        error_t: Tensor | None,
        dW: Tensor,
        pad_idx: int | None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """Compute the gradient of a lookup table: ``dW[w] = alpha * (sum of the errors of token id w) + beta dW[w]``.

        Parameters
        ----------
        nin : int
            Number of token ids per sample.
        inputs : Tensor
            The nin * N token ids, in the order of the columns of error.
        error : Tensor
            Error (dim, nin * N).
        error_t : Tensor or None
            Output (nin * N, dim): the transpose of error.
        dW : Tensor
            Output (vocabulary, dim).
        pad_idx : int or None
            The token id whose row gets no gradient.
        alpha, beta : float
            Scale of the gradient and of the old values of dW.

        Returns
        -------
        Tensor
            dW.

        Raises
        ------
        ValueError
            If the shapes do not fit.
        IndexError
            If a token id is out of range.
        """
        optional = {} if error_t is None else {"error_t": error_t}
        geometry.check_tensors(self, "compound_bprop_lut", inputs=inputs, error=error, dW=dW, **optional)
        alpha, beta = geometry.check_floats("compound_bprop_lut", alpha=alpha, beta=beta)
        (nin,) = geometry.check_ints("compound_bprop_lut", 0, nin=nin)
        if pad_idx is not None:
            geometry.check_ints("compound_bprop_lut", 0, pad_idx=pad_idx)
        dim, num_tokens = error.shape[0], inputs.size
        is_divisible = num_tokens % nin == 0 if nin else num_tokens == 0
        if error.shape != (dim, num_tokens) or dW.shape[1:] != (dim,) or not is_divisible:
            raise ValueError(
                "be.compound_bprop_lut: expected nin * N inputs, error (dim, nin * N) and dW (vocabulary, dim), "
                f"got nin {nin}, inputs {describe(inputs)}, error {describe(error)}, dW {describe(dW)}"
            )
        if error_t is not None:
            check_shape("be.compound_bprop_lut: error_t", error_t, (num_tokens, dim), " = (nin * N, dim)")
        token_ids: optree.Operand = geometry.as_contiguous(self, inputs).reshape(-1, 1)
        if "int" not in token_ids.info.dtype:
            token_ids = self.astype(token_ids, "int32")
        errors = error.T if pad_idx is None else self.where(token_ids == pad_idx, 0, error.T)
        total = self.build("scatter_add", errors, token_ids, axis=0, size=dW.shape[0])
        total = total if alpha == 1 else alpha * total  # with alpha 1 the sum is written directly into dW
        geometry.with_error_prefix("compound_bprop_lut", dW.copy_from, total + beta * dW if beta else total)
        if error_t is not None:
            error_t[:] = error.T
        return dW


def _checked_dot(
    be: typing.BackendBase,
    name: str,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    alpha: float,
    beta: float,
    relu: bool,
    bsum: Tensor | None,
) -> Tensor:
    if be.closed_by:
        geometry.with_error_prefix(name, check_open, be)
    infos = getattr(A, "info", None), getattr(B, "info", None), getattr(C, "info", None)
    if infos not in be.checked_dot_infos:
        geometry.check_tensors(be, name, A=A, B=B, C=C)
        if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0] or C.shape != (A.shape[0], B.shape[1]):
            raise ValueError(
                f"be.{name}: expected A (m, k), B (k, n) and C (m, n), got A {describe(A)}, B {describe(B)}, "
                f"C {describe(C)}"
            )
        geometry.check_same_dtype(name, A=A, B=B, C=C)
        be.checked_dot_infos.add(infos, True)
    is_plain = type(alpha) is type(beta) is float and not relu and bsum is None  # as in a Linear layer
    if is_plain and A.allocation is not C.allocation is not B.allocation and C.info.dtype not in typing.HALF_DTYPES:
        _gemm(be, A, B, C, alpha, beta)
        return C
    return _dot_with_epilogue(be, name, A, B, C, alpha, beta, relu, bsum)


def _dot_with_epilogue(
    be: typing.BackendBase,
    name: str,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    alpha: float,
    beta: float,
    relu: bool,
    bsum: Tensor | None,
) -> Tensor:
    """Multiply, apply relu, and sum rows, each if requested."""
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = geometry.check_floats(name, alpha=alpha, beta=beta)
    if bsum is not None:
        geometry.check_tensors(be, name, bsum=bsum)
        _check_columns(name, C, bsum=bsum)
    is_disjoint = overlap(A, C) == overlap(B, C) == "none"
    if is_disjoint and not (relu and beta) and geometry.compute_dtype(be, C.info.dtype) == C.info.dtype:
        _gemm(be, A, B, C, alpha, beta)
        if relu:
            C[:] = be.maximum(C, 0)
    else:
        A, B = _to_compute_dtype(be, A), _to_compute_dtype(be, B)
        array = be.primitives.get_workspace("result", C.shape, A.storage)
        product = Tensor(array, be.tensor_info(C.shape, A.info.dtype))
        _gemm(be, A, B, product, alpha, 0.0)
        value = be.maximum(product, 0) if relu else product
        C[:] = value + beta * C if beta else value
    if bsum is not None:
        bsum[:] = be.sum(C, axis=1)
    return C


def _to_compute_dtype(be: typing.BackendBase, t: Tensor) -> Tensor:
    return t if geometry.compute_dtype(be, t.info.dtype) == t.info.dtype else geometry.as_contiguous(be, t)


def _gemm(be: typing.BackendBase, A: Tensor, B: Tensor, C: Tensor, alpha: float, beta: float) -> None:
    multiply = be.primitives.batch_reduce_gemm if A.ndim == B.ndim == 3 and C.ndim == 2 else be.primitives.gemm
    arrays = A._array, B._array, C._array
    state = ignore_fp_errors()
    try:
        multiply(*arrays, alpha, beta)
    finally:
        restore_fp_errors(state)


def _check_columns(name: str, matrix: Tensor, **columns: Tensor) -> None:
    """Raise ValueError unless each tensor is a column (F, 1) that fits a matrix (F, N)."""
    for argument, t in columns.items():
        if t.shape != (matrix.shape[0], 1):
            raise ValueError(
                f"be.{name}: expected {argument} of shape {(matrix.shape[0], 1)}, one element for each row of "
                f"{describe(matrix)}, got {describe(t)}"
            )


# --- recurrent layers ---


class HasBprop(Protocol):
    """An activation: it returns its derivative, as a function of its outputs."""

    def bprop(self, y: Tensor) -> optree.Operand:
        """Return the derivative."""
        ...


def _check_steps(
    be: typing.BackendBase,
    name: str,
    W: Tensor,
    nout: int,
    num_steps: int,
    num_used_steps: int | None,
    steps: dict[str, Sequence[Tensor]],
    **columns: Tensor,
) -> list[Sequence[Tensor]]:
    """Return the used steps, after checks of their number and shapes."""
    geometry.check_tensors(be, name, W_recur=W, **columns)
    check_shape(f"be.{name}: W_recur", W, (nout, nout), " = (nout, nout)")
    _check_columns(name, W, **columns)
    for argument, s in steps.items():
        if not isinstance(s, Sequence):
            raise TypeError(f"be.{name}: expected a list of tensors, one per step, for {argument}, got {describe(s)}")
    used = num_steps if num_used_steps is None else num_used_steps
    num_steps, used = geometry.check_ints(name, 0, num_steps=num_steps, num_used_steps=used)
    if used > num_steps or any(len(s) < used for s in steps.values()):
        counts = ", ".join(str(len(s)) for s in steps.values())
        raise ValueError(f"be.{name}: expected lists of {used} steps, of num_steps {num_steps}, got lists of {counts}")
    tensors = [x for s in steps.values() for x in s[:used]]
    for t in tensors:
        geometry.check_tensors(be, name, step=t)
        if t.shape != (nout, tensors[0].shape[1]):
            raise ValueError(
                f"be.{name}: expected steps of one shape (nout, N) with nout {nout}, got {describe(t)} "
                f"and {describe(tensors[0])}"
            )
    return [s[:used] for s in steps.values()]


def _zip_steps(steps: Sequence[Sequence[Tensor]], reverse: bool) -> Any:
    zipped = list(zip(*steps, strict=True))
    return reversed(zipped) if reverse else zipped
