"""Input encoders: convert arrays, data frames and texts to the inputs of a network, and describe how in checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.objects import Serializable
from neonlite.backend.validation import check_number, check_numbers, distinct, integer, one_of, sequence, warn
from neonlite.data.iterator import check_all_finite, to_array, transpose_hint
from neonlite.data.minibatches import MappedArray
from neonlite.data.text import PAD, UNK, get_tokenizer
from neonlite.encoders import (
    Column,
    finite_numbers,
    frame_columns,
    holds_pairs,
    is_frame,
    read_column,
    refuse_unread,
    to_numpy,
)
from neonlite.messages import describe, wording
from neonlite.typing import LayerShape, is_real_array

LAYOUTS = {2: ("NF", "NT"), 3: ("NHW", "NFT", "NTF"), 4: ("NCHW", "NHWC"), 5: ("NCDHW",)}  # by the number of axes
LAYOUT_DOC = (
    "N samples, F features, T time steps, C channels, images H x W: NF, NT (token ids), NHW, NFT, NTF, NCHW or NHWC"
)
NETWORK_AXES = "NCDHWFT"  # the order of axes in a network
NUM_CHANNELS = (1, 3, 4)  # by which the channels of images are recognized
MAX_CATEGORIES = 1000  # of a column; with more it is text
MAX_TEXT_TOKENS = 256  # of a text, by default


class InputEncoder(Serializable):
    """Base class of input encoders: ``encode`` converts data to rows (n, ...) for a network.

    The constructor arguments of subclasses are JSON data, which checkpoints store.

    Attributes
    ----------
    shape : int or tuple
        The shape of an encoded row: F, (F, T) or (C, H, W).
    """

    shape: LayerShape

    def encode(self, where: str, X: Any) -> NDArray[Any]:
        """Return the rows of data in the format of the training data.

        Parameters
        ----------
        where : str
            The caller, for error messages.
        X : array_like, data frame or list of str
            The data.

        Returns
        -------
        numpy.ndarray
            (n, ...).

        Raises
        ------
        ValueError, TypeError
            The data has another format than the training data, or contains NaN or missing values.
        """
        raise NotImplementedError

    @property
    def trained_on(self) -> str:
        """A sentence for errors: the data that the model was trained on, and what to do with other data."""
        return f"This model was trained on {self}. For other data, create a new Model."

    def feature_units(self) -> tuple[list[float], list[float]] | None:
        """Return mean and deviation of each encoded feature; None if features are not standardized."""
        return None

    def as_batch(self, X: Any) -> Any:
        """Return data of one sample as a batch of one, or None if it is a batch already.

        Parameters
        ----------
        X : array_like, data frame, dict, list of str or str
            The data.
        """
        return None


class ArrayEncoder(InputEncoder):
    """Encoder of numeric arrays: transposes them to the network's layout, and standardizes features.

    Features are encoded as ``(x - mean) / deviation``.

    Parameters
    ----------
    layout : str
        The axes of the arrays: "NF", "NT", "NHW", "NFT", "NTF", "NCHW", "NHWC" or "NCDHW".
    sizes : sequence of int
        The sizes of these axes, without N.
    mean, deviation : sequence of float, optional
        The mean and the standard deviation of each feature, for "NF". Default: not standardized.
    name : str, optional
        The name.
    """

    def __init__(
        self,
        layout: str,
        sizes: Sequence[int],
        mean: Sequence[float] | None = None,
        deviation: Sequence[float] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.layout = one_of(f"{self.classnm}: layout", layout, sum(LAYOUTS.values(), ()))
        self.sizes = [integer(f"{self.classnm}: sizes", n) for n in sequence(f"{self.classnm}: sizes", sizes)]
        if len(self.sizes) != len(layout) - 1:
            raise ValueError(f"{self.classnm}: expected {len(layout) - 1} sizes for {layout}, got {self.sizes}")
        self.permutation = [layout.index(axis) for axis in NETWORK_AXES if axis in layout]
        shape = tuple(self.sizes[axis - 1] for axis in self.permutation[1:])
        self.shape = shape[0] if layout == "NF" else (1, *shape) if layout in ("NT", "NHW") else shape
        self.mean, self.deviation = mean, deviation
        if mean is not None or deviation is not None:
            one_of(f"{self.classnm}: layout", layout, ("NF",), " if there are mean and deviation.")
            n = len(sequence(f"{self.classnm}: mean", mean, count=self.sizes[0]))
            self.mean = check_numbers(f"{self.classnm}: mean", mean, n, "feature")
            self.deviation = check_deviations(f"{self.classnm}: deviation", deviation, n)

    @classmethod
    def from_data(cls, where: str, x: NDArray[Any], layout: str, standardize: bool) -> ArrayEncoder:
        """Return the encoder for an array of training data."""
        if not standardize:
            return cls(layout, x.shape[1:])
        check_all_finite(f"{where}: X", x, np.float32, way_out="")
        mean, deviation = moments(x)
        return cls(layout, x.shape[1:], mean.tolist(), deviation.tolist())

    def feature_units(self) -> tuple[list[float], list[float]] | None:
        return None if self.mean is None or self.deviation is None else ([*self.mean], [*self.deviation])

    def encode(self, where: str, X: Any) -> Any:
        try:
            x = numeric_array(where, X)
        except TypeError as error:
            raise TypeError(f"{error} {self.trained_on}") from None
        sizes = tuple(self.sizes)
        if x.shape[1:] != sizes:
            hint = transpose_hint(x.shape[1:], sizes) and f" The axes must be {self.layout}, as in the training data."
            if not hint and x.ndim == 2 and len(x) == math.prod(sizes):
                hint = " Pass rows: X.T."
            raise ValueError(
                f"{where}: expected rows of shape {sizes}, an array {(len(x), *sizes)}, got {x.shape}.{hint}"
            )
        if isinstance(x, MappedArray):  # the iterator checks the rows that it reads
            return x.map(self._encode_rows)
        check_all_finite(f"{where}: X", x, np.float32, way_out="")
        return self._encode_rows(x)

    def _encode_rows(self, x: NDArray[Any]) -> NDArray[Any]:
        if self.mean is not None:
            x = ((x - np.asarray(self.mean)) / np.asarray(self.deviation)).astype(np.float32)
        x = x.transpose(self.permutation)
        return x.reshape(len(x), *self.shape) if isinstance(self.shape, tuple) else x

    def as_batch(self, X: Any) -> Any:
        if isinstance(X, str | Mapping) or hasattr(X, "columns"):
            return None
        try:
            x = X if isinstance(X, MappedArray) else np.asarray(X)
        except ValueError:  # lists of several lengths, for which encode raises an error
            return None
        return np.asarray(x)[None] if x.shape == tuple(self.sizes) else None

    def __str__(self) -> str:
        standardized = ", standardized" if self.mean is not None else ""
        return f"arrays {self.layout} with rows of {tuple(self.sizes)}{standardized}"


class TableEncoder(InputEncoder):
    """Encoder of data frames: numbers are standardized, categories are one-hot.

    Parameters
    ----------
    columns : sequence of dict
        For each column its "name", and either "mean" and "deviation", or "categories", a list of str.
    name : str, optional
        The name.
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]], name: str | None = None) -> None:
        super().__init__(name)
        self.columns = [check_column(f"{self.classnm}: columns", x) for x in sequence("TableEncoder: columns", columns)]
        distinct(f"{self.classnm}: names of columns", [column["name"] for column in self.columns], str)
        self.shape = sum(len(column.get("categories", "1")) for column in self.columns)

    @classmethod
    def from_data(cls, where: str, table: Mapping[str, Column], standardize: bool) -> TableEncoder:
        """Return the encoder for the columns of training data."""
        columns: list[dict[str, Any]] = []
        for name, source in table.items():
            column: dict[str, Any] = {"name": name}
            values = source.values
            if source.is_numeric:
                numbers = finite_numbers(where, name, values)
                mean, deviation = moments(numbers) if standardize else (np.zeros(()), np.ones(()))
                column |= {"mean": float(mean), "deviation": float(deviation)}
            else:
                categories = sorted({str(x) for x in values.tolist()})
                has_commas = have_decimal_commas(categories)
                pandas = wording("decimal", ", as pandas.read_csv(path, decimal=',') does")
                for_commas = f"replace the decimal commas by points{pandas}"
                if len(categories) > MAX_CATEGORIES or (len(categories) > 20 and len(categories) > len(values) / 2):
                    way_out = for_commas if has_commas else "convert it to numbers"
                    raise ValueError(
                        f"{where}: expected a column of numbers or of categories, got column {name!r} with "
                        f"{len(categories)} different values in {len(values)} rows, such as {categories[0]!r}. "
                        f"{wording('ignore', f'Leave it out: X.drop(columns={name!r})', name)}, or {way_out}."
                    )
                if (has_commas or all(map(is_number, categories))) and not source.is_category:
                    way_out = for_commas if has_commas else "convert it with astype(float)"
                    warn(
                        f"{where}: column {name!r} has numbers as text, such as {categories[0]!r}, and becomes "
                        f"categories. For numbers, {way_out}."
                    )
                column["categories"] = categories
            columns.append(column)
        return cls(columns)

    def encode(self, where: str, X: Any) -> NDArray[Any]:
        table = read_table(where, X)
        if table is None:
            names = [column["name"] for column in self.columns]
            raise TypeError(
                f"{where}: expected a data frame with the columns {', '.join(names)}, got {describe(X)}. "
                f"{self.trained_on}"
            )
        parts = [self._encode_column(where, column, table) for column in self.columns]
        return np.concatenate(parts, axis=1)

    def feature_units(self) -> tuple[list[float], list[float]] | None:
        units: list[tuple[float, float]] = []
        for column in self.columns:
            names = column.get("categories")
            units += [(column["mean"], column["deviation"])] if names is None else [(0.0, 1.0)] * len(names)
        mean, deviation = zip(*units, strict=True)
        return [*mean], [*deviation]

    def _encode_column(self, where: str, column: dict[str, Any], table: Mapping[str, Column]) -> NDArray[np.float32]:
        name = column["name"]
        if name not in table:
            raise ValueError(f"{where}: expected a column {name!r}, as in the training data, got {', '.join(table)}")
        values = table[name].values
        if "categories" not in column:
            if not is_real_array(values):
                raise ValueError(f"{where}: expected numbers in column {name!r}, got {describe(str(values[0]))}")
            numbers = finite_numbers(where, name, values)
            standardized: NDArray[Any] = (numbers - column["mean"]) / column["deviation"]
            return standardized.astype(np.float32)[:, None]
        index = {category: i for i, category in enumerate(column["categories"])}
        encoded = np.zeros((len(values), len(index)), np.float32)
        for row, value in enumerate(values.tolist()):
            if str(value) not in index:
                raise ValueError(
                    f"{where}: expected in column {name!r} one of the categories of the training data, "
                    f"{describe(column['categories'])}, got {str(value)!r} in row {row}."
                )
            encoded[row, index[str(value)]] = 1
        return encoded

    def as_batch(self, X: Any) -> Any:
        if hasattr(X, "to_dict") and getattr(X, "ndim", 0) == 1:  # a row of a pandas data frame
            X = X.to_dict()
        is_row = isinstance(X, Mapping) and all(np.ndim(x) == 0 for x in X.values())
        return {name: [x] for name, x in X.items()} if is_row else None

    def __str__(self) -> str:
        def describe_column(column: dict[str, Any]) -> str:
            categories = column.get("categories")
            return column["name"] if categories is None else f"{column['name']} ({len(categories)} categories)"

        return f"columns {', '.join(map(describe_column, self.columns))}"


