"""Copies and pickles of models, through the content of checkpoints."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from neonlite.backend.serialization import constructor_arguments

if TYPE_CHECKING:
    from neonlite.models.model import Model

SAVED_ARGUMENTS = ("layers", "dataset", "weights_only", "name", "optimizer")  # constructor arguments in a checkpoint


def copy(model: Model) -> Model:
    """Return an independent copy of the model, as if it were saved and loaded.

    It has the weights, the optimizer and its states, the progress of the training, the preprocessing and ``metadata``.
    Buffers, the cost and the callbacks are not copied. ``copy.copy``, ``copy.deepcopy`` and ``pickle`` do the same; a
    pickle is loaded onto the current backend of the process that loads it.

    Returns
    -------
    Model
        The copy.

    Raises
    ------
    TypeError
        The model cannot be saved; see ``check_savable``. Or the constructor of a subclass has no argument ``layers``,
        or other arguments without an attribute of the same name.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.layers import Linear
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> model = nl.Model([Linear(1, "ones", name="sum")])
    >>> model.initialize(3)
    >>> other = model.copy()
    >>> other.layers["sum"].W[:] = 0
    >>> model.layers["sum"].W.get()
    array([[1., 1., 1.]], dtype=float32)
    """
    create, arguments = reduce(model)
    result: Model = create(*arguments)
    return result


def reduce(model: Model) -> tuple[Any, ...]:
    """Return a function and its arguments that create a copy, for ``copy`` and ``pickle``."""
    arguments = constructor_arguments(type(model))
    names = [x for x in arguments if x not in SAVED_ARGUMENTS]
    if "layers" not in arguments or not all(hasattr(model, name) for name in names):
        raise TypeError(
            f"{model.name}: expected a constructor of {model.classnm} with the argument layers, and an attribute for "
            f"each other argument, got {', '.join(arguments)}. Override __reduce__, or use save_params and load_params."
        )
    options = {name: getattr(model, name) for name in names}
    if model.layers.in_shape is None:  # nothing to save yet
        layers, optimizer = deepcopy((model.layers, model.optimizer))
        return create_model, (type(model), layers, {**options, "optimizer": optimizer}, model.name, model.metadata)
    return create_model, (type(model), model.serialize(), options, model.name)


def create_model(
    cls: type[Model], layers: Any, options: dict[str, Any], name: str, metadata: dict[str, Any] | None = None
) -> Model:
    """Create a model from a container or the return value of ``serialize``."""
    model = cls(layers, name=name, **options)
    if metadata is not None:
        model.metadata = deepcopy(metadata)
    return model
