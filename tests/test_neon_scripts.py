"""Scripts in the style of neon's examples, run on small synthetic data."""

from __future__ import annotations

import logging
import os
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
from helpers.dataset_files import write_images, write_reviews

from neonlite import NervanaObject, gen_backend, logger
from neonlite.argparser import NeonArgparser, extract_valid_args
from neonlite.callbacks import BatchNormTuneCallback, Callback, Callbacks, GANPlotCallback, MetricCallback
from neonlite.data import IMDB, MNIST, PTB, ArrayIterator, CopyTask, HutterPrize, Shakespeare, Text, Ticker
from neonlite.initializers import Constant, Gaussian, GlorotUniform, Uniform
from neonlite.layers import (
    LSTM,
    Activation,
    Affine,
    BatchNorm,
    BiRNN,
    Conv,
    Dropout,
    GeneralizedCost,
    GeneralizedCostMask,
    GeneralizedGANCost,
    GenerativeAdversarial,
    LookupTable,
    MergeMultistream,
    Pooling,
    RecurrentSum,
    Reshape,
    Sequential,
)
from neonlite.models import GAN, Benchmark, Model
from neonlite.optimizers import Adagrad, Adam, GradientDescentMomentum, MultiOptimizer, PowerSchedule, RMSProp
from neonlite.transforms import (
    Accuracy,
    CrossEntropyBinary,
    CrossEntropyMulti,
    GANCost,
    Logistic,
    Misclassification,
    Rectlin,
    Softmax,
    Tanh,
)

COMMAND = ["-b", "cpu", "-r", "1", "-z", "10", "-e", "2", "--no_progress_bar"]


def parse(*argv: Any, gen_be: bool = True, **options: Any) -> Any:
    """Parse the command line of a script."""
    return NeonArgparser(__doc__, **options).parse_args([*COMMAND, *map(str, argv)], gen_be=gen_be)


