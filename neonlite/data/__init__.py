"""Data sets, iterators over minibatches, augmentation and text processing."""

from typing import TYPE_CHECKING

# fmt: off
# ruff: isort: off
from neonlite.data.datasets import (
    CIFAR10, DATASETS, IMDB, MNIST, PTB, Corpus, Dataset, HutterPrize, Shakespeare, cifar10, digits, fashion, iris,
    mnist, mnist5k, python_docs, text_file,
)
from neonlite.data.file_formats import HDF5Iterator, HDF5IteratorAutoencoder, HDF5IteratorOneHot
from neonlite.data.iterator import ArrayIterator, NervanaDataIterator
from neonlite.data.minibatches import Crop, Flip, MappedArray, Shift
from neonlite.data.sequences import CopyTask, PrioritySortTask, RepeatCopyTask, Reversal, Task, Ticker, TimeSeries
from neonlite.data.text import TOKENIZERS, Text, TextNMT, clean_string, get_paddedXY, pad_data, pad_sentences
from neonlite.name_hints import module_getattr

__all__ = [
    "CIFAR10", "DATASETS", "IMDB", "MNIST", "PTB", "TOKENIZERS", "ArrayIterator", "CopyTask", "Corpus", "Crop",
    "Dataset", "Flip", "HDF5Iterator", "HDF5IteratorAutoencoder", "HDF5IteratorOneHot", "HutterPrize",
    "MappedArray", "NervanaDataIterator", "PrioritySortTask", "RepeatCopyTask", "Reversal", "Shakespeare", "Shift",
    "Task", "Text", "TextNMT", "Ticker", "TimeSeries", "cifar10", "clean_string", "digits", "fashion", "get_paddedXY",
    "iris", "mnist", "mnist5k", "pad_data", "pad_sentences", "python_docs", "text_file",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)
