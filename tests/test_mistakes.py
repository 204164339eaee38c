"""Tests of the mistakes that new users make with networks and data: an error or a warning says how to correct each."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import callbacks, data, initializers, layers, models, optimizers, transforms

QUICK: dict[str, Any] = {"epochs": 1, "progress_bar": False}

# What the user typed, and texts that the message must contain.
# fmt: off
ERRORS: list[tuple[type[Exception], str, str]] = [
    # --- layers and networks ---
    (ValueError, "Affine(10, activation='rel')", "'leaky_relu' | 'relu' | 'softmax' | for activation, got 'rel'"),
    (TypeError, "Affine(10, activation=Rectlin)", "for activation, got | Pass an instance: Rectlin()"),
    (TypeError, "Affine(10, activation=np.tanh)", "a transform, such as Rectlin(), for activation, got <ufunc"),
    (TypeError, "Affine(10, activation=3)", "a transform, such as Rectlin(), for activation, got 3"),
    (TypeError, "Affine(784, 100)", "for init, got 100 | the size of the outputs, as in Affine(10)"),
    (ValueError, "Affine(10, init='gauss')", "'gaussian' | 'glorot' | for init, got 'gauss'"),
    (TypeError, "Affine(10, init=Gaussian)", "for init, got | Pass an instance: Gaussian()"),
    (TypeError, "Affine('10')", "expected an integer >= 1 for nout, got '10'"),
    (ValueError, "Affine(0)", "expected an integer >= 1 for nout, got 0"),
    (TypeError, "Affine(10, activaton='relu')", "Affine: | the options nout | Did you mean 'activation'?"),
    (ValueError, "Dropout(50)", "> 0 and <= 1 for keep, got 50"),
    (ValueError, "Dropout(dropout=1.5)", ">= 0 and < 1 for dropout, got 1.5"),
    (ValueError, "Conv(32, 3)", "fshape: expected (R, S, K) | got 32"),
    (ValueError, "Conv((3, 3, 8), padding='same')", "padding: expected an integer, (pad_h, pad_w) | got 'same'"),
    (ValueError, "LSTM(8, activation='tahn')", "'tanh' | for activation, got 'tahn'"),
    (AttributeError, "nl.layers.Dense", "'neonlite.layers' has no attribute 'Dense'. Use neonlite.layers.Affine."),
    (AttributeError, "nl.layers.Afine", "'neonlite.layers' has no attribute 'Afine'. Did you mean 'Affine'?"),
    (AttributeError, "nl.callbacks.SaveBest", "no attribute 'SaveBest'. Did you mean 'SaveBestStateCallback'?"),
    (AttributeError, "nl.Modell", "module 'neonlite' has no attribute 'Modell'. Did you mean 'Model'?"),
    (AttributeError, "nl.models.Modle", "Did you mean 'Model'?"),
    (ImportError, "from neonlite.optimizers import Adm", "cannot import name 'Adm' | Did you mean 'Adam'?"),
    (ImportError, "from neonlite.layers import Conv2D", "Use neonlite.layers.Conv."),
    (AttributeError, "nl.optimizers.SGD", "Use neonlite.optimizers.GradientDescentMomentum."),
    (AttributeError, "nl.transforms.ReLU", "Use neonlite.transforms.Rectlin."),
    (AttributeError, "nl.Affine", "module 'neonlite' has no attribute 'Affine'. Use neonlite.layers.Affine."),
    (TypeError, "Model()", "layers"),
    (ValueError, "Model([])", "expected one or more layers, got none"),
    (TypeError, "Model(Affine(4), Affine(3))", "Pass one list of layers: Model([a, b])"),
    (FileNotFoundError, "Model('missing.neon')", "missing.neon: there is no such file"),
    (ValueError, "a = Affine(2); Model([a, a])", "expected unique layer names | Pass name="),
    (IndexError, "trained[7]", "expected a position below the number of layers, 6, got 7"),
    (KeyError, "trained['conv']", "expected the name of a layer, hidden | got 'conv' | Pass name= to a layer"),
    (TypeError, "Model([Affine(8), 'relu', Affine(3)])", "layers, got 'relu'. | Affine(10, activation='relu')"),
    (TypeError, "Model([Affine(8), Rectlin()])", "got Rectlin(slope=0). An activation is an argument of"),
    (TypeError, "Model([Affine])", "Pass an instance: Affine(...)"),
    (ValueError, "Affine(8, 'relu')", "for init, got 'relu'. Pass the activation by its name: activation='relu'"),
    (ValueError, "trained[0].W = np.ones((3, 3))", "expected the shape (4, 2), got (3, 3)"),
    (RuntimeError, "Model([Affine(3)]).set_weights(trained.get_weights())", "without shapes | model.initialize(shape)"),
    # --- backends and optimizers ---
    (TypeError, "Adam(schedule='cosine')", "a Schedule, such as CosineSchedule(10), | got 'cosine'"),
    (TypeError, "model.fit(X, y, 10)", "an optimizer, such as Adam(), | got 10. The number of epochs is epochs=10."),
    (ValueError, "nl.gen_backend('gpuu')", "'cpu', 'gpu', 'mkl' | Did you mean 'gpu'?"),
    (ValueError, "Adam(-0.1)", "expected a finite number >= 0 for learning_rate, got -0.1"),
    (TypeError, "Adam(lr=0.1)", "Adam: expected the options | got lr. Did you mean 'learning_rate'?"),
    (TypeError, "Affine(units=10)", "Affine: expected the options nout, init | got units. Did you mean 'nout'?"),
    (TypeError, "Adam('0.1')", "got '0.1'. A learning rate is a number: Adam(0.01)"),
    (ValueError, "Adam(float('nan'))", "expected a finite number >= 0 for learning_rate, got nan"),
    # --- the data of fit ---
    (ValueError, "model.fit(X, **quick)", "expected targets y | got outputs 3 and no y. Pass fit(X, y)"),
    (TypeError, "model.fit([(X, y)], y, **quick)", "a list of tuples of 2 | Minibatches are passed alone"),
    (TypeError, "model.fit({'minibatch'}, y, **quick)", "Minibatches are passed alone, fit(minibatches)"),
    (TypeError, "scaled.predict([*zip(X, y)])", "got a list of tuples of 2, as of samples | as two arrays"),
    (ValueError, "model.fit(X, y[:-1], **quick)", "X and y with equal numbers of rows, got 60 and 59"),
    (TypeError, "model.fit((X, y), **quick)", "X and y as two arguments, got one tuple of both. Pass fit(X, y)"),
    (ValueError, "model.fit(index, X, **quick)", "rows X (n, F) and targets y (n,), got (60,) and (60, 2). Swap them"),
    (ValueError, "model.fit(X, index.reshape(-1, 1, 1), **quick)", "one label for each row, (60,), | got (60, 1, 1)"),
    (ValueError, "model.fit({'X': X, 'y': index}, **quick)", "got X (60, 2), y (60,). Pass an array of rows as X"),
    (TypeError, "model.fit(np.float32(X), y, num_epochs=3, epochs=2)", "no epochs together with num_epochs, got both."),
    (TypeError, "model.fit(rows, 1)", "expected a cost, such as CrossEntropyMulti(), for cost, got 1"),
    (ValueError, "model.fit(X, y, validation_split=0.001, **quick)", "60 rows with | a fraction of at least one row"),
    (KeyError, "model.fit(X, y, **quick)['val_loss']", "Recorded: loss. | pass validation_split=0.2 to fit"),
    (KeyError, "model.fit(X, y, validation_split=0.2, **quick)['val_accuracy']", "Did you mean 'Accuracy'?"),
    (ValueError, "model.fit(X[:, 0], y, **quick)", "got (60,). | X[:, None] for n rows of one feature"),
    (ValueError, "model.fit(X.T, y, **quick)", "X and y with equal numbers of rows, got 2 and 60"),
    (ValueError, "model.fit([], [], **quick)", "with at least one row, got (0,)"),
    (TypeError, "model.fit('data.csv', y, **quick)", "got the path 'data.csv'. Read it first | pandas.read_csv(path)"),
    (ValueError, "model.fit(X, 'class', **quick)", "expected a data frame with that column for y='class'"),
    (ValueError, "model.fit({'a': X[:, 0], 'class': y}, 'clas', **quick)", "one of the columns a, class | got 'clas'"),
    (ValueError, "model.fit({'a': X[:, 0], 'b': y}, ['a', 'b'], **quick)", "one column for y | y=X[['a', 'b']]"),
    (ValueError, "model.fit(np.where(X > 2, np.nan, X), y, **quick)", "got nan in row 39, column 1. Remove these rows"),
    (ValueError, "model.fit([[1.0, 2.0], [3.0]], [0, 1], **quick)", "the rows of X to have one length"),
    (TypeError, "model.fit((x for x in X), y, **quick)", "expected X to be a numeric array | generator"),
    (ValueError, "model.fit(X, [None, *y[1:]], **quick)", "a value in every row of y, got None in row 0"),
    (ValueError, "model.fit(X, ['a'] * 60, **quick)", "expected at least two classes in y, got one: 'a'"),
    (ValueError, "model.fit(X, range(60), **quick)", "3 classes for the 3 outputs | Affine(60, activation=Softmax())"),
    (ValueError, "model.fit(X, X[:, 0], **quick)", "For numbers, end it with Affine(3) without activation"),
    (ValueError, "Model([Affine(3)]).fit(X, index, **quick)", "For classes, end it with Softmax(); for numbers"),
    (ValueError, "Model([Affine(1)]).fit(X, y, **quick)", "end the network with Affine(3, activation=Softmax())"),
    (ValueError, "Model([Affine(1)]).fit(X, np.full(60, np.nan), **quick)", "nan in row 0"),
    (ValueError, "model.fit(['good', 'bad'] * 30, y, **quick)", "starts with a LookupTable for texts. Add one"),
    (ValueError, "Model([Affine(3)]).fit(X, y, **quick)", "got labels such as x. | Affine(3, activation=Softmax())"),
    (ValueError, "Model([Affine(1, activation='softmax')]).fit(X, index % 2, **quick)", "always 1. | Logistic())"),
    (ValueError, "model.fit(np.ma.masked_array(X, X > 1), y, **quick)", "every row of X, got a masked | replace"),
    (ValueError, "model.fit(['good', None] * 30, y, **quick)", "expected a value in every row of X | None in row 1"),
    (ValueError, "model.fit({'a': [1e300, 2.0]}, [0, 1], **quick)", "float32 numbers, got 1e+300 in column 'a', row 0"),
    (TypeError, "model.fit(X, y, num_epochs=3)", "For arrays pass epochs= instead: fit(X, y, epochs=10)"),
    # --- images and sequences ---
    (ValueError, "conv().fit(X, y, **quick)", "expected images (C, H, W) | got the input shape 2 | Reshape((C, H, W))"),
    (ValueError, "conv(9).fit(images, y, **quick)", "larger than 8 | a smaller window, or more padding"),
    (ValueError, "conv().fit(np.zeros((60, 3, 8, 3)), y, **quick)", 'Pass layout="NCHW" or layout="NHWC"'),
    (ValueError, "conv().fit(images, y, layout='channels_last', **quick)", "one of 'NCHW', 'NHWC' | 'channels_last'"),
    (ValueError, "rnn().fit(X, y, **quick)", "expected inputs (F, T) | Give the data set a shape (F, T)"),
    (ValueError, "rnn().fit(np.ones((60, 4, 7)), y, **quick)", 'layout="NFT" or layout="NTF"'),
    (ValueError, "Model([LSTM(4), softmax]).fit(np.ones((60, 4, 7)), y, layout='NTF', **quick)",
     "outputs with time steps, (3, 4), got one target for each row | add RecurrentLast()"),
    (ValueError, "sequences.predict(np.ones((2, 7, 4)))", "expected rows of shape (4, 7) | axes must be NFT"),
    (TypeError, "conv_model.fit(images / 255, y, **quick)", "expected uint8 inputs, | astype('uint8')"),
    (ValueError, "scaled.predict(images * 1.5)", "got float64 from 0 to 382.5. Pass preprocessed=False"),
    # --- options of fit ---
    (TypeError, "model.fit(X, y, epoch=5)", "model.fit: expected the options X, y | got epoch. Did you mean 'epochs'?"),
    (TypeError, "model.fit(X, y, epochs='10')", "expected an integer >= 1 for epochs, got '10'"),
    (ValueError, "model.fit(X, y, batch_size=0)", "expected an integer >= 1 for batch_size, got 0"),
    (ValueError, "model.fit(X, y, optimizer='adan')", "'adam' | 'sgd' | for optimizer, got 'adan'"),
    (TypeError, "model.fit(X, y, optimizer=Adam)", "for optimizer, got | Pass an instance: Adam()"),
    (ValueError, "model.fit(X, y, cost='crossentropy')", "'cross_entropy' | 'mse' | for cost, got 'crossentropy'"),
    (TypeError, "model.fit(X, y, cost=CrossEntropyMulti)", "for cost, got | Pass an instance: CrossEntropyMulti()"),
    (ValueError, "model.fit(X, y, metrics='accuracy')", "expected validation data for metrics | validation_split=0.2"),
    (ValueError, "model.fit(X, y, metrics='acc', validation_split=0.2)", "one of 'accuracy' | got 'acc'"),
    (ValueError, "model.fit(X, y, validation_split=20)", ">= 0 and < 1 for validation_split, got 20"),
    (TypeError, "model.fit(X, y, validation_data=X)", "expected (X, y), or an iterator, for validation_data"),
    (ValueError, "model.fit(X, y, validation_data=(X, ['w'] * 60))", "['x', 'y', 'zero'] in y, got 'w'"),
    (TypeError, "model.fit(X, y, callbacks=[EarlyStop])", "Pass an instance"),
    (TypeError, "model.fit(X, y, callbacks='early_stop')", "a Callback, such as EarlyStop(), | got 'early_stop'"),
    (ValueError, "model.fit(X, y, callbacks=EarlyStop())", "a validation set | Pass validation_split=0.2 to fit"),
    (ValueError, "model.fit(X, y, class_weight={'w': 1})", "the labels ['x', 'y', 'zero'] for class_weight"),
    (ValueError, "model.fit(X, y, sample_weight=[1])", "60 finite numbers >= 0 for sample_weight"),
    (TypeError, "model.fit(X, y, optimizer=Own(), callbacks=SerializeModelCallback('m.neon'))", "cannot be saved"),
    # --- trained models ---
    (ValueError, "trained.predict(X[:, :1])", "expected rows of shape (2,), an array (60, 2), got (60, 1)"),
    (ValueError, "trained.predict(np.nan * X)", "expected finite values, got nan in row 0"),
    (ValueError, "trained.evaluate(X)", "expected targets y, got None. Pass evaluate(X, y)"),
    (ValueError, "trained.evaluate(X, y, 'accurcy')", "one of 'accuracy' | got 'accurcy'"),
    (ValueError, "trained.evaluate(X, ['w'] * 60)", "one of the classes ['x', 'y', 'zero'] in y, got 'w'"),
    (TypeError, "regression.predict_classes(X)", "one trained on numbers. Use predict"),
    (TypeError, "regression.predict_proba(X)", "a network that ends with Softmax() or Logistic()"),
    (ValueError, "regression.evaluate(X, X[:, 0], 'accuracy')", 'a metric for numbers, such as "mse", "mae" or "r2"'),
    (ValueError, "table.predict({'a': [1.0], 'color': ['pink']})", "the categories | 'red' | got 'pink' in row 0"),
    (ValueError, "table.predict({'a': [1.0]})", "expected a column 'color', as in the training data"),
    (ValueError, "table.predict({'a': ['x'], 'color': ['red']})", "expected numbers in column 'a', got 'x'"),
    (TypeError, "table.predict(X)", "expected a data frame with the columns a, color | a new Model"),
    (TypeError, "trained.predict({'a': 1.0, 'b': 2.0})", "the columns a, b. | df.to_numpy() | trained on arrays"),
    (TypeError, "trained.predict([{'a': 1.0, 'b': 2.0}])", "a table with the columns a, b. | a new Model"),
    (TypeError, "trained.fit({'a': X[:, 0], 'b': X[:, 1], 'y': y}, 'y')", "the columns a, b. | a new Model"),
    (TypeError, "trained.evaluate({'a': X[:, 0], 'b': X[:, 1]}, y)", "the columns a, b. | with rows of (2,)"),
    (TypeError, "trained.fit(X, y, validation_data=([{'a': 1, 'b': 2}], y[:1]))", "the columns a, b. | a new Model"),
    (TypeError, "trained.predict([['a', 'b']])", "a numeric array | trained on arrays NF with rows of (2,)"),
    (TypeError, "scaled.predict({'a': [1.0]})", "a table with the columns a. Pass an array of its numbers"),
    (TypeError, "ArrayIterator({'a': [1.0]})", "a table with the columns a. Pass an array of its numbers"),
    (TypeError, "trained.evaluate(X, y, abs)", "a metric, such as Accuracy(), or its name, such as 'mse', | abs"),
    (ValueError, "regressor().fit(X, y)", "NeonRegressor: expected numbers as targets, got | 'x'"),
    (AttributeError, "trained.compile(optimizer='adam')", "'Model' object has no attribute 'compile'. Use model.fit("),
    (AttributeError, "trained.save('m.neon')", "no attribute 'save'. Use model.save_params(path)."),
    (AttributeError, "trained.score(X, y)", "no attribute 'score'. Use model.evaluate(X, y)."),
    (AttributeError, "nl.Model.generate", "Use from neonlite.models.generation import sample; for a language model."),
    (TypeError, "trained.eval()", "a metric, got none. Pass eval(dataset, metric). There is no mode to set"),
    (AttributeError, "trained[0].weight", "no attribute 'weight'. Use layer.W."),
    (TypeError, "Adam().step()", "Use optimizer.step(net.parameters, gradients), or optimizer.optimize(model."),
    (AttributeError, "nl.zeros((2, 2))", "no attribute 'zeros'. Use be.zeros, with be = nl.gen_backend()."),
    (TypeError, "nl.Tensor([1, 2])", "Tensor: expected a method of a backend, got [1, 2]. Call be.array(values)."),
    (TypeError, "nl.Tensor(X, 2)", "Tensor: expected a method of a backend"),
    (TypeError, "nl.OpTreeNode([1])", "OpTreeNode: expected an op dict | got [1]. Create tensors with be.array"),
    (AttributeError, "nl.Autodiff(be.ones((2, 2)) + 1).backward()", "Use autodiff.get_grad_op_tree(x) or"),
    (AttributeError, "nl.array_api.ones(2).float()", "Use x.astype(xp.float32)"),
    (AttributeError, "nl.float32", "Use 'float32'; as in be.zeros(shape, dtype='float32')"),
    (ImportError, "from neonlite import nn", "cannot import name 'nn' from 'neonlite'. Use nl.layers."),
    (AttributeError, "trained.fti(X, y)", "'Model' object has no attribute 'fti'"),
    (FileNotFoundError, "trained.save_params('missing/m.neon')", "there is no folder missing"),
    # --- iterators, as in neon ---
    (ValueError, "ArrayIterator(X, y=index, nclass=2)", "labels from 0 to 1, as nclass=2, got 2 in row 2"),
    (TypeError, "ArrayIterator(X, y=y, nclass=3)", "Number the labels: np.unique(y, return_inverse=True)[1]"),
    (AttributeError, "ArrayIterator(X, y=index)", "expected nclass | Pass nclass=10 for example, or make_onehot=False"),
    (ValueError, "be.bsz = 100; ArrayIterator(X, y=index, nclass=3)", "at most 60 | Set be.bsz = 60 or less"),
    (ValueError, "be.bsz = 0; model.fit(rows, 'cross_entropy', Adam(), 1)", "gen_backend(batch_size=N), or be.bsz = N"),
    (TypeError, "model.fit(1, 2, 3, 4)", "expected a data set, such as ArrayIterator(X, y), for dataset, got 1"),
    (TypeError, "model.fit(rows, **quick)", "expected a cost, such as CrossEntropyMulti(), for cost, got None"),
]

WARNINGS: list[tuple[str, str]] = [
    ("Model([Affine(3)]).fit(X, index, cost='cross_entropy', **quick)", "expects probabilities | with Softmax()"),
    ("Model([Affine(3)]).fit(rows, 'cross_entropy', Adam(), 1)", "CrossEntropyMulti expects probabilities | Softmax()"),
    ("conv_floats.predict(images)", "uint8 up to 255 and are not scaled | Scale them in the same way"),
    ("trained['hidden'].W[:] = np.nan; trained.predict(X)", "the outputs of row 0 are NaN | model.get_weights()"),
    ("model.fit(X, y, optimizer=GradientDescentMomentum(1e9), epochs=5, progress_bar=False)", "infinity | a lower"),
    ("model.fit(rows, 'cross_entropy', Adam(), 1); model.fit(rows, 'cross_entropy', Adam(), 1)",
     "nothing was trained | Pass num_epochs=2 to train 1 more"),
    ("conv().fit(images * 1.0, y, **quick)", "the inputs are from 0 to 255 and are not scaled | such as X / 255"),
    ("conv().fit(unscaled, 'cross_entropy', Adam(), 1)", "from 0 to 255 and are not scaled | Pass scale=1 / 255 to"),
    ("model.fit(X, y, batch_size=1, **quick)", "hidden_bnorm: a minibatch of one row | Use a batch size of 2 or more"),
    ("model.fit(ArrayIterator(X[:41], index[:41], nclass=3, partial_last=True), 'cross_entropy', Adam(), 1)",
     "hidden_bnorm: a minibatch of one row | that leaves no single row"),
    ("Model([Affine(2, activation='softmax')]).fit(X, 0 * index, **quick)", "all rows of y have the class 0 | Check y"),
    ("Model([Affine(2)]).predict(X)", "the weights are random | Call fit or load_params"),
    ("Model([Affine(2, activation='softmax')]).fit([['1.5', 'a'], ['2.5', 'b']], [0, 1], **quick)",
     "column '0' has numbers as text, such as '1.5' | astype(float)"),
    ("Model([softmax]).fit({'a': ['1,5', '-2', '3,25'] * 20}, y, **quick)",
     "column 'a' has numbers as text, such as '-2' | the decimal commas | pandas.read_csv(path, decimal=',')"),
]

# Calls that resemble these mistakes and are correct.
CORRECT = [
    "Adam(0.01)",
    "model.fit(X, index, **quick)",
    "model.fit(X, index, cost='sparse_categorical_crossentropy', **quick)",
    "model.fit(X, np.eye(3)[index], cost='categorical_crossentropy', **quick)",
    "model.fit(X, np.eye(3)[index], **quick)",
    "model.fit(X.tolist(), y.tolist(), **quick)",
    "Model([Affine(2)]).fit(X, **quick)",
    "trained.predict(X[0])",
    "trained.evaluate(X, y, 'mse')",
    "scaled.predict(images)",
    "scaled.predict(images / 255)",
    "Model([layers.DataTransform(transforms.Normalizer(divisor=255)), Affine(3, activation='softmax')]).fit(unscaled, "
    "'cross_entropy', Adam(), 1)",
    "Model([layers.LookupTable(256, 4), layers.RecurrentMean(), Affine(3, activation='softmax')]).fit(tokens, "
    "'cross_entropy', Adam(), 1)",
]
# fmt: on


class Own(optimizers.Optimizer):
    """An optimizer that cannot be saved."""

    def __init__(self, rule: Any = abs) -> None:
        super().__init__()
        self.learning_rate, self.rule = 0.1, rule

    def optimize(self, layer_list: Any, epoch: int) -> None:
        """Leave the weights unchanged."""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> dict[str, Any]:
    """Return the names that the code of the user can use; a network is trained only if the code has its name."""
    monkeypatch.chdir(tmp_path)
    be = nl.gen_backend("cpu", rng_seed=0, batch_size=20)
    rng = np.random.default_rng(0)
    X, index = rng.normal(size=(60, 2)), np.arange(60) % 3
    y = np.array(["x", "y", "zero"])[index]
    images = rng.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
    images[0, 0, 0, :2] = 0, 255

    def softmax() -> Any:
        return layers.Affine(3, activation="softmax")

    def conv(size: int = 3) -> nl.Model:
        return nl.Model([layers.Conv((size, size, 8)), softmax()])

    def rnn() -> nl.Model:
        return nl.Model([layers.LSTM(4), layers.RecurrentLast(), softmax()])

    def fitted(model: nl.Model, *data: Any, **options: Any) -> nl.Model:
        model.fit(*data, **QUICK | options)
        return model

    def hidden(batch_norm: bool = False) -> Any:
        return layers.Affine(4, batch_norm=batch_norm, activation="relu", name="hidden")

    def regressor() -> Any:
        return pytest.importorskip("neonlite.sklearn").NeonRegressor()

    s = SimpleNamespace(
        be=be, X=X, y=y, index=index, images=images, conv=conv, rnn=rnn, regressor=regressor, quick=QUICK, Own=Own
    )
    s.softmax = softmax()
    s.model = nl.Model([hidden(batch_norm=True), softmax()])
    s.rows = data.ArrayIterator(X, index, nclass=3)
    s.unscaled = data.ArrayIterator(images, index, nclass=3)
    s.tokens = data.ArrayIterator(images[:, 0, 0], index, nclass=3, lshape=(1, 8))
    scaled = data.ArrayIterator(images, index, nclass=3, scale=1 / 255)
    networks = {
        "trained": lambda: fitted(nl.Model([hidden(), layers.Affine(3, activation="softmax")]), X, y),
        "regression": lambda: fitted(nl.Model([layers.Affine(1)]), X, X[:, 0]),
        "table": lambda: fitted(nl.Model([softmax()]), {"a": X[:, 0], "color": ["red", "blue"] * 30}, y),
        "sequences": lambda: fitted(rnn(), rng.normal(size=(60, 4, 7)), y, layout="NFT"),
        "conv_model": lambda: fitted(conv(), images, y),
        "conv_floats": lambda: fitted(conv(), images / 255, y),
        "scaled": lambda: fitted(nl.Model([softmax()]), scaled, "cross_entropy", optimizers.Adam()),
    }
    vars(s).update({name: train() for name, train in networks.items() if name in code})
    modules = (callbacks, data, initializers, layers, models, optimizers, transforms)
    public = {name: getattr(module, name) for module in modules for name in module.__all__}
    own = {"nl": nl, "np": np, "layers": layers, "transforms": transforms}
    return public | own | vars(s)


def require_texts(message: str, texts: str) -> None:
    missing = [text for text in texts.split(" | ") if text not in message]
    assert not missing, f"{missing} not in: {message}"


@pytest.mark.parametrize(("kind", "code", "texts"), ERRORS, ids=[code for _, code, _ in ERRORS])
def test_a_mistake_is_an_error_that_says_what_to_do(
    names: dict[str, Any], kind: type[Exception], code: str, texts: str
) -> None:
    with pytest.raises(kind) as caught:
        exec(code, names)
    assert type(caught.value) is kind or kind is ValueError
    require_texts(str(caught.value), texts)


@pytest.mark.parametrize(("code", "texts"), WARNINGS, ids=[code for code, _ in WARNINGS])
def test_a_likely_mistake_is_a_warning_that_says_what_to_do(names: dict[str, Any], code: str, texts: str) -> None:
    with pytest.warns((UserWarning, RuntimeWarning)) as caught:
        exec(code, names)
    require_texts("\n".join(str(warning.message) for warning in caught), texts)


@pytest.mark.parametrize("code", CORRECT)
def test_a_correct_call_gives_no_warning(names: dict[str, Any], code: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(code, names)


def test_there_are_sixty_mistakes() -> None:
    assert len({code for _, code, _ in ERRORS} | {code for code, _ in WARNINGS}) >= 60
