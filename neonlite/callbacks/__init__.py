"""Training callbacks: recording, progress display, evaluation, checkpoints, early stopping and logs."""

from typing import TYPE_CHECKING

from neonlite.callbacks.callback import Callback, CallbackBase
from neonlite.callbacks.callbacks import Callbacks
from neonlite.callbacks.history import History
from neonlite.callbacks.loggers import (
    CSVLogger,
    LiveCurves,
    ProgressBarCallback,
    TensorBoardLogger,
    TrainLoggerCallback,
)
from neonlite.callbacks.monitoring import (
    EarlyStop,
    EarlyStopCallback,
    HistoryFileCallback,
    MonitorCallback,
    ReduceOnPlateau,
    SaveBestStateCallback,
    SerializeModelCallback,
    TerminateOnNaN,
)
from neonlite.callbacks.recording import (
    BatchNormTuneCallback,
    EvalCallback,
    GANCostCallback,
    GANPlotCallback,
    HistCallback,
    LossCallback,
    MetricCallback,
    MultiLabelStatsCallback,
    RunTimerCallback,
    TrainCostCallback,
    TrainMulticostCallback,
)
from neonlite.name_hints import module_getattr

__all__ = [
    "BatchNormTuneCallback",
    "CSVLogger",
    "Callback",
    "CallbackBase",
    "Callbacks",
    "EarlyStop",
    "EarlyStopCallback",
    "EvalCallback",
    "GANCostCallback",
    "GANPlotCallback",
    "HistCallback",
    "History",
    "HistoryFileCallback",
    "LiveCurves",
    "LossCallback",
    "MetricCallback",
    "MonitorCallback",
    "MultiLabelStatsCallback",
    "ProgressBarCallback",
    "ReduceOnPlateau",
    "RunTimerCallback",
    "SaveBestStateCallback",
    "SerializeModelCallback",
    "TensorBoardLogger",
    "TerminateOnNaN",
    "TrainCostCallback",
    "TrainLoggerCallback",
    "TrainMulticostCallback",
]

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)
