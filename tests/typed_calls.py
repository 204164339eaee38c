"""Calls that mypy checks. One with ``type: ignore`` must be an error: mypy reports a comment that is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

if TYPE_CHECKING:
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
    assert_type(be.astype(tree, "float64").astensor(), nl.Tensor)
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