class TextEncoder(InputEncoder):
    """Encoder of texts: token ids (n, 1, T) of words; shorter texts are padded on the left, longer ones are cut.

    Parameters
    ----------
    vocabulary : sequence of str
        The tokens by id. The first two are <pad> and <unk>, which stands for words that are not in the vocabulary.
    length : int
        The number of token ids of a text, T.
    tokenizer : str
        "words" or "characters"; default: "words".
    name : str, optional
        The name.
    """

    SPECIAL: ClassVar[list[str]] = [PAD, UNK]

    def __init__(
        self, vocabulary: Sequence[str], length: int, tokenizer: str = "words", name: str | None = None
    ) -> None:
        super().__init__(name)
        self.vocabulary = distinct(f"{self.classnm}: vocabulary", vocabulary, str)
        if self.vocabulary[:2] != self.SPECIAL:
            raise ValueError(f"{self.classnm}: expected a vocabulary that starts with {self.SPECIAL}")
        self.length = integer(f"{self.classnm}: length", length)
        self.tokenizer = one_of(f"{self.classnm}: tokenizer", tokenizer, ("words", "characters"))
        self.shape = (1, self.length)
        self._index = {token: i for i, token in enumerate(self.vocabulary)}

    @classmethod
    def from_data(
        cls, where: str, texts: Sequence[str], max_tokens: int, length: int | None, tokenizer: str = "words"
    ) -> TextEncoder:
        """Return the encoder for training texts: the vocabulary has the ``max_tokens`` most frequent tokens."""
        integer(f"{where}: the vocabulary size", max_tokens, 3)
        lists = [tokenize(text, tokenizer) for text in texts]
        counts = Counter(token for tokens in lists for token in tokens if token not in cls.SPECIAL)
        if not counts:
            raise ValueError(f"{where}: expected texts with at least one word, got {describe(texts[0])}")
        frequent = sorted(counts, key=lambda token: (-counts[token], token))
        length = min(max(map(len, lists)), MAX_TEXT_TOKENS) if length is None else length
        return cls([*cls.SPECIAL, *frequent[: max_tokens - 2]], length, tokenizer)

    def encode(self, where: str, X: Any) -> NDArray[Any]:
        texts = as_texts(where, X) or only_texts(read_table(where, X))
        if texts is None:
            raise TypeError(
                f"{where}: expected a list of texts, as in the training data, got {describe(X)}. {self.trained_on}"
            )
        ids = np.zeros((len(texts), 1, self.length), np.int32)
        for row, text in enumerate(texts):
            tokens = [self._index.get(token, 1) for token in tokenize(text, self.tokenizer)][: self.length]
            ids[row, 0, self.length - len(tokens) :] = tokens
        return ids

    def as_batch(self, X: Any) -> Any:
        if isinstance(X, Mapping) and len(X) == 1:
            (X,) = X.values()
        return [X] if isinstance(X, str) else None

    def __str__(self) -> str:
        return f"texts of {self.length} {self.tokenizer}, a vocabulary of {len(self.vocabulary)}"


