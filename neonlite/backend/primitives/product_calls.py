"""Which products run at once?  Those into a given tensor: of matrices, of stacks, of a recurrent layer's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite.backend.executors.quiet import hush, speak
from neonlite.backend.primitives.places import Places
from neonlite.backend.stored import read, written
from neonlite.backend.tensor import Tensor, overlap
from neonlite.optree import describe

FORMS = 1024  # forms of products that are remembered


class ProductCalls(Places):
    """The backend's methods for products, fully connected layers, recurrent layers and look-up tables."""

    _fitting: set[tuple[Any, ...]]  # the Infos of operands that were found to fit

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
        """Compute ``C = alpha A B + beta C`` and return C; ``relu`` takes max(alpha A B, 0) before beta C is added.

        (m, k), (k, n), (m, n); A and B may be transposed views. ``bsum`` (m, 1) takes the sums of the rows of C.
        With beta 0, C is not read. ValueError for shapes that do not fit, TypeError for dtypes that differ.
        """
        return self._matrices("compound_dot", A, B, C, alpha, beta, relu, bsum)

    def _matrices(
        self, name: str, A: Tensor, B: Tensor, C: Tensor, alpha: float, beta: float, relu: bool, bsum: Tensor | None
    ) -> Tensor:
        if self.closed:
            self._named(name, self._check_open)
        forms = getattr(A, "info", None), getattr(B, "info", None), getattr(C, "info", None)
        if forms not in self._fitting:
            self._own(name, A=A, B=B, C=C)
            if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0] or C.shape != (A.shape[0], B.shape[1]):
                raise ValueError(
                    f"be.{name} takes A (m, k), B (k, n) and C (m, n); got A {describe(A)}, B {describe(B)}, "
                    f"C {describe(C)}"
                )
            self._one_float(name, A=A, B=B, C=C)
            if len(self._fitting) >= FORMS:
                self._fitting.clear()
            self._fitting.add(forms)
        return self._product(name, A, B, C, alpha, beta, relu, bsum)

    def batched_dot(
        self, A: Tensor, B: Tensor, C: Tensor, alpha: float = 1.0, beta: float = 0.0, relu: bool = False
    ) -> Tensor:
        """Compute ``C = alpha A B + beta C`` for stacks of X matrices, and return C; ``relu`` as in ``compound_dot``.

        ``batched_dot(A, B, C)``: A (K, C), B (X, C, N), C (X, K, N). ``batched_dot(A.T, B, C)``: A (K, C), B (X, K, N),
        C (X, C, N). ``batched_dot(A, B.T, C)``: A (X, K, N), B (X, C, N), C (K, C), the sum over X.
        """
        self._own("batched_dot", A=A, B=B, C=C)
        stacks = {t.shape[0] for t in (A, B, C) if t.ndim == 3}
        (m, k), (k2, n) = A.shape[-2:], B.shape[-2:]
        fits = {A.ndim, B.ndim, C.ndim} <= {2, 3} and (A.ndim == 3 or B.ndim == 3) and len(stacks) == 1
        if not fits or k != k2 or C.shape[-2:] != (m, n) or (C.ndim == 2 and not A.ndim == B.ndim == 3):
            raise ValueError(
                "be.batched_dot takes A (K, C), B (X, C, N), C (X, K, N), or A (X, K, N), B.T (X, N, C), C (K, C); "
                f"got A {describe(A)}, B {describe(B)}, C {describe(C)}"
            )
        self._one_float("batched_dot", A=A, B=B, C=C)
        return self._product("batched_dot", A, B, C, alpha, beta, relu, None)

    def _product(
        self, name: str, A: Tensor, B: Tensor, C: Tensor, alpha: float, beta: float, relu: bool, bsum: Tensor | None
    ) -> Tensor:
        if type(alpha) is not float or type(beta) is not float:
            alpha, beta = self._numbers(name, alpha=alpha, beta=beta)
        if bsum is not None:
            self._own(name, bsum=bsum)
            self._check_columns(name, C, bsum=bsum)
        alone = overlap(A, C) == overlap(B, C) == "none"
        if alone and not (relu and beta) and self._computed_in(C.info.dtype) == C.info.dtype:
            self._multiply(A, B, C, alpha, beta)
            if relu:
                C[:] = self.maximum(C, 0)
        else:
            A, B = self._wider(A), self._wider(B)
            array = self.primitives.scratch("result", C.shape, A.storage)
            product = Tensor(array, self.leaf_info(C.shape, A.info.dtype))
            self._multiply(A, B, product, alpha, 0.0)
            value = self.maximum(product, 0) if relu else product
            C[:] = value + beta * C if beta else value
        if bsum is not None:
            bsum[:] = self.sum(C, axis=1)
        return C

    def _wider(self, t: Tensor) -> Tensor:
        return t if self._computed_in(t.info.dtype) == t.info.dtype else self._dense(t)

    def _multiply(self, A: Tensor, B: Tensor, C: Tensor, alpha: float, beta: float) -> None:
        multiply = self.primitives.summed if A.ndim == B.ndim == 3 and C.ndim == 2 else self.primitives.gemm
        if self.ledger.has_rooms:
            arrays = read(A), read(B), written(C, whole=beta == 0)
        else:
            arrays = A.storage, B.storage, C.storage
        state = hush()
        try:
            multiply(*arrays, alpha, beta)
        finally:
            speak(state)

    def xnor_compound_dot(
        self, A: Tensor, B: Tensor, C: Tensor, beta: float = 0.0, bsum: Tensor | None = None
    ) -> Tensor:
        """Compute ``C = A B + beta C`` for A and B of +1 and -1, and return C: what XNOR and counting make."""
        return self._matrices("xnor_compound_dot", A, B, C, 1.0, beta, False, bsum)

    # --- fully connected layers ---

    def add_fc_bias(self, inputs: Tensor, bias: Tensor) -> Tensor:
        """Add a bias (F, 1) to each column of ``inputs`` (F, N), in place, and return it."""
        self._own("add_fc_bias", inputs=inputs, bias=bias)
        self._check_columns("add_fc_bias", inputs, bias=bias)
        inputs[:] = inputs + bias
        return inputs

    def update_fc_bias(self, err: Tensor, out: Tensor) -> Tensor:
        """Compute ``out = sum of the columns of err``, the gradient of a bias, and return it: (F, N), (F, 1)."""
        self._own("update_fc_bias", err=err, out=out)
        self._check_columns("update_fc_bias", err, out=out)
        out[:] = self.sum(err, axis=1)
        return out

    def _check_columns(self, name: str, wide: Tensor, **columns: Tensor) -> None:
        """Raise ValueError unless each is a column, (F, 1), beside a tensor (F, N)."""
        for what, t in columns.items():
            if t.shape != (wide.shape[0], 1):
                raise ValueError(
                    f"be.{name}: {what} has the shape {(wide.shape[0], 1)}, one element for each row of "
                    f"{describe(wide)}; got {describe(t)}"
                )

    # --- recurrent layers ---

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
        activation: Callable[[Any], Any],
        reverse: bool = False,
    ) -> None:
        """Compute ``h[t] = activation(W_recur h_prev[t] + h_ff[t] + bias)``, step by step; ``reverse``: last first.

        W_recur (nout, nout), bias (nout, 1); each step (nout, N). Steps from ``num_used_steps`` on are left alone.
        """
        steps = {"h_prev_s": h_prev_s, "h_ff_s": h_ff_s, "h_s": h_s}
        used = self._steps("compound_rnn_unroll_fprop", W_recur, nout, num_steps, num_used_steps, steps, bias=bias)
        for h_prev, h_ff, h in self._in_order(used, reverse):
            h[:] = activation(self.dot(W_recur, h_prev) + h_ff + bias)

    def compound_rnn_unroll_bprop(
        self,
        W_recur: Tensor,
        delta_prev_s: Sequence[Tensor],
        delta_s: Sequence[Tensor],
        h_s: Sequence[Tensor],
        nout: int,
        num_steps: int,
        num_used_steps: int | None,
        activation: Any,
        reverse: bool = True,
    ) -> None:
        """Compute ``delta[t] *= activation.bprop(h[t])``, ``delta_prev[t] += W_recur^T delta[t]``, last step first.

        ``reverse=False`` begins with the first step, for a layer that ran from the last.
        """
        steps = {"delta_prev_s": delta_prev_s, "delta_s": delta_s, "h_s": h_s}
        used = self._steps("compound_rnn_unroll_bprop", W_recur, nout, num_steps, num_used_steps, steps)
        for delta_prev, delta, h in self._in_order(used, reverse):
            true = getattr(activation, "backward", None)  # bprop may be a shortcut, as Softmax's is
            delta[:] = true(delta, h) if true else activation.bprop(h) * delta
            delta_prev[:] = delta_prev + self.dot(W_recur.T, delta)

    compound_rnn_unroll_fprop_bibnrnn = compound_rnn_unroll_fprop
    compound_rnn_unroll_bprop_bibnrnn = compound_rnn_unroll_bprop

    def _steps(
        self,
        name: str,
        W: Tensor,
        nout: int,
        num_steps: int,
        num_used_steps: int | None,
        steps: dict[str, Sequence[Tensor]],
        **more: Tensor,
    ) -> list[Sequence[Tensor]]:
        """Return the steps that are used, after checks of their number and shapes."""
        self._own(name, W_recur=W, **more)
        if W.shape != (nout, nout):
            raise ValueError(f"be.{name}: W_recur has the shape {(nout, nout)} = (nout, nout); got {describe(W)}")
        self._check_columns(name, W, **more)
        for what, s in steps.items():
            if not isinstance(s, Sequence):
                raise TypeError(f"be.{name}: {what} is a list with a tensor for each step; got {describe(s)}")
        used = num_steps if num_used_steps is None else num_used_steps
        num_steps, used = self._whole_numbers(name, 0, num_steps=num_steps, num_used_steps=used)
        if used > num_steps or any(len(s) < used for s in steps.values()):
            counts = ", ".join(str(len(s)) for s in steps.values())
            raise ValueError(f"be.{name}: {used} of {num_steps} steps are asked for; the lists hold {counts}")
        every = [x for s in steps.values() for x in s[:used]]
        for t in every:
            self._own(name, step=t)
            if t.shape != (nout, every[0].shape[1]):
                raise ValueError(
                    f"be.{name}: a step has the shape (nout, N) with nout {nout}; got {describe(t)} "
                    f"beside {describe(every[0])}"
                )
        return [s[:used] for s in steps.values()]

    @staticmethod
    def _in_order(steps: Sequence[Sequence[Tensor]], reverse: bool) -> Any:
        together = list(zip(*steps, strict=True))
        return reversed(together) if reverse else together

    # --- look-up tables ---

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
        """Compute ``dW[w] = alpha * sum of the columns of error whose word is w, + beta dW[w]``, and return dW.

        inputs: nin * N words in the order of the columns of error (dim, nin * N); error_t (nin * N, dim), where given,
        takes the transpose of error; dW (vocabulary, dim). The row ``pad_idx`` gets no gradient.
        """
        given = {} if error_t is None else {"error_t": error_t}
        self._own("compound_bprop_lut", inputs=inputs, error=error, dW=dW, **given)
        alpha, beta = self._numbers("compound_bprop_lut", alpha=alpha, beta=beta)
        (nin,) = self._whole_numbers("compound_bprop_lut", 0, nin=nin)
        if pad_idx is not None:
            self._whole_numbers("compound_bprop_lut", 0, pad_idx=pad_idx)
        dim, words = error.shape[0], inputs.size
        if error.shape != (dim, words) or dW.shape[1:] != (dim,) or (words % nin if nin else words):
            raise ValueError(
                "be.compound_bprop_lut takes inputs of nin * N words, error (dim, nin * N) and dW (vocabulary, dim); "
                f"got nin {nin}, inputs {describe(inputs)}, error {describe(error)}, dW {describe(dW)}"
            )
        if error_t is not None and error_t.shape != (words, dim):
            raise ValueError(
                f"be.compound_bprop_lut: error_t has the shape {(words, dim)} = (nin * N, dim); got {describe(error_t)}"
            )
        word = self._dense(inputs).reshape(-1, 1)
        if "int" not in word.info.dtype:
            word = self.astype(word, "int32")
        each = error.T if pad_idx is None else self.where(word == pad_idx, 0, error.T)
        total = self.build("scatter", each, word, axis=0, size=dW.shape[0])
        total = total if alpha == 1 else alpha * total  # as it is, it goes right into dW
        self._named("compound_bprop_lut", dW.copy_from, total + beta * dW if beta else total)
        if error_t is not None:
            error_t[:] = error.T
        return dW