def labeled(n: int = 40, shape: tuple[int, ...] = (1, 6, 6), nclass: int = 3) -> tuple[Any, Any]:
    """Return images (n, F), whose class is the index of their bright row, and the classes (n, 1)."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, nclass, (n, 1))
    X = rng.uniform(0, 0.3, (n, *shape))
    for image, label in zip(X, y[:, 0], strict=True):
        image[:, label] += 0.7
    return X.reshape(n, -1).astype(np.float32), y


@pytest.mark.parametrize("rounding", [[], ["-u"], ["-u", "10"]])
def test_a_multilayer_perceptron(tmp_path, rounding):
    args = parse(*rounding, "-w", tmp_path, "-e", 4)
    be = gen_backend(**extract_valid_args(args, gen_backend))
    assert args.datatype in [np.float32, np.float16]
    assert (args.backend, be.bsz) == ("cpu", args.batch_size)
    X, y = labeled()
    train_set = ArrayIterator(X, y, nclass=3, lshape=(1, 6, 6))
    valid_set = ArrayIterator(X, y, nclass=3, lshape=(1, 6, 6))
    init = Gaussian(loc=0.0, scale=0.1)
    layers = [
        Affine(nout=np.int64(12), init=init, bias=Constant(0), activation=Rectlin()),
        Affine(nout=3, init=init, batch_norm=1, activation=Logistic(shortcut=True)),
    ]
    cost = GeneralizedCost(costfunc=CrossEntropyBinary())
    optimizer = GradientDescentMomentum(
        0.1, momentum_coef=0.9, stochastic_round=args.rounding, schedule=PowerSchedule(step_config=2, change=0.5)
    )
    mlp = Model(layers=layers)
    mlp.cost = cost
    mlp.initialize(train_set, cost=mlp.cost)
    callbacks = Callbacks(mlp, eval_set=valid_set, **args.callback_args)
    callbacks.add_callback(MetricCallback(valid_set, Misclassification(), epoch_freq=1))
    callbacks.add_callback(BatchNormTuneCallback(train_set))
    mlp.fit(train_set, optimizer=optimizer, num_epochs=args.epochs, cost=cost, callbacks=callbacks)
    error_rate = mlp.eval(valid_set, metric=Misclassification())
    text = "Misclassification error = %.1f%%" % (error_rate * 100)
    assert text == f"Misclassification error = {error_rate[0] * 100:.1f}%"
    assert error_rate < 0.3
    assert os.path.join(args.data_dir, "model.prm").split("/")[-1] == "model.prm"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_convolutional_network_with_two_optimizers(dtype):
    args = parse("-d", dtype, gen_be=False)
    be = gen_backend(backend=args.backend, datatype=args.datatype, batch_size=args.batch_size, rng_seed=args.rng_seed)
    assert be.default_dtype == args.datatype
    X, y = labeled()
    (X_train, y_train), (X_test, y_test), nclass = (X, y), (X, y), 3
    train = ArrayIterator(X_train, y_train, nclass=nclass, lshape=(1, 6, 6))
    test = ArrayIterator(X_test, y_test, nclass=nclass, lshape=(1, 6, 6))
    init_uni = Uniform(low=-0.2, high=0.2)
    layers = [
        Conv(fshape=(3, 3, 4), init=init_uni, padding=1, activation=Rectlin()),
        Pooling(fshape=2, strides=2),
        Dropout(keep=0.9),
        Affine(nout=3, init=init_uni, bias=Constant(0), activation=Softmax()),
    ]
    model = Model(layers)
    model.set_batch_size(args.batch_size)
    opt = MultiOptimizer({"default": RMSProp(learning_rate=0.02), "Bias": Adagrad(stochastic_round=args.rounding)})
    cost = GeneralizedCost(costfunc=CrossEntropyMulti())
    callbacks = Callbacks(model, eval_set=test, metric=Accuracy(), **args.callback_args)
    model.fit(train, optimizer=opt, num_epochs=6, cost=cost, callbacks=callbacks)
    assert f"{model.eval(test, metric=Accuracy()):.2f}" > "0.70"
    stats = Benchmark(model).time(train, niterations=3)
    with TestCase().assertLogs("neonlite", "INFO") as log:
        Benchmark.print_stats(stats, output=logging.getLogger("neonlite"), nskip=1)
    assert "fprop" in log.output[0]


def test_a_classifier_of_mnist_files(tmp_path):
    write_images(tmp_path)
    args = parse("--data_dir", tmp_path, "-z", 5)
    dataset = MNIST(path=args.data_dir, normalize=True)
    train_set, valid_set = dataset.train_iter, dataset.valid_iter
    model = Model([Affine(nout=10, init=GlorotUniform(), activation=Softmax())])
    model.fit(train_set, GeneralizedCost(CrossEntropyMulti()), Adam(), num_epochs=args.epochs)
    assert 0 <= float(model.eval(valid_set, metric=Misclassification())) <= 1


def test_a_language_model_of_words(tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb.{part}.txt").write_text(" a cat <unk> the mat \n the dog ran \n" * 20)
    args = parse("-w", tmp_path, "-z", 2)
    dataset = PTB(5, path=args.data_dir, tokenizer="newline_tokenizer", onehot_input=False)
    train_set, valid_set = dataset.train_iter, dataset.valid_iter
    init = Uniform(-0.3, 0.3)
    layers = [
        LookupTable(vocab_size=train_set.nout, embedding_dim=6, init=init, update=True),
        LSTM(8, init, activation=Tanh(), gate_activation=Logistic()),
        Affine(train_set.nout, init, bias=init, activation=Softmax()),
    ]
    model = Model(layers=layers)
    cost = GeneralizedCost(costfunc=CrossEntropyMulti(usebits=True))
    callbacks = Callbacks(model, eval_set=valid_set, **args.callback_args)
    model.fit(train_set, optimizer=Adam(0, 0.02), num_epochs=args.epochs, cost=cost, callbacks=callbacks)
    assert train_set.X.shape == (args.batch_size, train_set.nbatches, train_set.seq_length)


def test_sentiment_of_reviews(tmp_path):
    write_reviews(tmp_path / "aclImdb")
    args = parse("-w", tmp_path, "-z", 2)
    imdb = IMDB(vocab_size=20, sentence_length=6, path=args.data_dir)
    uni, glorot = Uniform(low=-0.1, high=0.1), GlorotUniform()
    layers = [
        LookupTable(vocab_size=20, embedding_dim=4, init=uni),
        LSTM(4, glorot, activation=Tanh(), gate_activation=Logistic(), reset_cells=True),
        RecurrentSum(),
        Dropout(keep=0.5),
        Affine(2, glorot, bias=glorot, activation=Softmax()),
    ]
    model = Model(layers)
    cost = GeneralizedCost(costfunc=CrossEntropyMulti(usebits=True))
    optimizer = Adagrad(learning_rate=0.01, gradient_clip_value=15)
    callbacks = Callbacks(model, eval_set=imdb.valid_iter, **args.callback_args)
    model.fit(imdb.train_iter, optimizer=optimizer, num_epochs=args.epochs, cost=cost, callbacks=callbacks)
    text = f"Test  Accuracy: {100 * model.eval(imdb.valid_iter, metric=Accuracy()):.1f}"
    assert text.startswith("Test  Accuracy: ")
    assert imdb.test_iter is imdb.valid_iter


def test_images_in_a_recurrent_layer_and_two_streams():
    parse()
    X, y = labeled(nclass=2)
    data = ArrayIterator([X, X], y, nclass=2, lshape=(1, 6, 6))
    init = Gaussian(scale=0.2)
    look = [Conv((3, 3, 2), init, padding=1, batch_norm=True, activation=Rectlin())]
    read = [*Conv((1, 1, 2), init), BiRNN(4, init, activation=Rectlin(), reset_cells=True)]
    path = MergeMultistream(layers=[look, Sequential(read)], merge="stack")
    model = Model([path, Affine(2, init, activation=Softmax())])
    model.fit(data, GeneralizedCost(CrossEntropyMulti()), Adam(learning_rate=0.01), num_epochs=4)
    assert model.eval(data, Misclassification()) < 0.2


def test_the_copy_task():
    args = parse("-z", 4)
    seq_len_max, vec_size = 3, 2
    train_set = Ticker(CopyTask(seq_len_max, vec_size), ndata=8)
    init = GlorotUniform()
    layers = [
        LSTM(8, init, activation=Tanh(), gate_activation=Logistic(), reset_cells=True),
        Affine(train_set.nout, init, bias=init, activation=Logistic()),
    ]
    model = Model(layers=layers)
    cost = GeneralizedCostMask(costfunc=CrossEntropyBinary())
    model.fit(train_set, optimizer=RMSProp(stochastic_round=args.rounding), num_epochs=args.epochs, cost=cost)
    assert train_set.shape == (vec_size + 2, 2 * seq_len_max + 2)


def test_a_generator_and_its_discriminator(tmp_path):
    pytest.importorskip("matplotlib")
    args = parse("-z", 9)
    X, y = labeled(27)
    train = ArrayIterator(2 * X - 1, y, nclass=3, lshape=(1, 6, 6))
    init = Gaussian(scale=0.05)
    dis_layers = [Conv((3, 3, 4), init, activation=Rectlin(slope=0.1)), Affine(1, init, activation=Logistic())]
    gen_layers = [Affine(8, init, activation=Rectlin()), BatchNorm(), Affine(36, init, activation=Tanh())]
    layers = GenerativeAdversarial(
        generator=Sequential(gen_layers, name="Generator"),
        discriminator=Sequential([Reshape((1, 6, 6)), *dis_layers], name="Discriminator"),
    )
    cost = GeneralizedGANCost(costfunc=GANCost(func="modified"))
    gan = GAN(layers=layers, noise_dim=4)
    callbacks = Callbacks(gan, eval_set=train, **args.callback_args)
    picture = {"filename": str(tmp_path / "gan"), "hw": 6, "num_samples": args.batch_size, "nchan": 1}
    callbacks.add_callback(GANPlotCallback(**picture, sym_range=True))
    gan.fit(train, optimizer=Adam(learning_rate=0.001), num_epochs=args.epochs, cost=cost, callbacks=callbacks)
    assert sorted(os.listdir(tmp_path)) == ["gan_1.png", "gan_2.png"]


def test_a_language_model_with_a_configuration_file(tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 9)
    (tmp_path / "char.cfg").write_text("epochs = 1\nbatch_size: 3\nmanifest = [train:a.csv, val:b.csv]\n")
    parser = NeonArgparser(__doc__, default_config_files=[str(tmp_path / "char.cfg")])
    args = parser.parse_args(["-b", "cpu", "--no_progress_bar"])
    assert (args.epochs, NervanaObject.be.bsz, args.manifest["val"]) == (1, 3, "b.csv")
    train_path, valid_path = Text.create_valid_file(str(tmp_path / "text.txt"))
    train_set = Text(8, train_path)
    valid_set = Text(8, valid_path, vocab=train_set.vocab)
    init = Uniform(-0.1, 0.1)
    model = Model(
        [
            LSTM(8, init, activation=Tanh(), gate_activation=Logistic()),
            Affine(len(train_set.vocab), init, bias=init, activation=Softmax()),
        ]
    )
    callbacks = Callbacks(model, eval_set=valid_set, **args.callback_args)
    cost = GeneralizedCost(costfunc=CrossEntropyMulti(usebits=True))
    model.fit(
        train_set, optimizer=RMSProp(gradient_clip_value=15), num_epochs=args.epochs, cost=cost, callbacks=callbacks
    )
    assert model.epoch_index == 1


def test_books_have_neons_arguments(tmp_path):
    parse("-z", 2)
    (tmp_path / "input.txt").write_text("to be or not to be " * 20)
    (tmp_path / "enwik8").write_text("an encyclopedia of all " * 60)
    assert Shakespeare(timesteps=5, path=tmp_path).get_iterator("train").seq_length == 5
    assert {*HutterPrize(5, tmp_path).data_dict} == {"train", "valid", "test"}


def test_the_logger_displays_messages():
    with TestCase().assertNoLogs("neonlite", logging.CRITICAL - 1):
        logger.error("hidden")
    with TestCase().assertLogs("neonlite", "WARNING") as log:
        logger.display("cost %.1f", 0.5)
    assert [(record.levelname, record.getMessage()) for record in log.records] == [("DISPLAY", "cost 0.5")]


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda: Activation(Tanh()).allocate(accumulate_updates=True)),
        (BufferError, lambda: Affine(2, Constant(0))[0].set_acc_on(True)),
        (ValueError, lambda: LSTM(2, Constant(0), activation=Tanh()).set_seq_len(3)),
        (ValueError, lambda: Model([Affine(2, Constant(0))]).set_seq_len(3)),
    ],
)
def test_a_layer_that_is_not_configured_raises_neons_exceptions(error, call):
    parse()
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("event", ["on_epoch_end", "on_minibatch_end", "on_train_begin"])
def test_a_callback_with_neons_signature_is_an_error_when_it_is_added(event):
    parse()

    def on_event(self, callback_data, model, epoch, minibatch=None):
        """An event with neon's arguments."""

    callbacks = Callbacks(Model([Affine(2, Constant(0))]), progress_bar=False)
    with pytest.raises(TypeError, match=rf"Neons.{event}: expected the parameters \(self, epoch.*neon's model is self"):
        callbacks.add_callback(type("Neons", (Callback,), {event: on_event})())


def test_multi_optimizer_ignores_classes_of_layers_that_the_network_lacks():
    parse()
    default, other = GradientDescentMomentum(0.1, 0.9), RMSProp()
    optimizer = MultiOptimizer({"default": default, "BatchNorm": other, "Bias": other})
    model = Model([Affine(2, Constant(0), bias=Constant(0))])
    model.initialize(3)
    optimizer.optimize(model.layers_to_optimize, epoch=0)
    linear, bias = model.layers_to_optimize
    assert optimizer.map_list == {default: [linear], other: [bias]}
    with pytest.raises(ValueError, match="got BatchNrom"):
        MultiOptimizer({"default": default, "BatchNrom": other}).optimize(model.layers_to_optimize, epoch=0)
