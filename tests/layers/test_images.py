"""Convolution and deconvolution, compared with PyTorch and numerical gradients (neonlite/layers/images.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.image_layers import (
    NORMALIZATIONS,
    OPS,
    POOLINGS,
    Slide,
    Torch,
    close,
    numbers,
    pooling,
    run,
    volume,
    window,
)
from helpers.networks import allocate
from helpers.parametrize import each

from neonlite import Backend
from neonlite.autodiff import Autodiff
from neonlite.initializers import Constant, Gaussian, Kaiming
from neonlite.layers import (
    LRN,
    Affine,
    Conv,
    Convolution,
    Convolution_bias,
    Deconv,
    Deconvolution,
    GeneralizedCost,
    Linear,
    Pooling,
    Sequential,
)
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import CrossEntropyMulti, Logistic, Rectlin, Softmax, SumSquared

Sizes = tuple[int, ...]


CONVOLUTIONS = [
    Slide(1, (1, 1, 1), (1, 1, 1)),
    Slide(3, (2, 5, 7), (3, 2, 4)),
    Slide(2, (3, 5, 7), (5, 7, 2)),  # a filter as large as the image
    Slide(2, (3, 7, 5), (1, 2, 5), strides=(1, 3, 4)),  # gaps between filters
    Slide(5, (1, 7, 6), (3, 2, 3), padding=(0, 2, 1), dilation=(1, 2, 3)),
    Slide(2, (2, 2, 3), (2, 1, 2), padding=(0, 3, 2)),  # filters in the padding alone
    Slide(1, (2, 11, 3), (3, 3, 1), strides=(1, 2, 2), padding=(0, 1, 1)),  # the last rows are not reached
    Slide(2, (3, 3, 4, 5), (2, 3, 2, 2), strides=(2, 1, 2), padding=(1, 0, 1), dilation=(1, 1, 2)),
    Slide(3, (2, 4, 3, 3), (2, 2, 3), strides=(1, 2, 1)),  # depth in the images alone
]


DECONVOLUTIONS = [
    Slide(1, (1, 1, 1), (1, 1, 1)),
    Slide(3, (2, 3, 5), (3, 2, 4)),
    Slide(2, (3, 2, 3), (2, 3, 1), strides=(1, 3, 4)),  # gaps between stamps
    Slide(2, (1, 4, 3), (3, 4, 2), strides=(1, 2, 1), padding=(0, 1, 2), dilation=(1, 2, 1)),
    Slide(2, (3, 2, 3, 2), (2, 3, 2, 2), strides=(2, 1, 2), padding=(1, 0, 1), dilation=(1, 2, 2)),
    Slide(2, (3, 1, 2), (3, 2, 2, 2)),  # depth appears
]


FLAT = (1, 1, 1)


# --- single layers ---------------------------------------------------------------------------------------------------
def convolution(slide: Slide, **more: Any) -> Any:
    kind = Convolution_bias if "bias" in more else Convolution
    return kind(slide.fshape, slide.strides, slide.padding, slide.dilation, init=Gaussian(), **more)


def deconvolution(slide: Slide, **more: Any) -> Any:
    return Deconvolution(slide.fshape, slide.strides, slide.padding, slide.dilation, init=Gaussian(), **more)


@pytest.mark.parametrize("slide", CONVOLUTIONS)
def test_a_convolution_and_its_gradients_are_those_of_pytorch(
    be64: Backend, rng: np.random.Generator, oracle: Torch, slide: Slide
) -> None:
    layer = allocate(be64, convolution(slide, bias=Gaussian(), bsum=True), slide.shape, slide.N)
    ran = run(be64, layer, rng)

    C, K, TRS = slide.shape[0], slide.fshape[-1], window(slide, "K")
    x = oracle.images(ran.x, slide.shape)
    w = oracle.leaf(np.moveaxis(layer.W.get().reshape(C, *TRS, K), -1, 0))
    b = oracle.leaf(layer.weight_bias.get().reshape(-1))
    y = oracle.F.conv3d(x, w, b, slide.strides, slide.padding, slide.dilation)
    dx, dw, db = oracle.gradients(y, ran.error, x, w, b)

    assert volume(layer.out_shape) == y.shape[1:]
    assert len(layer.out_shape) == len(slide.shape)
    close(ran.outputs, oracle.columns(y))
    close(layer.batch_sum.get(), y.detach().sum((0, 2, 3, 4)))
    close(ran.deltas, oracle.columns(dx))
    close(layer.dW.get(), np.moveaxis(dw.numpy(), 0, -1))
    close(layer.grad_bias.get(), db)


@pytest.mark.parametrize("slide", DECONVOLUTIONS)
def test_a_deconvolution_and_its_gradients_are_those_of_pytorch(
    be64: Backend, rng: np.random.Generator, oracle: Torch, slide: Slide
) -> None:
    layer = allocate(be64, deconvolution(slide, bsum=True), slide.shape, slide.N)
    ran = run(be64, layer, rng)

    K, C, TRS = slide.shape[0], slide.fshape[-1], window(slide, "C")
    x = oracle.images(ran.x, slide.shape)
    w = oracle.leaf(np.moveaxis(layer.W.get().reshape(C, *TRS, K), -1, 0))
    y = oracle.F.conv_transpose3d(x, w, None, slide.strides, slide.padding, 0, 1, slide.dilation)
    dx, dw = oracle.gradients(y, ran.error, x, w)

    assert volume(layer.out_shape) == y.shape[1:]
    close(ran.outputs, oracle.columns(y))
    close(layer.batch_sum.get(), y.detach().sum((0, 2, 3, 4)))
    close(ran.deltas, oracle.columns(dx))
    close(layer.dW.get(), np.moveaxis(dw.numpy(), 0, -1))


# --- comparison with formulas and numerical gradients ----------------------------------------------------------------
MAKERS: list[tuple[Callable[[Slide], Any], Slide]] = [
    *((lambda s: convolution(s, bias=Gaussian()), slide) for slide in CONVOLUTIONS),
    *((deconvolution, slide) for slide in DECONVOLUTIONS),
    *((lambda s, op=op: pooling(s, op), slide) for slide in POOLINGS[:-1] for op in OPS),
    *(
        (lambda s, op=op: Pooling({"J": 2, "R": 2}, op, {"str_c": 1}, {"pad_c": 1}), Slide(2, (3, 4, 2), 0))
        for op in OPS
    ),
    *((lambda s: LRN(s.fshape, 1.5, 0, 0.7, 0.75), slide) for slide in NORMALIZATIONS),
]


@each("make, slide", MAKERS)
def test_handwritten_passes_match_the_formula_and_its_derivative(
    be64: Backend, rng: np.random.Generator, make: Callable[[Slide], Any], slide: Slide
) -> None:
    layer = allocate(be64, make(slide), slide.shape, slide.N)
    ran = run(be64, layer, rng)
    tree = layer.formula(ran.inputs)
    close(ran.outputs, tree.asnumpyarray())
    wanted = Autodiff(tree, be64, ran.errors).get_grad_asnumpyarray([ran.inputs, *layer.parameters])
    for found, truth in zip([ran.deltas, *(g.get() for g in layer.gradients)], wanted, strict=True):
        close(found, truth)


def test_gradients_are_numerical_gradients(be64: Backend, rng: np.random.Generator) -> None:
    h = 1e-5
    layers = [
        convolution(CONVOLUTIONS[4], bias=Gaussian()),
        deconvolution(DECONVOLUTIONS[3]),
        *(pooling(POOLINGS[3], op) for op in OPS),
        LRN(3, alpha=0.5, ascale=2.0, bpower=0.6),
    ]
    slides = [CONVOLUTIONS[4], DECONVOLUTIONS[3], *[POOLINGS[3]] * 3, Slide(2, (5, 3, 2), 3)]
    for layer, slide in zip(layers, slides, strict=True):
        ran = run(be64, allocate(be64, layer, slide.shape, slide.N), rng)
        tensors = [
            (ran.inputs, ran.deltas),
            *((p, g.get()) for p, g in zip(layer.parameters, layer.gradients, strict=True)),
        ]
        for tensor, gradient in tensors:
            there = tensor.get()
            for place in rng.choice(there.size, min(6, there.size), replace=False):
                energies = []
                for step in (h, -h):
                    moved = there.copy()
                    moved.flat[place] += step
                    tensor[:] = moved
                    energies.append(np.sum(layer.fprop(ran.inputs).get() * ran.error))
                tensor[:] = there
                slope = (energies[0] - energies[1]) / (2 * h)
                assert gradient.flat[place] == pytest.approx(slope, rel=1e-6, abs=1e-6), layer


# --- alpha and beta --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "make",
    [
        lambda: Convolution_bias((2, 3, 4), padding=1, init=Gaussian(), bias=Gaussian(), bsum=True),
        lambda: Deconvolution((2, 3, 4), strides=2, init=Gaussian(), bsum=True),
        *(lambda op=op: Pooling(2, op, strides=1) for op in OPS),
        lambda: LRN(3),
    ],
)
def test_beta_adds_to_the_outputs_and_the_deltas(be64: Backend, rng: np.random.Generator, make: Any) -> None:
    layer = allocate(be64, make(), (3, 4, 5), 2)
    ran = run(be64, layer, rng)
    once, sums = ran.outputs, getattr(layer, "batch_sum", None)
    gradients = [g.get() for g in layer.gradients]

    close(layer.fprop(ran.inputs, beta=0.25).get(), 1.25 * once)
    if sums is not None:
        close(sums.get(), 1.25 * once.reshape(4, -1).sum(1))
    close(layer.bprop(ran.errors, alpha=3.0, beta=0.5).get(), 3.5 * ran.deltas)
    close(layer.bprop(ran.errors, alpha=2.0).get(), 2 * ran.deltas)
    for found, wanted in zip(layer.gradients, gradients, strict=True):
        close(found.get(), wanted)


# --- sizes -----------------------------------------------------------------------------------------------------------
def test_sizes_are_numbers_tuples_or_dicts(cpu: Backend) -> None:
    def found(layer: Any, shape: Sizes = (3, 9, 11)) -> tuple[Any, ...]:
        g = layer.configure(shape).nglayer
        return layer.out_shape, g.TRS, g.strides, g.padding, getattr(g, "dilation", None)

    wanted = found(Convolution((3, 2, 5), (2, 2), (1, 1), (2, 2)))
    assert wanted == ((5, 4, 6), (1, 3, 2), (1, 2, 2), (0, 1, 1), (1, 2, 2))
    assert found(Convolution([3, 2, 5], 2, 1, 2)) == wanted
    assert found(Convolution({"R": 3, "S": 2, "K": 5}, (1, 2, 2), (0, 1, 1), (1, 2, 2))) == wanted
    named = {"str_h": 2, "str_w": 2}, {"pad_h": 1, "pad_w": 1}, {"dil_h": 2, "dil_w": 2}
    assert found(Convolution((3, 2, 5), *named)) == wanted
    assert found(Convolution((1, 3, 2, 5), 2, 1, 2)) == wanted  # a number is not for a depth that images do not have
    assert found(Convolution((3, 2, 5), {"str_w": 3}, {}))[2:4] == ((1, 1, 3), (0, 0, 0))
    assert found(Convolution((2, 3, 3, 5), 2, 1), (3, 4, 5, 6))[2:4] == ((2, 2, 2), (1, 1, 1))
    assert found(Convolution((3, 3, 5), 2, 1), (3, 4, 5, 6))[2:4] == ((1, 2, 2), (0, 1, 1))  # nor for one filters lack

    assert Pooling(2).configure((3, 9, 11)).nglayer.strides == (1, 1, 2, 2)
    assert Pooling({"R": 3, "S": 2}, strides={"str_h": 1}).configure((3, 9, 11)).nglayer.strides == (1, 1, 1, 2)
    assert Pooling((3, 2), strides=1, padding=1).configure((3, 9, 11)).nglayer.padding == (0, 0, 1, 1)
    assert Pooling((2, 3, 3), padding=1).configure((3, 4, 9, 11)).nglayer.padding == (0, 1, 1, 1)
    assert Pooling({"J": 3}).configure((9, 2, 2)).out_shape == (3, 2, 2)  # maxout
    assert Pooling("all").configure((3, 2, 9, 11)).out_shape == (3, 1, 1, 1)  # depth stays where it was
    assert found(Deconvolution({"R": 3, "S": 2, "C": 5}, 2, 1)) == found(Deconvolution((3, 2, 5), (2, 2), (1, 1)))


def test_a_layer_is_created_again_from_its_description(cpu: Backend) -> None:
    layers = [
        Convolution((3, 2, 5), {"str_h": 2}, init=Constant(1)),
        Convolution_bias((3, 2, 5), padding=(1, 0), init=Constant(1), bias=Constant(2)),
        Deconvolution((3, 2, 5), 2, init=Constant(1)),
        Pooling("all", "avg"),
        LRN(5, ascale=0.5),
    ]
    for layer in layers:
        config = layer.get_description()["config"]
        again = type(layer).gen_class(config)
        assert again.configure((3, 4, 4)).out_shape == layer.configure((3, 4, 4)).out_shape
        assert again.get_description()["config"] == config


# --- buffers ---------------------------------------------------------------------------------------------------------
def test_the_batch_size_may_come_after_the_shapes(be: Backend) -> None:
    layers = [Convolution((2, 2, 3), init=Gaussian()), Deconvolution((2, 2, 3), init=Gaussian()), Pooling(2), LRN(3)]
    for layer in layers:
        be.bsz = 0
        layer.configure((3, 4, 4))
        be.bsz = 2
        layer.allocate()
        assert layer.nglayer.N == 2
        assert layer.fprop(be.ones((48, 2))).shape == layer.outputs.shape
        be.bsz = 5
        layer.allocate()
        assert layer.fprop(be.ones((48, 5))).shape[1] == layer.nglayer.N == 5


def test_the_first_layer_has_no_deltas_and_inference_gives_the_same_outputs(
    be64: Backend, rng: np.random.Generator
) -> None:
    be64.bsz = 2
    for layer in [convolution(CONVOLUTIONS[1]), deconvolution(DECONVOLUTIONS[1]), Pooling(2), Pooling(2, "l2"), LRN(3)]:
        layer.configure((2, 5, 7)).allocate()
        layer.allocate_deltas()
        _, x = numbers(rng, be64, 70, 2)
        _, error = numbers(rng, be64, *layer.outputs.shape)
        learning = layer.fprop(x).get()
        assert layer.bprop(error) is None
        close(layer.fprop(x, inference=True).get(), learning)


def test_a_bias_is_a_parameter_besides_the_weights(be: Backend, rng: np.random.Generator) -> None:
    layer = allocate(be, Convolution_bias((3, 3, 4), init=Gaussian(), bias=Constant(0.5)), (2, 5, 5), 2)
    (weights, w_states), (bias, b_states) = layer.get_params()
    assert weights[0] is layer.W
    assert weights[1] is layer.dW
    assert bias[0] is layer.weight_bias
    assert bias[1] is layer.grad_bias
    assert w_states == b_states == []
    assert layer.W.shape == (18, 4)
    assert layer.weight_bias.get().tolist() == [[0.5]] * 4
    run(be, layer, rng)
    there = layer.weight_bias.get()
    GradientDescentMomentum(0.1, 0.0).optimize([layer], 0)
    np.testing.assert_allclose(layer.weight_bias.get(), there - 0.1 * layer.grad_bias.get() / 2, rtol=1e-5)
    layer.weight_bias = np.arange(4.0).reshape(4, 1)
    assert layer.weight_bias is bias[0]
    assert layer.parameters[1].get().ravel().tolist() == [0, 1, 2, 3]


# --- networks --------------------------------------------------------------------------------------------------------
def learn(be: Backend, layers: Sequence[Any], cost: Any, x: Any, t: Any, shape: Any, steps: int, rate: float) -> Any:
    """Train a network on one minibatch; return it, and the cost at each step."""
    be.bsz = x.shape[1]
    net = Sequential(layers)
    net.configure(shape)
    net.allocate()
    net.allocate_deltas()
    loss = GeneralizedCost(cost)
    loss.initialize(net)
    optimizer, inputs, targets, costs = GradientDescentMomentum(rate, 0.9), be.array(x), be.array(t), []
    for _ in range(steps):
        outputs = net.fprop(inputs)
        costs.append(float(loss.get_cost(outputs, targets)[0, 0]))
        net.bprop(loss.get_errors(outputs, targets))
        optimizer.optimize(net.layers_to_optimize, 0)
    return net, costs


def bars(rng: np.random.Generator, N: int) -> tuple[Any, Any]:
    """Return noisy images (6, 6) of a bar, and its direction."""
    x, t = rng.normal(0, 0.1, (6, 6, N)), np.zeros((2, N))
    for n in range(N):
        way, place = n % 2, rng.integers(6)
        (x[place] if way else x[:, place])[:, n] += 1
        t[way, n] = 1
    return x.reshape(36, N), t


def test_a_network_learns_to_classify_bars(be: Backend, rng: np.random.Generator) -> None:
    layers = [
        Conv((3, 3, 4), Kaiming(), padding=1, bias=Constant(0), activation=Rectlin(), name="c1"),
        LRN(3, ascale=0.01),
        Pooling(2),
        Conv((2, 2, 4), Kaiming(), activation=Rectlin(), name="c2"),
        Pooling("all", op="avg"),
        Affine(2, Kaiming(local=False), bias=Constant(0), activation=Softmax()),
    ]
    net, costs = learn(be, layers, CrossEntropyMulti(), *bars(rng, 20), (1, 6, 6), steps=80, rate=0.2)
    assert [layer.out_shape for layer in net.layers] == [
        *[(4, 6, 6)] * 3,
        (4, 3, 3),
        *[(4, 2, 2)] * 2,
        (4, 1, 1),
        *[2] * 3,
    ]
    assert len(net.layers_to_optimize) == 4
    assert costs[-1] < costs[0] / 5


def test_a_deconvolution_restores_the_shape_in_an_autoencoder(be: Backend, rng: np.random.Generator) -> None:
    x, _ = bars(rng, 10)
    layers = [
        Conv((3, 3, 6), Gaussian(scale=0.3), strides=2, padding=1, activation=Rectlin(), name="code"),
        Deconv(
            (4, 4, 1), Gaussian(scale=0.3), strides=2, padding=1, bias=Constant(0), activation=Logistic(), name="image"
        ),
    ]
    net, costs = learn(be, layers, SumSquared(), x, x, (1, 6, 6), steps=60, rate=0.1)
    assert [layer.name for layer in net.layers] == ["code", "code_Rectlin", "image", "image_bias", "image_Logistic"]
    assert net.layers[1].out_shape == (6, 3, 3)
    assert net.out_shape == (1, 6, 6)
    assert costs[-1] < costs[0] / 3


def test_a_linear_layer_may_follow_images(be: Backend) -> None:
    be.bsz = 2
    net = Sequential([Convolution((2, 2, 3), init=Constant(1)), Linear(4, Constant(1))])
    net.configure((1, 3, 3)).allocate()
    assert net.fprop(be.ones((9, 2))).get().tolist() == [[48, 48]] * 4


# --- errors ----------------------------------------------------------------------------------------------------------
INIT = Constant(1)


WRONG: list[tuple[Callable[[], Any], Any, str]] = [
    (lambda: Convolution((5, 3, 2), name="c1"), (1, 4, 4), r"c1: a window of 5 .* is larger than 4.* \(1, 4, 4\)"),
    (lambda: Convolution((3, 3, 2), 1, 0, 2, name="c1"), (1, 4, 4), "c1: a window of 5 .*dilation 2.* larger than 4"),
    (lambda: Convolution((3, 3, 2), 0, name="c1"), (1, 4, 4), "c1: expected an integer >= 1 for str_h, got 0"),
    (
        lambda: Convolution((3, 3, 2), {"str_w": 1.5}, name="c1"),
        (1, 4, 4),
        "c1: expected an integer >= 1 for str_w, got 1.5",
    ),
    (
        lambda: Convolution((3, 3, 2), padding=-1, name="c1"),
        (1, 4, 4),
        "c1: expected an integer >= 0 for pad_h, got -1",
    ),
    (lambda: Convolution((3, 3, 0), name="c1"), (1, 4, 4), "c1: expected an integer >= 1 for K, got 0"),
    (
        lambda: Convolution((3, 3, 2), (1, 2, 3, 4), name="c1"),
        (1, 4, 4),
        r"c1: strides: expected an integer, \(str_h, str_w\)",
    ),
    (
        lambda: Convolution((3, 3, 2), {"str": 2}, name="c1"),
        (1, 4, 4),
        "c1: strides: expected .*or a dict of these names, got .'str'",
    ),
    (
        lambda: Convolution((3, 3), name="c1"),
        None,
        r"c1: fshape: expected \(R, S, K\), \(T, R, S, K\), or a dict.*, got \(3, 3\)",
    ),
    (lambda: Convolution(3, name="c1"), None, "c1: fshape: expected .*, got 3"),
    (lambda: Convolution({"R": 3, "K": 3}, name="c1"), None, "c1: fshape: expected R, S, K, got .* Add S"),
    (lambda: Convolution((3, 3, 2), name="c1"), 784, r"c1: expected images \(C, H, W\).* input shape 784. Put Reshape"),
    (
        lambda: Deconvolution((3, 3, 2), name="d1"),
        (9, 5),
        r"d1: expected images .* input shape \(9, 5\). Put Reshape",
    ),
    (
        lambda: Deconvolution((2, 2, 1), padding=3, name="d1"),
        (1, 2, 2),
        "d1: padding 3 leaves nothing of 3. Use less padding",
    ),
    (lambda: Pooling(5, name="p1"), (1, 4, 4), "p1: a window of 5 .* is larger than 4"),
    (lambda: Pooling(2, strides=0, name="p1"), (1, 4, 4), "p1: expected an integer >= 1 for str_h, got 0"),
    (
        lambda: Pooling(2, padding=2, name="p1"),
        (1, 4, 4),
        "p1: expected a padding smaller than the pooling window of 2, got a padding of 2",
    ),
    (lambda: Pooling(2, name="p1"), 16, "p1: expected images"),
    (lambda: Pooling(2, "min", name="p1"), None, "p1: expected one of 'max', 'avg', 'l2' for op, got 'min'"),
    (lambda: Pooling("some", name="p1"), None, "p1: fshape: expected .*, got 'some'"),
    (lambda: LRN(0, name="n1"), (3, 4, 4), "n1: expected an integer >= 1 for J, got 0"),
    (lambda: LRN(5, name="n1"), 16, "n1: expected images"),
]


@pytest.mark.parametrize(("make", "shape", "message"), WRONG, ids=[w[2] for w in WRONG])
def test_what_does_not_fit_is_rejected_with_the_layers_name(
    cpu: Backend, make: Callable[[], Any], shape: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make().configure(shape)


def test_a_convolution_with_a_bias_requires_its_initializer(cpu: Backend) -> None:
    with pytest.raises(TypeError, match="c1: bias: expected an initializer such as"):
        Convolution_bias((3, 3, 2), init=INIT, name="c1")


def test_calls_in_the_wrong_order_are_rejected(cpu: Backend) -> None:
    cpu.bsz = 2
    for layer in [Convolution((2, 2, 3), init=INIT), Deconvolution((2, 2, 3), init=INIT), Pooling(2), LRN(3)]:
        layer.configure((3, 4, 4))
        x = cpu.ones((48, 2))
        with pytest.raises(RuntimeError, match=f"{layer.name}: expected allocated buffers, got none"):
            layer.fprop(x)
        layer.allocate()
        with pytest.raises(RuntimeError, match=f"{layer.name}: bprop: expected a training fprop before it"):
            layer.bprop(layer.outputs)
        layer.fprop(x, inference=True)
        with pytest.raises(RuntimeError, match=f"{layer.name}: bprop: expected a training fprop before it"):
            layer.bprop(layer.outputs)
        with pytest.raises(ValueError, match=f"{layer.name}: expected inputs of shape"):
            layer.fprop(cpu.ones((47, 2)))
        layer.fprop(x)
        with pytest.raises(ValueError, match=f"{layer.name}: expected an error of shape"):
            layer.bprop(cpu.ones((7, 2)))