# --- choosing an encoder ---------------------------------------------------------------------------------------------


def choose_encoder(
    where: str,
    X: Any,
    layout: str | None = None,
    standardize: bool | None = None,
    expected: Any = None,
    vocab_size: int | None = None,
    length: int | None = None,
) -> InputEncoder:
    """Return the encoder for training data.

    Parameters
    ----------
    where : str
        The caller, for error messages.
    X : array_like, data frame or list of str
        The data.
    layout : str, optional
        The axes of an array. Default: recognized, if there is only one possibility.
    standardize : bool, optional
        Whether to standardize features. Default: rows of features (n, F) and columns of numbers, but not uint8.
    expected : shape, optional
        The shape of the inputs for which the network is configured.
    vocab_size : int, optional
        The size of the table of a network that starts with a LookupTable.
    length : int, optional
        The number of tokens of a text.

    Raises
    ------
    ValueError
        The layout is ambiguous, or is not one of an array with this number of axes.
    """
    is_mapped = isinstance(X, MappedArray)
    texts = None if is_mapped else as_texts(where, X)
    if texts is not None:
        if vocab_size is None:
            raise ValueError(f"{where}: expected a network that starts with a LookupTable for texts. Add one.")
        return TextEncoder.from_data(where, texts, vocab_size, length)
    table = None if is_mapped else read_table(where, X)
    if table is not None:
        if vocab_size is not None:
            if texts := only_texts(table):
                return TextEncoder.from_data(where, texts, vocab_size, length)
            raise TypeError(
                f"{where}: expected texts or token ids (n, T) for a network that starts with a LookupTable, got a "
                f"table with the columns {', '.join(table)}. Pass the column of texts, or an array of ids."
            )
        return TableEncoder.from_data(where, table, standardize is not False)
    x = numeric_array(where, X)
    layout = find_layout(where, x, layout, expected, vocab_size is not None)
    if standardize and layout != "NF":
        raise ValueError(f"{where}: expected rows of features (n, F) for standardize=True, got {layout} {x.shape}")
    is_default = layout == "NF" and x.dtype != np.uint8
    return ArrayEncoder.from_data(where, x, layout, is_default if standardize is None else bool(standardize))


