"""Save and load models: weights, checkpoints and descriptions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from neonlite.backend.interrupt import defers_interrupt
from neonlite.backend.lock import exclusive
from neonlite.backend.validation import checks_arguments
from neonlite.backend.warn import warn
from neonlite.files import check_writable
from neonlite.models.checkpoint import write_checkpoint
from neonlite.models.nonfinite import nonfinite, shortened_list
from neonlite.models.training_state import TrainingState

if TYPE_CHECKING:
    from pathlib import Path

    from neonlite.data import NervanaDataIterator
    from neonlite.models.model import Model
    from neonlite.typing import ArrayLike, ShapeLike


@exclusive
def get_weights(model: Model) -> dict[str, NDArray[Any]]:
    """Return copies of all weights.

    Returns
    -------
    dict of numpy.ndarray
        The arrays by name: "fc.W" is the W of the layer fc.
    """
    weights: dict[str, NDArray[Any]] = model.layers.get_weights()
    return weights


@defers_interrupt
@exclusive
@checks_arguments
def set_weights(model: Model, weights: Mapping[str, ArrayLike], partial: bool = False) -> None:
    """Copy arrays into the weights.

    Parameters
    ----------
    weights : dict of array_like
        The arrays, by the names of ``get_weights``.
    partial : bool
        Whether weights may be missing; these are unchanged. Default: False.

    Raises
    ------
    ValueError
        A name or a shape does not match.
    """
    model.layers.set_weights(weights, partial)


@defers_interrupt
@checks_arguments
def save_params(model: Model, path: str | Path, keep_states: bool = True, check_finite: bool = True) -> str:
    """Save a checkpoint.

    The file is written atomically: an existing file is replaced by a complete one, or is unchanged. In a ``fit`` in
    several processes, all of them call this method, and rank 0 writes the file.

    Parameters
    ----------
    path : str or Path
        The file to write.
    keep_states : bool
        Whether to save the training state as well: optimizer, progress, random streams, position of the data.
        Default: True.
    check_finite : bool
        Whether to save weights with NaN or infinity to ``path`` + ".nan" instead, with a RuntimeWarning. Default:
        True.

    Returns
    -------
    str
        The path of the file that was written: ``path``, or ``path`` + ".nan".

    Raises
    ------
    OSError
        The path cannot be written, such as a folder or a device.
    TypeError
        ``path`` is not a path, or the model cannot be saved; see ``check_savable``.
    """
    file = check_writable(f"{model.name}.save_params", path)
    description, arrays = TrainingState.from_model(model, keep_states)
    weights = (pair for pair in arrays.items() if pair[0].startswith("weights/"))
    if check_finite and (names := [name.partition("/")[2] for name in nonfinite(weights)]):
        problem = f"{model.name}.save_params: {shortened_list(names)} contain NaN or infinity"
        warn(f"{problem}. Saved to {file}.nan instead of {path}.", RuntimeWarning)
        file += ".nan"
    if model.data_parallel is None or model.data_parallel.communicator.rank == 0:
        write_checkpoint(file, description, arrays)
    return file


@checks_arguments
def check_savable(model: Model, keep_states: bool = True) -> None:
    """Raise an error if ``save_params`` cannot save the model. Nothing is written.

    Parameters
    ----------
    keep_states : bool
        Whether the training state would be saved as well. Default: True.

    Raises
    ------
    TypeError
        A layer, the optimizer or ``metadata`` contains something that is not JSON data, such as a function. The
        message names it.
    """
    TrainingState.describe(model, keep_states)


@defers_interrupt
@exclusive
@checks_arguments
def load_params(model: Model, path: str | Path | dict[str, Any], load_states: bool = True) -> None:
    """Load a checkpoint into this network.

    The layers are matched by name, or else those with weights by order and type.

    Parameters
    ----------
    path : str, Path or dict
        The file, or the return value of ``serialize``.
    load_states : bool
        Whether to load the training state as well, so that ``fit`` continues from there. Default: True.

    Raises
    ------
    CheckpointError
        The file is not a checkpoint, or one of another network. The model is unchanged.
    """
    TrainingState.read(path).restore(model, load_states)


def load_weights(model: Model, path: str | Path, load_states: bool = True) -> None:
    """Load parameters and states, as ``load_params`` does; deprecated in neon.

    Parameters
    ----------
    path, load_states
        See ``load_params``.
    """
    warnings.warn("Model.load_weights is deprecated; use load_params", DeprecationWarning, stacklevel=2)
    model.load_params(path, load_states)


@checks_arguments
def get_description(model: Model, get_weights: bool = False, keep_states: bool = False) -> dict[str, Any]:
    """Return the description that checkpoints contain.

    Parameters
    ----------
    get_weights : bool
        Whether to add the arrays, as "arrays". Default: False.
    keep_states : bool
        Whether to add the training state, as "training". Default: False.

    Returns
    -------
    dict
        JSON data, besides the arrays.
    """
    description, arrays = TrainingState.from_model(model, keep_states)
    return {**description, "arrays": arrays} if get_weights else description


@checks_arguments
def serialize(model: Model, fn: str | Path | None = None, keep_states: bool = True) -> dict[str, Any]:
    """Return the description with all arrays.

    Parameters
    ----------
    fn : str or Path, optional
        A file to save the checkpoint to as well.
    keep_states : bool
        Whether to include the training state. Default: True.

    Returns
    -------
    dict
        JSON data, and the arrays as "arrays".
    """
    if fn is not None:
        model.save_params(fn, keep_states)
    return model.get_description(get_weights=True, keep_states=keep_states)


@checks_arguments
def deserialize(
    model: Model,
    model_dict: dict[str, Any],
    data: NervanaDataIterator | ShapeLike | None = None,
    load_states: bool = True,
) -> None:
    """Load the return value of ``serialize``.

    Parameters
    ----------
    model_dict : dict
        The description with the arrays.
    data : iterator or shape, optional
        Data to allocate buffers for.
    load_states : bool
        Whether to load the training state as well. Default: True.
    """
    model.load_params(model_dict, load_states)
    if data is not None:
        model.initialize(data)
