"""The commands eval, predict and sample, which use a saved network; data sets, and metrics as text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from neonlite.backend import gen_backend
from neonlite.cli.output import say
from neonlite.files import check_output, printable, same_file, write_output

MAX_MATRIX_CLASSES = 20  # of a printed confusion matrix; a wider one does not fit a terminal
MAX_MATRIX_LABEL = 16  # characters


def format_metrics(model: Any, X: Any, y: Any) -> str:
    """Return metrics of rows as text: with a confusion matrix for classes."""
    from neonlite.transforms import ConfusionMatrix

    rows = f"on {len(y)} row{'s' * (len(y) != 1)}"
    if model.classes is None:
        return ", ".join(f"{name} {value:.4g}" for name, value in model.evaluate(X, y).items()) + f" {rows}"
    accuracy, matrix = model.evaluate(X, y, ["accuracy", ConfusionMatrix()]).values()
    result = f"accuracy {100 * accuracy:.2f} % {rows}"
    if len(matrix) > MAX_MATRIX_CLASSES:
        return result
    labels = [printable(label, "") for label in model.classes]
    labels = [x if len(x) <= MAX_MATRIX_LABEL else f"{x[: MAX_MATRIX_LABEL - 1]}…" for x in labels]
    width = max(len(f"{matrix.max():.0f}"), *map(len, labels))
    lines = [["", *labels], *([label, *(f"{n:.0f}" for n in row)] for label, row in zip(labels, matrix, strict=True))]
    text = "\n".join("  ".join(x.rjust(width) for x in line) for line in lines)
    return f"{result}\nconfusion matrix (rows: true classes, columns: predicted classes)\n{text}"


def load_data(
    name: str, path: Any, augment: Any = None, metadata: dict[str, Any] | None = None, shrink_batch: bool = True
) -> tuple[Any, Any, Any]:
    """Return a data set with its training set and validation set.

    ``metadata``: that of a recipe or a model, which holds the vocabulary and the time steps of a text.
    ``shrink_batch``: whether to reduce the batch size if a text has too few characters.
    """
    from neonlite.backend import current_backend
    from neonlite.data import DATASETS
    from neonlite.data.corpora import load_corpus

    if name == "text":
        options = {key: metadata[key] for key in ("vocab", "time_steps") if metadata and key in metadata}
        if path is None and metadata and "text" in metadata:
            raise ValueError(
                f"expected the text that the network was trained on, {metadata['text']}. Pass it by -w PATH."
            )
        corpus = load_corpus(path, **options)
        if shrink_batch:
            limit = (min(map(len, corpus.texts.values())) - 1) // corpus.time_steps
            current_backend().bsz = max(1, min(current_backend().bsz, limit))
        return corpus, *corpus.iterators()
    dataset = DATASETS[name](path)
    return dataset, *dataset.iterators(augment=augment)


def make_metric(name: str) -> Any:
    """Return the metric for a data set."""
    from neonlite.transforms import Accuracy, BitsPerCharacter

    return BitsPerCharacter() if name == "text" else Accuracy()


def format_evaluation(name: str, model: Any, valid_set: Any) -> str:
    """Evaluate a network on a validation set, and return the result as text."""
    value = model.eval(valid_set, make_metric(name))[0]
    if name == "text":
        return f"{value:.3f} bits per character on {valid_set.ndata * valid_set.time_steps:,} characters"
    return f"accuracy {100 * value:.2f} % on {valid_set.ndata} rows"


def run_eval(args: argparse.Namespace) -> None:
    """Evaluate a saved network."""
    from neonlite.layers.buffers import num_features
    from neonlite.models import Model
    from neonlite.models.training_state import TrainingState
    from neonlite.models.zoo import RECIPES

    be = gen_backend(args.backend, batch_size=TrainingState.read(args.file).get_field(int, "backend", "batch_size"))
    model = Model(args.file)
    if isinstance(args.dataset, Path):
        say(evaluate_csv(args, model))
        return
    if args.dataset is None and "target" in model.metadata:
        raise ValueError(f"{args.file}: expected a CSV file to evaluate on: neonlite eval {args.file} data.csv")
    name = args.dataset or model.name.split(".")[0]
    if name not in RECIPES:
        raise ValueError(f"{args.file}: the checkpoint does not name its data set. Pass one of {', '.join(RECIPES)}.")
    dataset, _, valid_set = load_data(name, args.data_dir, metadata=model.metadata)
    shape = valid_set.shape if name == "text" else dataset.lshape
    if num_features(model.layers.in_shape) != num_features(shape):
        raise ValueError(
            f"{args.file}: expected inputs of shape {model.layers.in_shape}, got {name} with inputs {shape}."
        )
    if name != "text":
        be.bsz = min(128, valid_set.ndata)
    say(format_evaluation(name, model, valid_set))


def check_csv_model(args: argparse.Namespace, model: Any) -> str:
    """Return the name of the target. Raise ValueError unless a model was trained on the columns of a table."""
    from neonlite.encoders.inputs import TableEncoder

    target = model.metadata.get("target", "prediction")
    if not isinstance(model.input_encoder, TableEncoder) or model.target_encoder is None or not isinstance(target, str):
        raise ValueError(
            f"{args.file}: expected a network trained on a table, got another one. Use a checkpoint of neonlite train "
            "data.csv --save FILE."
        )
    return target


def evaluate_csv(args: argparse.Namespace, model: Any) -> str:
    """Return metrics of a network for the rows of a CSV file."""
    from neonlite.data.csv_files import encoded_kinds, read_csv

    target, encoder = check_csv_model(args, model), model.input_encoder
    kinds = {target: "any" if model.classes is None else "text", **encoded_kinds(encoder)}
    table = read_csv(args.dataset, kinds.get)
    return format_metrics(model, table.inputs(encoder), table.targets(target, model.target_encoder))


def run_predict(args: argparse.Namespace) -> None:
    """Print the predictions of a network for the rows of a CSV file."""
    from neonlite.data.csv_files import encoded_kinds, format_csv, read_csv
    from neonlite.models import Model

    if args.output:
        check_output("--output", args.output)
        for what, path in ("the data", args.dataset), ("the checkpoint", args.file):
            if same_file(path, args.output):
                raise ValueError(f"--output and {what} are one file, {path}; expected two files")
    elif sys.stdout is None:
        raise OSError("expected an open standard output, got a closed one. Pass --output FILE")
    gen_backend(args.backend)
    model: Any = Model(args.file, weights_only=True)
    header = [check_csv_model(args, model)]
    if args.proba and model.classes is None:
        raise ValueError(f"{args.file}: expected a network that predicts classes for --proba, got numbers")
    encoder = model.input_encoder
    X = read_csv(args.dataset, encoded_kinds(encoder).get).inputs(encoder)
    if args.proba:
        header, rows = [str(label) for label in model.classes], model.predict_proba(X)
    else:
        rows = (model.predict(X) if model.classes is None else model.predict_classes(X)).reshape(-1, 1)
    text = format_csv([header, *(map(str, row) for row in rows)], args.safe_cells)
    if args.output:
        write_output(args.output, text.encode())
    elif sys.stdout and sys.stdout.isatty():
        say(text, end="")
    elif sys.stdout:  # the bytes of --output, whatever the encoding of standard output is
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def run_sample(args: argparse.Namespace) -> None:
    """Generate text with a saved network."""
    from neonlite.models import Model
    from neonlite.models.generation import sample

    gen_backend(args.backend)
    model = Model(args.file, weights_only=True)
    vocab = model.metadata.get("vocab")
    if not vocab or not isinstance(vocab, list) or not all(isinstance(token, str) for token in vocab):
        raise ValueError(
            f"{args.file}: expected a checkpoint with a vocabulary, got none. "
            "Use one of neonlite train text --save FILE."
        )
    prompt = args.prompt or ("\n" if "\n" in vocab else vocab[0])
    index = {token: i for i, token in enumerate(vocab)}
    unknown = sorted({character for character in prompt if character not in index})
    if unknown:
        raise ValueError(f"--prompt: expected characters of the vocabulary, got {', '.join(map(repr, unknown))}.")
    say(args.prompt, end="")
    prompt_ids = [index[character] for character in prompt]
    for token_id in sample(model, prompt_ids, args.length, args.temperature, args.seed or 0):
        if token_id >= len(vocab):
            raise ValueError(
                f"{args.file}: expected a network with as many outputs as the vocabulary, {len(vocab)}, got more."
            )
        say(vocab[token_id], end="")
    say()
