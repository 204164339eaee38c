"""Callbacks that save the model or the history."""

from __future__ import annotations

from pathlib import Path

from neonlite.backend.validation import import_extra, integer
from neonlite.callbacks.callback import PRIORITY_CHECKPOINT, PRIORITY_SAVE, Callback
from neonlite.files import check_writable
from neonlite.messages import describe


class SerializeModelCallback(Callback):
    """Save a checkpoint every so many epochs, and when training is interrupted.

    It runs after all other callbacks, so the checkpoint contains all records of the epoch. Weights with NaN or infinity
    never replace a file: they are saved to ``save_path`` + ".nan".

    Parameters
    ----------
    save_path : str or Path
        The file to write.
    epoch_freq : int or list of int
        Save every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.
    history : int
        If above 1, also keep the files of the last ``history`` saves, named PATH_EPOCHS.EXT by the number of
        complete epochs. Default: 1.

    Raises
    ------
    TypeError
        When training starts: the model or its optimizer cannot be serialized.
    ValueError
        If ``epoch_freq`` is 0 or an empty list.
    """

    priority = PRIORITY_CHECKPOINT

    def __init__(self, save_path: str | Path, epoch_freq: int | list[int] = 1, history: int = 1) -> None:
        super().__init__(epoch_freq)
        if not self.epoch_freq:
            raise ValueError(
                f"SerializeModelCallback: expected an epoch_freq of at least 1, or a list of epochs, got {epoch_freq}, "
                "which saves nothing. Leave the callback out."
            )
        self.save_path = self.output_path = check_writable("save_path", save_path)
        self.history = integer("SerializeModelCallback: history", history, 1)
        self.saved_epochs: list[int] = []  # those that have a file PATH_EPOCHS.EXT

    def on_train_begin(self, epochs: int) -> None:
        check_savable(self, self.save_path)

    def on_epoch_end(self, epoch: int) -> None:
        if not self.should_fire(epoch, self.epoch_freq):
            return
        if self.history > 1 and not self.model.nonfinite_weights():
            before = self.saved_epochs
            epochs = epoch + 1  # of which it is the checkpoint
            self.saved_epochs = [*(x for x in before if x < epochs), epochs][-self.history :]
            self.model.save_params(self.epoch_path(epochs))
            for old in set(before) - set(self.saved_epochs):
                self.epoch_path(old).unlink(missing_ok=True)
        self.model.save_params(self.save_path)  # after the other files, so that its list of saved epochs matches them

    def epoch_path(self, epochs: int) -> Path:
        """Return the path of the checkpoint after a number of epochs.

        Parameters
        ----------
        epochs : int
            The number of complete epochs, from 1.

        Returns
        -------
        Path
            PATH_EPOCHS.EXT for the ``save_path`` PATH.EXT.
        """
        path = Path(self.save_path)
        return path.with_name(f"{path.stem}_{epochs}{path.suffix}")

    def on_interrupt(self) -> None:
        self.model.save_params(self.save_path)

    def get_state(self) -> object:
        return self.saved_epochs if self.history > 1 else None

    def set_state(self, state: object) -> None:
        if not isinstance(state, list):
            raise ValueError(f"SerializeModelCallback: expected a list of epochs as its state, got {describe(state)}")
        self.saved_epochs = [integer("SerializeModelCallback: an epoch", x, 1) for x in state]


def check_savable(callback: Callback, path: str) -> None:
    """Raise TypeError if a model cannot be saved, as with an optimizer that cannot be serialized."""
    try:
        callback.model.check_savable()
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{callback.classnm}: this training cannot be saved to {path}: {error}") from error


class HistoryFileCallback(Callback):
    """Write the history to an HDF5 file after each epoch.

    Parameters
    ----------
    path : str or Path
        The file to write.

    Raises
    ------
    ImportError
        h5py is not installed.
    """

    priority = PRIORITY_SAVE
    rank_0_only = True

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = self.output_path = check_writable("output_file", path)
        import_extra("h5py", "an HDF5 file", "hdf5")

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.write(self.path)
