"""Calls that mypy checks. One with ``type: ignore`` must be an error: mypy reports a comment that is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    print(tree)