def find_layout(where: str, x: NDArray[Any], layout: str | None, expected: Any, takes_ids: bool) -> str:
    """Return the layout of an array, as given, or as recognized from its shape, its dtype and the network."""
    layouts = LAYOUTS.get(x.ndim, ())
    if layout is not None:
        return one_of(f"{where}: layout", layout, layouts, f" for an array {x.shape}. {LAYOUT_DOC}.")
    if x.ndim == 2:
        return "NT" if takes_ids else "NF"
    if len(layouts) == 1:
        return layouts[0]
    possible = [each for each in layouts if ArrayEncoder(each, x.shape[1:]).shape == expected]
    if not possible and x.ndim == 3 and x.dtype == np.uint8:
        possible = ["NHW"]
    elif not possible and x.ndim == 4:
        possible = [each for each in layouts if x.shape[each.index("C")] in NUM_CHANNELS]
    if len(possible) != 1:
        choices = " or ".join(f'layout="{each}"' for each in possible or layouts)
        raise ValueError(f"{where}: expected the layout of an array {x.shape}, got None. Pass {choices}: {LAYOUT_DOC}.")
    return possible[0]


# --- reading data ----------------------------------------------------------------------------------------------------


def numeric_array(where: str, X: Any) -> NDArray[Any]:
    """Return numeric data as an array (n, ...); booleans become numbers."""
    if isinstance(X, str):
        raise TypeError(f"{where}: expected data, got the path {X!r}. Read it first: pandas.read_csv(path).")
    array = to_array(where, X, "X")
    is_boolean = array is not X and array.dtype == np.uint8 and np.asarray(X).dtype == bool
    return array.astype(np.float32) if is_boolean else array


