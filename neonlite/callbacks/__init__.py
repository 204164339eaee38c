"""Training callbacks: recording, progress display, evaluation, checkpoints and early stopping."""

from neonlite.callbacks.callback import Callback, CallbackBase
from neonlite.callbacks.callbacks import Callbacks
from neonlite.callbacks.gan import GANCostCallback, GANPlotCallback
from neonlite.callbacks.history import History
from neonlite.callbacks.progress import ProgressBarCallback, TrainLoggerCallback
from neonlite.callbacks.recording import (
    BatchNormTuneCallback,
    EvalCallback,
    HistCallback,
    LossCallback,
    MetricCallback,
    MultiLabelStatsCallback,
    RunTimerCallback,
    TrainCostCallback,
    TrainMulticostCallback,
)
from neonlite.callbacks.saving import (
    EarlyStopCallback,
    HistoryFileCallback,
    SaveBestStateCallback,
    SerializeModelCallback,
    TerminateOnNaN,
)

__all__ = [
    "BatchNormTuneCallback",
    "Callback",
    "CallbackBase",
    "Callbacks",
    "EarlyStopCallback",
    "EvalCallback",
    "GANCostCallback",
    "GANPlotCallback",
    "HistCallback",
    "History",
    "HistoryFileCallback",
    "LossCallback",
    "MetricCallback",
    "MultiLabelStatsCallback",
    "ProgressBarCallback",
    "RunTimerCallback",
    "SaveBestStateCallback",
    "SerializeModelCallback",
    "TerminateOnNaN",
    "TrainCostCallback",
    "TrainLoggerCallback",
    "TrainMulticostCallback",
]
