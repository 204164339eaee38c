"""Data: what turns files and arrays into minibatches."""

from neonlite.data.augment import Crop, Flip, Shift
from neonlite.data.datasets import DATASETS, Dataset, cifar10, digits, fashion, iris, mnist, mnist5k
from neonlite.data.hdf5 import HDF5Iterator, HDF5IteratorAutoencoder, HDF5IteratorOneHot
from neonlite.data.iterator import ArrayIterator, NervanaDataIterator

__all__ = [
    "DATASETS",
    "ArrayIterator",
    "Crop",
    "Dataset",
    "Flip",
    "HDF5Iterator",
    "HDF5IteratorAutoencoder",
    "HDF5IteratorOneHot",
    "NervanaDataIterator",
    "Shift",
    "cifar10",
    "digits",
    "fashion",
    "iris",
    "mnist",
    "mnist5k",
]