def as_texts(where: str, X: Any) -> list[str] | None:
    """Return a list of texts, if the data is one: a list, an array or a column of texts."""
    refuse_unread(where, X)
    if isinstance(X, list | tuple):
        if not any(isinstance(x, str) for x in X) or any(isinstance(x, list | tuple) for x in X):
            return None
    elif (
        not hasattr(X, "dtype")
        or is_frame(X)
        or (isinstance(X, np.ndarray) and (X.ndim != 1 or X.dtype.kind not in "OUT"))
        or not any(isinstance(x, str) for x in to_numpy(where, X, "for X").ravel().tolist())
    ):
        return None
    values = read_column(where, X).values
    texts: list[str] = values.tolist()
    return texts if values.ndim == 1 and values.dtype.kind in "UT" else None


def only_texts(table: Mapping[str, Column] | None) -> list[str] | None:
    """Return the texts of a table with one column, if they are texts."""
    columns = [*table.values()] if table is not None else []
    texts: list[str] | None = None
    if len(columns) == 1 and columns[0].values.dtype.kind in "UT":
        texts = columns[0].values.tolist()
    return texts


def table_columns(where: str, X: Any) -> dict[str, Any] | None:
    """Return the columns of a data frame, a dict of columns, or rows: dicts, or of mixed types; None for other data."""
    refuse_unread(where, X)
    if isinstance(X, Mapping) or is_frame(X):
        return frame_columns(where, X)
    array = X if isinstance(X, np.ndarray) else None
    if isinstance(X, list | tuple) and X and isinstance(X[0], Mapping):
        return columns_of_rows(where, X)
    if array is None and isinstance(X, list | tuple) and X and isinstance(X[0], list | tuple):
        if not any(isinstance(x, str) or x is None for x in X[0]) or holds_pairs(X):
            return None
        array = np.array(X, dtype=object)
    if array is None or array.ndim != 2 or array.dtype.kind not in "OUT":
        return None
    return {str(i): array[:, i] for i in range(array.shape[1])}


