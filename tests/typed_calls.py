"""Calls that mypy checks. One with ``type: ignore`` must be an error: mypy reports a comment that is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    import neonlite as nl
    from neonlite.callbacks import History
    from neonlite.data import ArrayIterator


def calls_of_models(model: nl.Model, X: NDArray[Any], y: list[str], data: ArrayIterator) -> None:
    history: History = model.fit(X, y, epochs=3, optimizer="adam")
    model.fit(data, "cross_entropy", nl.optimizers.Adam(0.01), 3)
    model.fit(1, 2, 3, 4)  # type: ignore[call-overload]
    model.fit(X, y, epoch=3)  # type: ignore[call-overload]
    model.fit(X, y, epochs="3")  # type: ignore[call-overload]
    outputs: NDArray[Any] = model.predict(X, batch_size=8)
    model.predict(X, batch_size="8")  # type: ignore[arg-type]
    model.predict(X, batch=8)  # type: ignore[call-arg]
    scores: dict[str, Any] = model.evaluate(X, y, ["accuracy"])
    model.evaluate(X, y, 3)  # type: ignore[arg-type]
    print(history.to_pandas(), outputs, scores)


def calls_of_layers() -> None:
    nl.layers.Affine(10, activation="relu")
    nl.layers.Affine("10")  # type: ignore[arg-type]
    nl.layers.Affine(10, activaton="relu")  # type: ignore[call-arg]
    nl.layers.Dense(10)  # type: ignore[attr-defined]


def calls_of_a_backend(be: nl.Backend, x: nl.Tensor) -> None:
    tree: nl.OpTreeNode = be.sum(x * 2, axis=0)
    be.sum(x, axes=0)  # type: ignore[call-overload]
    assert_type(be.astype(tree, "float64"), nl.OpTreeNode)
    print(x[[0, 2]], x[:, [1]], x[x > 0], nl.backend.info())


def operators(be: nl.Backend, x: nl.Tensor) -> None:
    f = be.log(be.exp(x) + 1)
    for tree in (x + 1, 1 + x, f + 1, 1 - f, f * x, x * f, 2 * f, f @ x, -f, f > 1, f > 1, f == x, x != f, f & 1):
        assert_type(tree, nl.OpTreeNode)
    x += 1
    assert_type(x, nl.Tensor)
    gradient = nl.Autodiff(f, be, be.ones(f.shape, name="e")).get_grad_op_tree(x)
    assert_type(gradient, nl.OpTreeNode)
    assert_type(nl.Autodiff(f, be).get_grad_op_tree([x]), list[nl.OpTreeNode])
    print(gradient.pp(), gradient.astensor(), gradient[0], len(gradient), [*gradient])


def creation(be: nl.Backend, a: NDArray[np.float32]) -> None:
    for t in (be.zeros((2, 3)), be.empty(3), be.ones((1, 2), dtype="int32"), be.array([[1.0, 2.0]]), be.array(a)):
        assert_type(t, nl.Tensor)
    assert_type(be.zeros_like(a), nl.Tensor)
    assert_type(be.rand(2, 3), nl.OpTreeNode)
    assert_type(be.onehot([0, 1], axis=0, nclass=2), nl.OpTreeNode)


def operators_with_numbers_and_arrays(x: nl.Tensor, f: nl.OpTreeNode, a: NDArray[np.float32], s: np.float32) -> None:
    for tree in (x + a, f * a, x @ a, x > a, s * x, x * s, True * x, 2**f, f**2, f // 2, f % 2, x << 1, ~x, abs(f), +f):
        assert_type(tree, nl.OpTreeNode)
    assert_type(round(x, 2), nl.OpTreeNode)
    assert_type(divmod(f, 2), tuple[nl.OpTreeNode, nl.OpTreeNode])
    assert_type(float(f), float)


def indices(x: nl.Tensor, a: NDArray[np.bool]) -> None:
    for view in (x[0], x[0, 1], x[:, 0:1], x[..., 0], x[[0, 1]], x[a], x[x > 0]):
        assert_type(view, nl.Tensor)
    for row in x:
        assert_type(row, nl.Tensor)
    x[0] = 1
    x[:] = [[1, 2], [3, 4]]
    x[:, 0] = x + 1


def methods(be: nl.Backend, x: nl.Tensor, f: nl.OpTreeNode) -> None:
    for tree in (x.sum(), f.mean(0), f.max(axis=1), x.std(keepdims=False), x.all(), f.clip(0, 1), x.round(), f.ravel()):
        assert_type(tree, nl.OpTreeNode)
    for tree in (
        f.T,
        f.mT,
        f.transpose(),
        f.reshape(4, 1),
        f.astype("float64"),
        be.reshape(f, 4, 1),
        be.astype(f, int),
    ):
        assert_type(tree, nl.OpTreeNode)
    for t in (x.T, x.mT, x.transpose(), x.reshape((4, -1)), x.sum(out=x), f.clip(0, 1, x), x.copy(), x.fill(0)):
        assert_type(t, nl.Tensor)
    assert_type(x.shape, tuple[int, ...])
    assert_type(f.shape, tuple[int, ...])
    assert_type(x.item(), float)


def functions_of_a_backend(be: nl.Backend, x: nl.Tensor) -> None:
    trees = [
        be.where(x > 0, x, 0),
        be.clip(x, 0, 1),
        be.softmax(x),
        be.mean(x),
        be.concat([x, x], 1),
        be.take(x, [0], 1),
    ]
    for tree in (*trees, be.transpose(x), be.einsum("ij,jk->ik", x, x), be.argmax(x), be.maximum(x, 0), be.var(x, 0)):
        assert_type(tree, nl.OpTreeNode)
    for t in (be.exp(x, out=x), be.sum(x, 0, x), be.mean(x, out=x), be.where(x, x, 0, x), be.reshape(x, 4, 1, out=x)):
        assert_type(t, nl.Tensor)
    assert_type(be.check_grad(be.exp(x)).ok, bool)
    be.expp(x)  # type: ignore[attr-defined]


def functions_of_the_standard(be: nl.Backend, a: NDArray[np.float32]) -> None:
    xp = be.array_api
    v = xp.asarray([1.0, 2.0])
    for y in (
        xp.exp(v),
        xp.sum(v * v, axis=0),
        xp.where(v > 1, v, 0),
        xp.zeros((2, 3)),
        xp.linalg.inv(v),
        v + 1,
        1 - v,
    ):
        assert_type(y, nl.array_api.Array)
    for y in (v == 1, v[0], v[v > 1], v.sum(), v.mean(axis=0), v.T, v.astype(xp.float64), v.reshape(2, 1), v + a):
        assert_type(y, nl.array_api.Array)
    assert_type(nl.array_api.exp(v), nl.array_api.Array)
    assert_type(xp.linalg.svd(v).S, nl.array_api.Array)
    assert_type(xp.pi, float)
    assert_type(nl.Autodiff(xp.sum(v * v)).get_grad_op_tree(v), nl.array_api.Array)
    assert_type(nl.Autodiff(xp.sum(v * v)).get_grad_op_tree([v]), list[nl.array_api.Array])
    xp.det(v)  # type: ignore[attr-defined]
    xp.sum(v, dim=0)  # type: ignore[call-arg]


def networks(be: nl.Backend, x: nl.Tensor, model: nl.Model, train: ArrayIterator) -> None:
    net = nl.layers.Sequential([nl.layers.Affine(10, name="fc"), nl.layers.LSTM(3)])
    assert_type(net.configure(4), nl.layers.Sequential)
    print(net.fprop(x).get(), net["fc"].W.shape, model["fc"].W.get(), model[0].in_shape, model.layers.parameters)
    assert_type(nl.layers.LSTM(3).W_input, nl.Tensor)
    for layer in model:
        assert_type(layer.name, str)
    for inputs, targets in train:
        print(inputs.get(), targets.shape)
    assert_type(model.get_weights(), dict[str, NDArray[Any]])
    model.set_weights(model.get_weights())
    model.load_params(model.save_params("model.neon"))


if TYPE_CHECKING:

    class Doubled(nl.layers.Layer):
        """A layer with the parameters of neon's layers."""

        def fprop(self, inputs: nl.Tensor, inference: bool = False) -> nl.Tensor:
            self.outputs[:] = inputs * 2
            return inputs

        def bprop(self, error: nl.Tensor) -> nl.Tensor:
            error[:] = 2 * error
            return error