def columns_of_rows(where: str, rows: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of a list of dicts; raise an error unless all rows are dicts with the same names."""
    names = list(rows[0])
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"{where}: expected a dict in every row of X, got {describe(row)} in row {i}.")
        if row.keys() != set(names):
            raise ValueError(
                f"{where}: expected the columns {', '.join(map(str, names))} in every row of X, got "
                f"{', '.join(map(str, row)) or 'none'} in row {i}. Give every row the same names."
            )
    return frame_columns(where, {name: [row[name] for row in rows] for name in names})


def read_table(where: str, X: Any) -> dict[str, Column] | None:
    """Return the columns of a table as numbers and texts; None for other data."""
    columns = table_columns(where, X)
    if columns is None:
        return None
    table = {name: read_column(where, column, name) for name, column in columns.items()}
    lengths = {len(column.values) for column in table.values() if column.values.ndim == 1}
    if len(lengths) != 1 or not all(column.values.ndim == 1 for column in table.values()) or lengths == {0}:
        shapes = ", ".join(f"{name} {column.values.shape}" for name, column in table.items())
        raise ValueError(
            f"{where}: expected a table with columns of one length, at least 1, got {shapes or 'none'}. "
            "Pass an array of rows as X, or a column for each feature."
        )
    return table


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def have_decimal_commas(texts: Collection[str]) -> bool:
    """Return whether all texts are numbers if their comma is a decimal point, and some have a comma."""
    return any("," in text for text in texts) and all(is_number(text.replace(",", ".", 1)) for text in texts)


def moments(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation over the rows; 1 for the deviation of a constant feature."""
    if isinstance(x, MappedArray):
        mean, deviation = moments_of_blocks(x)
    else:
        numbers = x.astype(np.float64)
        mean, deviation = numbers.mean(axis=0), numbers.std(axis=0)
    is_constant = deviation <= 1e-12 * np.abs(mean)
    return mean, np.where(is_constant, 1.0, deviation)


def moments_of_blocks(x: MappedArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation over the rows of files, which are read in blocks.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    count, mean, squares = 0, np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for start in range(0, len(x), x.block_rows):
        rows = x[start : start + x.block_rows].astype(np.float64)
        n, difference = len(rows), rows.mean(axis=0) - mean
        squares += n * rows.var(axis=0) + difference**2 * count * n / (count + n)
        mean += difference * n / (count + n)
        count += n
    return mean, np.sqrt(squares / count)


def tokenize(text: str, tokenizer: str) -> Sequence[str]:
    """Return the tokens of a text, in lower case if they are words."""
    return get_tokenizer(tokenizer)(text.lower() if tokenizer == "words" else text)


# --- checks of descriptions ------------------------------------------------------------------------------------------


def check_deviations(name: str, values: Any, count: int) -> list[float]:
    """Return positive finite numbers; TypeError or ValueError otherwise."""
    sequence(name, values, count=count)
    return [check_number(name, x, above=0) for x in check_numbers(name, values, count, "feature")]


def check_column(name: str, column: Any) -> dict[str, Any]:
    """Return a column of a TableEncoder; TypeError or ValueError if it is invalid."""
    if not isinstance(column, Mapping) or not isinstance(column.get("name"), str):
        raise TypeError(f"{name}: expected a dict with the name of a column, got {describe(column)}")
    if column.keys() == {"name", "mean", "deviation"}:
        return {
            "name": column["name"],
            "mean": check_number(f"{name}: mean", column["mean"]),
            "deviation": check_number(f"{name}: deviation", column["deviation"], above=0),
        }
    if column.keys() != {"name", "categories"}:
        raise ValueError(f"{name}: expected mean and deviation, or categories, got {describe(column)}")
    return {"name": column["name"], "categories": distinct(f"{name}: categories", column["categories"], str)}
