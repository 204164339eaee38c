"""Tests of serialization: objects to descriptions and back, and weights as arrays."""

from __future__ import annotations

import gc
import json
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import pytest

import neonlite.layers as layers_module
from neonlite import NervanaObject
from neonlite.backend.serialization import constructor_arguments, deserialize
from neonlite.data import TimeSeries
from neonlite.initializers import Array, Constant, Gaussian, IdentityInit, Initializer, Uniform
from neonlite.layers import (
    GRU,
    LRN,
    LSTM,
    Activation,
    Affine,
    BatchNorm,
    BatchNormAutodiff,
    Bias,
    BiBNRNN,
    BiLSTM,
    BinaryAffine,
    BinaryLinear,
    BiRNN,
    BiSum,
    BranchNode,
    Conv,
    Convolution,
    Convolution_bias,
    DataTransform,
    Decoder,
    Deconv,
    Deconvolution,
    DeepBiLSTM,
    DeepBiRNN,
    Dropout,
    Encoder,
    GeneralizedCost,
    GeneralizedCostMask,
    GeneralizedGANCost,
    GenerativeAdversarial,
    Layer,
    LayerNorm,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    Multicost,
    MultiHeadAttention,
    ParameterLayer,
    Pooling,
    PositionalEncoding,
    PositionEmbedding,
    Recurrent,
    RecurrentLast,
    RecurrentMean,
    RecurrentSum,
    Reshape,
    RoiPooling,
    Seq2Seq,
    Sequential,
    ShiftBatchNorm,
    SingleOutputTree,
    SkipNode,
    SkipThought,
    TransformerBlock,
    Tree,
)
from neonlite.optimizers import Adam, GradientDescentMomentum, MultiOptimizer, Optimizer, PowerSchedule, WarmupSchedule
from neonlite.transforms import (
    ColorNoise,
    Cost,
    CrossEntropyMulti,
    GANCost,
    Logistic,
    MeanSquared,
    Normalizer,
    Rectlin,
    Softmax,
    Tanh,
    TopKMisclassification,
    Transform,
)

G = Gaussian(scale=0.3)


def through_json(description: Any) -> Any:
    return json.loads(json.dumps(description, allow_nan=False))


def described_types(description: Any) -> set[str]:
    """The last names of all types in a description."""
    if isinstance(description, list):
        return {name for x in description for name in described_types(x)}
    if not isinstance(description, dict):
        return set()
    own = {description["type"].rpartition(".")[2]} if "type" in description else set()
    return own | {name for x in description.values() for name in described_types(x)}


# --- layers and networks -------------------------------------------------------------------------------------------


def single() -> list[tuple[Layer, Any]]:
    """Layers in every form of their arguments, each with the shape of its inputs."""
    return [
        (Linear(3, G, bsum=True, parallelism="Model"), 4),
        (Linear(3, np.arange(12.0).reshape(3, 4) / 7), 4),
        (Linear(3, Array(np.arange(12.0).reshape(3, 4) / 7)), (4, 5)),
        (BinaryLinear(3, G), 4),
        (Bias(np.float32([[0.1], [0.2]])), (2, 3, 3)),
        (Activation(Softmax(axis=0, epsilon=1e-9)), 4),
        (Activation(Rectlin(slope=0.25)), 4),
        (Convolution((3, 2, 5), {"str_h": 2}, init=G), (2, 7, 6)),
        (Convolution({"R": 2, "S": 3, "K": 4}, (2, 1), {"pad_w": 1}, init=G, bsum=True), (2, 7, 6)),
        (Convolution([np.int64(2), 2, 3], 1, 1, {"dil_h": 2, "dil_w": 2}, init=IdentityInit()), (3, 7, 6)),
        (Convolution((2, 2, 3, 4), init=G), (2, 3, 7, 6)),
        (Convolution_bias((3, 2, 5), padding=1, init=G, bias=Constant(0.1)), (2, 7, 6)),
        (Deconvolution((3, 2, 5), 2, init=G), (2, 4, 4)),
        (Pooling("all", "avg"), (2, 4, 4)),
        (Pooling((2, 3), strides={"str_w": 1}), (2, 7, 6)),
        (Pooling({"R": 3, "S": 2}, "l2", 2, 1), (2, 7, 6)),
        (LRN(3, ascale=0.5, bpower=0.75), (5, 3, 3)),
        (BatchNorm(0.8, 1e-2, binary=False), (2, 3, 3)),
        (BatchNormAutodiff(0.7), 4),
        (ShiftBatchNorm(0.6), 4),
        (LayerNorm(1e-3), 4),
        (LookupTable(5, 3, G, update=False, pad_idx=2), 4),
        (Reshape((0, -1)), (2, 3, 3)),
        (Reshape(6), (2, 3)),
        (DataTransform(Normalizer(divisor=2.0)), 4),
        (Dropout(0.25), 4),
        (MultiHeadAttention(2, G, causal=True, keep=0.5, bias=Constant(0.1)), (4, 5)),
        (PositionalEncoding(), (4, 5)),
        (PositionEmbedding(7, G), (4, 5)),
        (SkipNode(), 4),
        (BranchNode(), 4),
        (RoiPooling((2, 3), False, 0.5), None),
        (Recurrent(3, G, Constant(0.5), Rectlin(slope=0.25), True), (4, 5)),
        (LSTM(3, np.arange(12.0).reshape(3, 4) / 7, G, Tanh(), Logistic()), (4, 5)),
        (GRU(3, G, activation=Tanh(), gate_activation=Logistic(), reset_cells=True), (4, 5)),
        (BiRNN(3, G, activation=Tanh(), split_inputs=True, parallelism="Model"), (4, 5)),
        (BiLSTM(3, G, activation=Tanh(), gate_activation=Logistic(), split_inputs=True), (4, 5)),
        (BiBNRNN(3, G, activation=Tanh(), split_inputs=True), (4, 5)),
        (BiSum(), (4, 5)),
        (RecurrentSum(), (4, 5)),
        (RecurrentMean(), (4, 5)),
        (RecurrentLast(), (4, 5)),
    ]


def networks() -> dict[str, tuple[Any, Any]]:
    """Networks of all containers, each with the shape of its inputs."""
    node, deeper = BranchNode("node"), BranchNode()
    stream = [[Affine(4, G, bias=Constant(0.1), activation=Tanh())], [Linear(2, G)]]
    gates = {"activation": Tanh(), "gate_activation": Logistic(), "reset_cells": True}
    deep = [
        DeepBiRNN(3, G, activation=Tanh(), reset_cells=True, depth=2, batch_norm=True),
        DeepBiLSTM(2, G, **gates, depth=2),
    ]
    residual = MergeSum([[Conv((3, 3, 4), G, padding=1, batch_norm=True, activation=Rectlin())], SkipNode()], "block")
    return {
        "mlp": (Sequential([Affine(6, G, batch_norm=True, activation=Tanh()), Affine(3, G, bias=Constant(1))]), 5),
        "binary": (Sequential([BinaryAffine(6, G, batch_norm=True, activation=Tanh()), Linear(3, G)]), 5),
        "images": (
            Sequential(
                [
                    DataTransform(Normalizer(divisor=3.0)),
                    Conv((3, 3, 4), G, padding={"pad_h": 1, "pad_w": 1}, bias=Constant(0.1), activation=Rectlin()),
                    residual,
                    MergeBroadcast(
                        [Conv((1, 1, 2), G), Pooling(3, strides=1, padding=1)], "depth", [1, 0.5], "inception"
                    ),
                    Pooling(2),
                    Deconv((2, 2, 3), G, bias=Constant(0)),
                    Affine(4, G, activation=Softmax()),
                ]
            ),
            (2, 6, 6),
        ),
        "tree": (
            Tree(
                [
                    [Affine(6, G, activation=Tanh()), node, [deeper, Linear(3, G, name="trunk")]],
                    [node, Affine(2, G, bias=Constant(0.2))],
                    [deeper, Linear(1, G)],
                ],
                "heads",
                [1, 0.5, 0.25],
            ),
            5,
        ),
        "single": (SingleOutputTree([[Linear(4, G), node, Linear(3, G)], [BranchNode("node"), Linear(2, G)]]), 5),
        "transformer": (Sequential([PositionalEncoding(), TransformerBlock(4, 2, 6, G, causal=True)]), (4, 5)),
        "streams": (MergeMultistream(stream, "stack", alphas=[2, 1]), [5, 3]),
        "sequences": (Sequential([*deep, BiSum(), GRU(3, G, **gates), RecurrentMean(), Linear(2, G)]), (4, 3)),
        "translation": (
            Seq2Seq(
                [
                    Encoder([LSTM(4, G, **gates, name="low"), Recurrent(3, G, activation=Tanh(), name="high")]),
                    Decoder([GRU(3, G, **gates), Affine(5, G, activation=Softmax())], start_index=2, name="says"),
                ],
                [1],
            ),
            [(4, 2), (5, 3)],
        ),
        "sentences": (SkipThought(5, 4, G, 3, LSTM, G, Tanh(), Logistic(), G, Constant(0.1)), [(1, 4), (1, 3), (1, 2)]),
        "gan": (
            GenerativeAdversarial(
                [Affine(4, G, activation=Tanh())], Sequential([Affine(1, G, activation=Logistic())], "discriminator")
            ),
            3,
        ),
    }


def ready(be: Any, net: Any, shape: Any) -> Any:
    net.configure(shape)
    net.allocate()
    net.allocate_deltas()
    return net


def inputs(be: Any, shape: Any, seed: int = 0) -> Any:
    if isinstance(shape, list):
        return [inputs(be, x, seed) for x in shape]
    size = int(np.prod(shape)) if not isinstance(shape, tuple) or len(shape) != 2 else shape[0]
    steps = shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1
    if size == 1:
        return be.array(np.random.default_rng(seed).integers(5, size=(1, steps * be.bsz)), dtype="int32")
    return be.array(np.random.default_rng(seed).uniform(-1, 1, size=(size, steps * be.bsz)))


def values(outputs: Any) -> list[np.ndarray]:
    return [t.get() for t in (outputs if isinstance(outputs, list) else [outputs])]


def step(be: Any, net: Any, shape: Any, optimizer: Any, seed: int) -> None:
    """Train once, with the outputs for their own error."""
    outputs = net.fprop(inputs(be, shape, seed))
    errors = [be.array(y) for y in values(outputs)]
    net.bprop(errors if isinstance(outputs, list) else errors[0])
    optimizer.optimize(net.layers_to_optimize, epoch=0)


@pytest.mark.parametrize("number", range(len(single())), ids=[x.classnm for x, _ in single()])
def test_a_layer_is_recreated_from_json(cpu, number):
    cpu.bsz = 4
    layer, shape = single()[number]
    again = Layer.recursive_gen(through_json(layer.get_description()))
    assert type(again) is type(layer)
    assert again.name == layer.name
    assert again.get_description() == layer.get_description()
    if shape is None:
        return
    for x in (layer, again):
        cpu.rng_reset()
        x.configure(shape)
        x.allocate()
    assert again.out_shape == layer.out_shape
    takes_ids = isinstance(layer, LookupTable)
    x = cpu.array(np.arange(16).reshape(4, 4) % 5) if takes_ids else inputs(cpu, shape)
    y = []
    for z in (layer, again):
        cpu.rng_reset()
        y.append(z.fprop(x).get())
    np.testing.assert_array_equal(*y)  # initializers drew the same weights, and dropout the same mask


@pytest.mark.parametrize("kind", networks())
def test_a_trained_network_is_recreated_and_continues_with_the_same_bits(be, kind):
    be.bsz = 4
    net, shape = networks()[kind]
    optimizer = Adam(schedule=WarmupSchedule(2, PowerSchedule(1, 0.5)))
    ready(be, net, shape)
    for seed in range(3):
        step(be, net, shape, optimizer, seed)

    description = through_json(net.get_description())
    file, state = net.serialize(), through_json(optimizer.get_state())
    again, other = Layer.recursive_gen(description), Optimizer.recursive_gen(through_json(optimizer.get_description()))
    assert again.get_description() == net.get_description()
    assert [x.name for x in again.leaves()] == [x.name for x in net.leaves()]
    ready(be, again, shape)
    assert again.out_shape == net.out_shape
    again.load_weights(file)
    other.set_state(state)
    for seed in range(3, 6):
        x = inputs(be, shape, seed)
        for y, z in zip(values(net.fprop(x, True)), values(again.fprop(x, True)), strict=True):
            np.testing.assert_array_equal(y, z)
        step(be, net, shape, optimizer, seed)
        step(be, again, shape, other, seed)
    for name, array in net.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], array, err_msg=name)


def test_every_public_class_is_recreated_here(cpu):
    bases = {"Layer", "LayerContainer", "ParameterLayer", "CompoundLayer", "Affine", "BinaryAffine", "Conv", "Deconv"}
    bases |= {"DeepBiRNN", "DeepBiLSTM", "TransformerBlock"}
    bases |= {"TensorAttribute", "ParameterSpec"}
    actual = {x.classnm for x, _ in single()} | {x for net, _ in networks().values() for x in tree_types(net)}
    actual |= {type(x).__name__ for x in costs()}
    public = {x for x in layers_module.__all__ if isinstance(getattr(layers_module, x), type)}
    assert actual >= public - bases


def tree_types(net: Any) -> set[str]:
    return described_types(net.get_description())


def costs() -> list[Any]:
    return [
        GeneralizedCost(CrossEntropyMulti(scale=2)),
        GeneralizedCostMask(MeanSquared(), 0.5),
        GeneralizedGANCost(GANCost(func="wasserstein")),
        Multicost([GeneralizedCost(MeanSquared()), GeneralizedCostMask(MeanSquared())], [1, 0.5], "both"),
    ]


@pytest.mark.parametrize("cost", costs(), ids=lambda cost: cost.classnm)
def test_a_cost_is_recreated_from_json(cost):
    description = through_json(cost.get_description())
    again = NervanaObject.recursive_gen(description)
    assert type(again) is type(cost)
    assert again.get_description() == description
    assert type(again.costfunc) is type(cost.costfunc)


def test_every_class_of_the_package_describes_its_constructor_arguments_except_alternatives_of_others():
    objects = [x for x, _ in single()] + [net for net, _ in networks().values()] + costs() + [ColorNoise()]
    for obj in objects:
        config = obj.get_description()["config"]
        assert set(config) == {*constructor_arguments(type(obj)), "name"} - {*obj.alternative_arguments}


def test_color_noise_keeps_its_colors():
    noise = ColorNoise(np.eye(2), [0.1, 0.2], 0.3)
    again = deserialize(through_json(noise.get_description()))
    assert again.get_description() == noise.get_description()
    assert again.colorpca == [[1, 0], [0, 1]]


def test_a_tree_begins_its_branches_at_the_same_nodes():
    net, _ = networks()["tree"]
    config = through_json(net.get_description())["config"]
    assert [path[0]["config"]["name"] for path in config["layers"][1:]] == ["node", net.nodes[2].name]
    assert config["alphas"] == [1, 0.5, 0.25]
    again = deserialize(net.get_description())
    assert [x and x.name for x in again.nodes] == [None, "node", net.nodes[2].name]
    assert again.nodes[1] is again.layers[0].layers[2]  # that of the trunk, which holds the outputs
    assert again.name == "heads"


def test_the_merge_argument_is_serialized(cpu):
    net, _ = networks()["images"]
    (config,) = [x["config"] for x in net.get_description()["config"]["layers"] if "Broadcast" in x["type"]]
    assert (config["merge"], config["alphas"], config["name"]) == ("depth", [1, 0.5], "inception")


def test_an_optimizer_of_optimizers_is_recreated():
    optimizer = MultiOptimizer(
        {"default": Adam(schedule=PowerSchedule(2, 0.5)), "Bias": GradientDescentMomentum(0.1, 0)}
    )
    again = Optimizer.recursive_gen(through_json(optimizer.get_description()))
    assert again.get_description() == optimizer.get_description()
    assert {word: type(x) for word, x in again.optimizer_mapping.items()} == {
        "default": Adam,
        "Bias": GradientDescentMomentum,
    }
    assert type(again.optimizer_mapping["default"].schedule) is PowerSchedule


# --- values --------------------------------------------------------------------------------------------------------


def test_a_description_is_plain_data(cpu):
    layer = Convolution((np.int32(3), 3, 4), {"str_h": np.int64(2)}, init=Gaussian(np.float32(0.5)), bsum=np.True_)
    config = layer.get_description()["config"]
    assert config["fshape"] == [3, 3, 4]
    assert {type(x) for x in (*config["fshape"], *config["strides"].values())} == {int}
    assert config["bsum"] is True
    assert config["init"]["config"]["loc"] == 0.5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_weights_passed_as_arrays_are_serialized_to_the_bit(be, dtype):
    if dtype not in be.runtime.dtypes:
        return
    be.bsz = 1
    given = (np.random.default_rng(1).normal(size=(3, 4)) * 9).astype(dtype)
    for init in (given, be.array(given, dtype=dtype), Array(given), Array(be.array(given, dtype=dtype))):
        layer = Linear(3, init)
        again = ready(be, deserialize(through_json(layer.get_description())), 4)
        np.testing.assert_array_equal(again.W.get(), ready(be, layer, 4).W.get())
        assert again.get_description() == layer.get_description()


def double(x: Any) -> Any:
    return x * 2


class Foreign:
    def fill(self, param: Any) -> None:
        param[:] = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DataTransform(double, name="scale"),
            r"scale: transform: expected a value that can be serialized, got <function double at .*>, a function",
        ),
        (lambda: DataTransform(lambda x: x, name="scale"), "write a subclass of Transform, Initializer or the like"),
        (lambda: Linear(3, Foreign(), name="fc"), "fc: init: expected a value that can be serialized, got .*Foreign"),
        (
            lambda: Convolution((3, 3, 4), {"str_h": {1}}, init=G, name="c"),
            r"c: strides\['str_h'\]: expected a value that can be serialized, got \{1\}, a set",
        ),
        (
            lambda: Linear(3, np.array(["a"]), name="fc"),
            "fc: init: expected a value that can be serialized, got .*a ndarray",
        ),
        (
            lambda: GeneralizedCost(double, name="cost"),
            "cost: costfunc: expected a value that can be serialized, got .*, a function",
        ),
    ],
)
def test_values_that_are_not_data_are_rejected_with_a_hint(make, message):
    with pytest.raises(TypeError, match=message):
        make().get_description()


def test_a_network_names_the_layer_that_cannot_be_serialized():
    with pytest.raises(TypeError, match="scale: transform: expected a value that can be serialized"):
        Sequential([DataTransform(double, name="scale"), Linear(3, G)]).get_description()


def test_keys_other_than_strings_are_rejected():
    optimizer = MultiOptimizer({"default": Adam()}, "many")
    optimizer.optimizer_mapping[3] = Adam()
    with pytest.raises(
        TypeError, match=r"many: optimizer_mapping: expected a value that can be serialized, got .*, a dict"
    ):
        optimizer.get_description()


def test_skipped_attributes_are_left_out():
    layer = Linear(3, Foreign(), name="fc")
    assert set(layer.get_description(skip=["init", "name"])["config"]) == {"nout", "bsum", "parallelism"}


# --- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "neonlite.layers.linear.Liner",
            "the type of a defined class, got 'neonlite.layers.linear.Liner'. Similar names: .*linear.Linear",
        ),
        ("LINEAR", r"Similar names: .*neonlite.layers.linear.Linear"),
        ("os.sysctl", "the type of a defined class, got 'os.sysctl'. A custom class must be defined first"),
        ("builtins.eval", "the type of a defined class, got 'builtins.eval'"),
        ("neonlite.layers.linear.Affine", "the type of a defined class, got 'neonlite.layers.linear.Affine'"),
        (
            "__main__.Deconvolution",
            "the type of a defined class, got '__main__.Deconvolution'. Similar names: neonlite.layers.conv",
        ),
    ],
)
def test_an_unknown_type_is_rejected_with_similar_names(name, message):
    with pytest.raises(ValueError, match=message):
        NervanaObject.recursive_gen({"type": name, "config": {}})


def test_nothing_is_imported_for_a_type():
    import sys

    before = set(sys.modules)
    with pytest.raises(ValueError, match=r"the type of a defined class, got 'antigravity.Linear'"):
        deserialize({"type": "antigravity.Linear", "config": {}})
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.parametrize("name", ["Linear", "neon.layers.layer.Linear", "neonlite.layers.moved.Linear"])
def test_a_class_that_has_moved_is_found_by_name(name):
    init = {"type": "neon.initializers.initializer.Uniform", "config": {"low": -1, "high": 1}}
    layer = Layer.recursive_gen({"type": name, "config": {"nout": 3, "init": init, "name": "fc"}})
    assert (type(layer), type(layer.init), layer.init.low, layer.name) == (Linear, Uniform, -1, "fc")


def test_a_description_creates_an_object_of_the_requested_class():
    with pytest.raises(
        ValueError, match=r"expected a description of a Layer, got one of type 'neonlite.initializers.Gaussian'"
    ):
        Layer.recursive_gen(G.get_description())
    assert isinstance(Initializer.recursive_gen(G.get_description()), Gaussian)
    for wrong in ({}, {"type": "Linear"}, 3):
        with pytest.raises(TypeError, match=r"expected a description {'type': \.\.\., 'config': {\.\.\.}}, got"):
            Layer.recursive_gen(wrong)


def test_a_custom_class_is_found_once_it_is_defined(cpu):
    class CubedTimes(Transform):
        def __init__(self, times: float) -> None:
            super().__init__()
            self.times = times

        def __call__(self, x: Any) -> Any:
            return self.times * x * x * x

    layer = Activation(CubedTimes(2.0))
    description = through_json(layer.get_description())
    again = deserialize(description)
    assert type(again.transform) is CubedTimes
    assert again.transform.times == 2
    assert again.transform.name == layer.transform.name
    description["config"]["transform"]["type"] = "notebook.CubedTimes"
    assert type(deserialize(description).transform) is CubedTimes


def test_of_two_classes_of_one_name_in_a_module_the_later_counts_and_modules_distinguish_others():
    def define(module: str, value: int) -> type[Any]:
        return type("Cuboid", (Transform,), {"__module__": module, "value": value})

    first, second = define("notebook", 1), define("notebook", 2)
    assert deserialize({"type": "notebook.Cuboid", "config": {}}).value == 2
    third = define("script", 3)
    assert deserialize({"type": "notebook.Cuboid", "config": {}}).value == 2
    assert deserialize({"type": "script.Cuboid", "config": {}}).value == 3
    with pytest.raises(
        ValueError,
        match=r"the type of a defined class, got 'other.Cuboid'\. Similar names: notebook.Cuboid, script.Cuboid\.",
    ):
        deserialize({"type": "other.Cuboid", "config": {}})
    del first, second, third
    gc.collect()
    with pytest.raises(ValueError, match=r"the type of a defined class, got 'notebook.Cuboid'"):
        deserialize({"type": "notebook.Cuboid", "config": {}})


def test_a_custom_class_does_not_replace_one_of_the_package():
    class LRN(Layer):
        pass

    description = {"type": "neonlite.layers.pooling.LRN", "config": {"depth": 3}}
    for name in ("neonlite.layers.pooling.LRN", "neon.layers.layer.LRN", "LRN"):
        assert type(deserialize(description | {"type": name})) is layers_module.LRN
    assert type(deserialize({"type": "notebook.LRN", "config": {}})) is LRN


def test_arguments_without_an_attribute_are_an_error():
    class Scaled(Layer):
        def __init__(self, factor: float = 2.0, name: str | None = None) -> None:
            super().__init__(name)
            self.f = factor

    with pytest.raises(
        TypeError, match=r"s.get_description: expected an attribute 'factor' with the value of .* 'factor' of Scaled"
    ):
        Scaled(3.0, name="s").get_description()


def test_arguments_passed_on_are_those_of_the_base_class():
    class Forwarding(Linear):
        def __init__(self, *args: Any, extra: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.extra = extra

    layer = Forwarding(3, G, extra=5, bsum=True, name="mine")
    again = deserialize(through_json(layer.get_description()))
    assert (again.nout, again.bsum, again.extra, again.name, type(again.init)) == (3, True, 5, "mine", Gaussian)


def test_a_layer_whose_constructor_has_no_name_parameter_keeps_its_name(cpu):
    class Twice(ParameterLayer):
        def __init__(self) -> None:
            super().__init__(Constant(2))

        def configure(self, in_obj: Any) -> Any:
            super().configure(in_obj)
            self.out_shape, self.weight_shape = self.in_shape, (1, 1)
            return self

        def formula(self, x: Any) -> Any:
            return self.W * x

    cpu.bsz = 2
    net = ready(cpu, Sequential([Twice(), Twice()]), 3)
    net.layers[1].W = 5
    again = ready(cpu, deserialize(through_json(net.get_description())), 3)
    assert [x.name for x in again] == [x.name for x in net]
    again.load_weights(net.serialize())
    assert again.layers[1].W.get() == 5


def test_later_layers_do_not_get_reserved_names():
    number = int(Linear(3, G).name.removeprefix("Linear_"))
    deserialize({"type": "Linear", "config": {"nout": 3, "init": G, "name": f"Linear_{number + 7}"}})
    assert [Linear(3, G).name for _ in range(2)] == [f"Linear_{number + 8}", f"Linear_{number + 9}"]
    deserialize({"type": "Linear", "config": {"nout": 3, "init": G, "name": "Linear_0"}})
    assert Linear(3, G).name == f"Linear_{number + 10}"


# --- weights -------------------------------------------------------------------------------------------------------


def mlp(be: Any, names: tuple[str, str] = ("hidden", "out"), sizes: tuple[int, int] = (4, 2)) -> Any:
    """A network with a batch norm and a bias, from 3 inputs."""
    be.bsz = 2
    first, last = names
    affine = Affine(sizes[0], G, batch_norm=True, activation=Tanh(), name=first)
    return ready(be, Sequential([affine, Affine(sizes[1], G, bias=Constant(0), name=last)], "net"), 3)


def test_weights_are_converted_to_a_dict_and_restored(be):
    net, other = mlp(be), mlp(be)
    other.fprop(be.ones((3, 2)))  # its batch norm has other statistics
    weights = net.get_weights()
    shapes = {name: array.shape for name, array in weights.items()}
    stats = {f"hidden_bnorm.{name}": (4, 1) for name in ("beta", "gamma", "gmean", "gvar")}
    assert shapes == {"hidden.W": (4, 3), **stats, "out.W": (2, 4), "out_bias.W": (2, 1)}
    assert all(type(array) is np.ndarray for array in weights.values())
    np.testing.assert_array_equal(weights["hidden.W"], net.layers[0].W.get())
    net.layers[1].gvar = 3
    assert (net.get_weights()["hidden_bnorm.gvar"][0], weights["hidden_bnorm.gmean"][0]) == (3, 0)
    weights["hidden.W"][0, 0] = 9
    assert net.layers[0].W.get()[0, 0] != 9  # a copy
    root = other.layers[0].W.root
    other.set_weights(weights)
    for name, array in other.get_weights().items():
        np.testing.assert_array_equal(array, weights[name])
    assert other.layers[0].W.root is root  # copied in: they are still views of one tensor


def test_weights_may_be_lists_tensors_of_any_backend_and_columns(be):
    net = mlp(be)
    weights = net.get_weights()
    given: dict[str, Any] = {name: array.tolist() for name, array in weights.items()}
    given |= {"hidden.W": be.array(weights["hidden.W"] + 1), "out_bias.W": np.float64([1, 2])}
    net.set_weights(given)
    np.testing.assert_array_equal(net.layers[0].W.get(), weights["hidden.W"] + 1)
    np.testing.assert_array_equal(net.layers[-1].W.get(), [[1], [2]])


def test_a_subset_of_weights_is_set_if_requested(be):
    net = mlp(be)
    before = net.get_weights()
    with pytest.raises(ValueError, match="partial=True accepts a subset"):
        net.set_weights({"out.W": np.ones((2, 4))})
    assert net.get_weights()["out.W"].tolist() == before["out.W"].tolist()
    net.set_weights({"out.W": np.ones((2, 4)), "hidden_bnorm.gvar": np.full((4, 1), 3)}, partial=True)
    after = net.get_weights()
    assert np.all(after["out.W"] == 1)
    assert np.all(after["hidden_bnorm.gvar"] == 3)
    for name in before.keys() - {"out.W", "hidden_bnorm.gvar"}:
        np.testing.assert_array_equal(after[name], before[name])


def rows(error: pytest.ExceptionInfo[ValueError]) -> list[list[str]]:
    """The rows of the table in a message, below its header."""
    return [[cell for cell in line.split("  ") if cell] for line in str(error.value).splitlines()[2:]]


def stripped(table: list[list[str]]) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in table]


def test_all_mismatches_are_listed_in_one_table_and_nothing_is_written(be):
    net = mlp(be)
    before = net.get_weights()
    given: dict[str, Any] = before | {"hidden.W": np.ones((3, 4)), "hidden.V": [[1]], "out_bias.W": "words"}
    given["out.W"] = np.ones((2, 4))
    del given["hidden_bnorm.gmean"]
    for partial in (False, True):
        with pytest.raises(
            ValueError, match=r"^net: expected weights that fit the layers, got other names or shapes; none was changed"
        ) as error:
            net.set_weights(given, partial)
        missing = [] if partial else [["hidden_bnorm", "gmean", "(4, 1)", "nothing"]]
        table = stripped(rows(error))
        assert sorted(table) == sorted(
            [
                ["hidden", "W", "(4, 3)", "(3, 4)"],
                *missing,
                ["out_bias", "W", "(2, 1)", "'words'"],
                ["hidden.V", "nothing", "(1, 1)"],
            ]
        )
        for name, array in net.get_weights().items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("key", ["out.W", "out.V"])
def test_none_is_not_a_weight(cpu, key):
    net = mlp(cpu)
    with pytest.raises(ValueError, match=r"none was changed; get_weights\(\) returns the valid names"):
        net.set_weights({key: None}, partial=True)


@pytest.mark.parametrize("given", [None, [np.ones((2, 4))], "out.W", {0: np.ones((2, 4))}])
def test_weights_are_a_dict_by_name(cpu, given):
    with pytest.raises(
        TypeError, match=r"set_weights: expected a dict of arrays by name, as from get_weights\(\), got"
    ):
        mlp(cpu).set_weights(given)


def test_a_long_table_is_truncated(cpu):
    cpu.bsz = 1
    net = ready(cpu, Sequential([Linear(2, G) for _ in range(30)]), 2)
    with pytest.raises(ValueError, match=r"\nand 10 more$") as error:
        net.set_weights({})
    assert len(str(error.value).splitlines()) == 1 + 1 + 20 + 1


def test_weights_of_a_single_layer(be):
    net = mlp(be)
    assert list(net.layers[0].get_weights()) == ["hidden.W"]
    file = net.layers[1].serialize()
    assert list(file["params"]) == ["beta", "gamma", "gmean", "gvar"]
    other = mlp(be)
    net.layers[1].gmean = 7
    other.layers[1].load_weights(net.layers[1].serialize())
    assert np.all(other.layers[1].gmean.get() == 7)
    assert net.layers[2].serialize() == net.layers[2].get_description()  # an activation has none
    net.layers[2].load_weights(net.layers[2].serialize())


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda net: net.get_weights(), "fc: expected a configured layer, got one without shapes. Call configure"),
        (lambda net: net.serialize(), "fc: expected a configured layer, got one without shapes"),
        (
            lambda net: net.configure(3).get_weights(),
            r"fc: expected allocated weights, got none\. Call allocate\(\) first",
        ),
        (lambda net: net.configure(3).set_weights({}), "fc: expected allocated weights, got none"),
    ],
)
def test_weights_exist_after_allocate(cpu, act, message):
    with pytest.raises(RuntimeError, match=message):
        act(Sequential([Linear(2, G, name="fc"), Bias(G)]))


def test_a_layer_without_persistent_tensors_is_rejected(cpu):
    class Secret(Layer):
        has_params = True

        def configure(self, in_obj: Any) -> Any:
            super().configure(in_obj)
            self.out_shape = self.in_shape
            return self

    layer = Secret("odd").configure(3)
    with pytest.raises(TypeError, match="odd: expected persistent_tensors for a layer with parameters, got none"):
        layer.serialize()


# --- files ---------------------------------------------------------------------------------------------------------


def test_params_and_states_are_stored_beside_the_config_of_each_layer(be):
    net = mlp(be)
    optimizer = GradientDescentMomentum(0.1, 0.9)
    step(be, net, 3, optimizer, 0)
    file = net.serialize()
    assert set(file) == {"type", "config"}
    entries = file["config"]["layers"]
    assert [set(x) - {"type", "config"} for x in entries] == [
        {"params", "states", "updates"},
        {"params", "states", "updates"},
        set(),
        {"params", "states", "updates"},
        {"params", "states", "updates"},
    ]
    assert [[len(x) for x in entry["states"]] for entry in entries if "states" in entry] == [[1], [1, 1], [1], [1]]
    assert entries[1]["updates"] == [["GradientDescentMomentum(velocity)", 1]] * 2
    np.testing.assert_array_equal(entries[0]["states"][0][0], net.layers[0].states[0].get())
    np.testing.assert_array_equal(entries[1]["states"][1][0], net.layers[1].states[1][0].get())
    bare = net.serialize(keep_states=False)["config"]["layers"]
    assert [set(x) - {"type", "config"} for x in bare] == [{"params"}, {"params"}, set(), {"params"}, {"params"}]
    assert [x["config"] for x in bare] == [x["config"] for x in net.get_description()["config"]["layers"]]


@pytest.mark.parametrize("trained", [False, True])
def test_states_are_restored_whether_or_not_there_were_any(be, trained):
    net, other = mlp(be), mlp(be)
    step(be, net, 3, GradientDescentMomentum(0.1, 0.9), 0)
    if trained:
        step(be, other, 3, GradientDescentMomentum(0.5, 0.9), 1)
    file = net.serialize()
    other.load_weights(file, load_states=False)
    for x, y in zip(net.layers_to_optimize, other.layers_to_optimize, strict=True):
        for (_, have), (_, expected) in zip(flat_params(y), flat_params(x), strict=True):
            assert len(have) == int(trained)
            assert not trained or not np.array_equal(have[0].get(), expected[0].get())
    other.load_weights(file)
    for x, y in zip(net.layers_to_optimize, other.layers_to_optimize, strict=True):
        for (_, have), (_, expected) in zip(flat_params(y), flat_params(x), strict=True):
            np.testing.assert_array_equal(have[0].get(), expected[0].get())
    state = other.layers[0].states[0]
    other.load_weights(file)
    assert other.layers[0].states[0] is state  # copied in
    fresh = mlp(be).serialize()
    other.load_weights(fresh)
    assert [states for x in other.layers_to_optimize for _, states in flat_params(x)] == [[]] * 5


def flat_params(layer: Any) -> list[Any]:
    params = layer.get_params()
    return params if isinstance(params, list) else [params]


def test_float16_weights_keep_states_in_float32(cpu):
    from neonlite import Backend

    be = Backend("cpu", rng_seed=1, default_dtype=np.float16)
    NervanaObject.be = be
    net, other = mlp(be), mlp(be)
    step(be, net, 3, GradientDescentMomentum(0.1, 0.9), 0)
    file = net.serialize()
    other.load_weights(file)
    assert (other.layers[0].W.info.dtype, other.layers[0].states[0].info.dtype) == ("float16", "float32")
    np.testing.assert_array_equal(other.layers[0].states[0].get(), net.layers[0].states[0].get())
    again = file["config"]["layers"][0]["params"]["W"]
    assert again.dtype == np.float16


def test_layers_are_matched_by_name_if_names_agree_and_else_by_order(be):
    net = mlp(be, ("a", "b"), (3, 3))
    other = ready(be, Sequential([*mlp(be, ("b", "a"), (3, 3)).layers]), 3)
    file = net.serialize()
    names = [x.name for x in other]  # b, b_bnorm ... a, a_bias: not the same as a, a_bnorm ... b, b_bias
    assert set(names) != {x.name for x in net}
    other.load_weights(file)
    np.testing.assert_array_equal(other.layers[0].W.get(), net.layers[0].W.get())

    one = ready(be, Sequential([Linear(3, G, name="a"), Linear(3, G, name="b")]), 3)
    two = ready(be, Sequential([Linear(3, G, name="b"), Linear(3, G, name="a")]), 3)
    two.load_weights(one.serialize())
    np.testing.assert_array_equal(two.layers[0].W.get(), one.layers[1].W.get())
    np.testing.assert_array_equal(two.layers[1].W.get(), one.layers[0].W.get())


def test_a_file_that_does_not_match_is_rejected_before_the_first_write(be):
    net, other = mlp(be), mlp(be, sizes=(4, 3))
    step(be, net, 3, Adam(), 0)
    file = net.serialize()
    file["config"]["layers"][0]["params"]["V"] = np.ones((1, 1))
    del file["config"]["layers"][1]["params"]["gvar"]
    file["config"]["layers"][0]["states"][0][1] = np.ones((3, 4))
    file["config"]["layers"][1]["states"].pop()
    before = other.get_weights()
    with pytest.raises(ValueError, match="none was changed") as error:
        other.load_weights(file)
    table = stripped(rows(error))
    assert table == [
        ["hidden", "V", "nothing", "(1, 1)"],
        ["hidden", "states[0][1]", "(4, 3)", "(3, 4)"],
        ["hidden_bnorm", "gvar", "(4, 1)", "nothing"],
        ["hidden_bnorm", "states[1]", "(4, 1)", "nothing"],
        ["out", "W", "(3, 4)", "(2, 4)"],
        *[["out", f"states[0][{i}]", "(3, 4)", "(2, 4)"] for i in range(2)],
        ["out_bias", "W", "(3, 1)", "(2, 1)"],
        *[["out_bias", f"states[0][{i}]", "(3, 1)", "(2, 1)"] for i in range(2)],
    ]
    for name, array in other.get_weights().items():
        np.testing.assert_array_equal(array, before[name])
    assert other.layers[0].states == []


def test_layers_that_a_file_has_or_lacks_are_named(be):
    be.bsz = 1
    long = ready(be, Sequential([Linear(3, G, name=n) for n in "abc"]), 3)
    short = ready(be, Sequential([Linear(3, G, name=n) for n in "ab"]), 3)
    with pytest.raises(ValueError, match="none was changed") as error:
        long.load_weights(short.serialize())
    assert stripped(rows(error)) == [["c", "W", "(3, 3)", "nothing"]]
    with pytest.raises(ValueError, match="none was changed") as error:
        short.load_weights(long.serialize())
    assert stripped(rows(error)) == [["c", "W", "nothing", "(3, 3)"]]


def test_states_without_params_are_checked_too(be):
    net = mlp(be)
    with pytest.raises(ValueError, match=r"out  +states\[0\]\[0\] +\(2, 4\) +\(4, 2\)"):
        net.layers[3].set_states([[np.ones((4, 2))]])
    net.layers[3].set_states([[np.ones((2, 4)), np.zeros((2, 4))]])
    assert [x.get().sum() for x in net.layers[3].states] == [8, 0]
    with pytest.raises(ValueError, match=r"states\[1\] +nothing +'a list'"):
        net.layers[3].set_states([[], []])


def test_an_old_file_with_a_separate_bias_layer_loads_into_one_layer(be):
    be.bsz = 2
    old = ready(
        be, Sequential([Convolution((2, 2, 3), init=G, name="c"), Bias(G, name="c_bias"), Linear(2, G)]), (2, 4, 4)
    )
    new = ready(be, Sequential([Conv((2, 2, 3), G, bias=Constant(0), name="c"), Linear(2, G)]), (2, 4, 4))
    assert isinstance(new.layers[0], Convolution_bias)
    step(be, old, (2, 4, 4), GradientDescentMomentum(0.1, 0.9), 0)
    new.load_weights(old.serialize())
    x = inputs(be, (2, 4, 4))
    np.testing.assert_allclose(new.fprop(x).get(), old.fprop(x).get(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(new.layers[0].weight_bias.get(), old.layers[1].W.get())
    assert [len(x) for x in new.layers[0].states] == [1, 1]
    np.testing.assert_array_equal(new.layers[0].states[1][0].get(), old.layers[1].states[0].get())


def test_layers_without_parameters_are_serialized_as_well(be):
    be.bsz = 1
    net = ready(be, Sequential([Linear(3, IdentityInit(), name="fixed"), Linear(2, G, name="fc")]), 3)
    net["fixed"].trainable = False
    assert [x.name for x in net.layers_to_optimize] == ["fc"]
    assert list(net.get_weights()) == ["fixed.W", "fc.W"]


def test_parallelism_is_reported_as_in_neon():
    actual = {p: Linear(2, G, parallelism=p).get_param_attrs() for p in ("Data", "Model", "Disabled")}
    assert actual["Data"] == {"parallel": True, "distributed": False}
    assert actual["Model"] == {"parallel": True, "distributed": True}
    assert actual["Disabled"] == {"parallel": False, "distributed": False}


# --- repr ------------------------------------------------------------------------------------------------------------


def test_the_repr_of_an_object_has_its_constructor_arguments(cpu):
    assert repr(TopKMisclassification(2)) == "TopKMisclassification(k=2)"
    assert repr(GeneralizedCost(Renamed(3, name="c"))) == "GeneralizedCost(costfunc=Renamed(size=3))"
    cpu.bsz = 2
    series = TimeSeries(np.arange(20_000.0).reshape(-1, 1), 2)
    assert repr(series).startswith("TimeSeries(X=an array (20000, 1) of float64, ")
    assert "\n" not in repr(series)
    assert len(repr(series)) < 200


class Renamed(Cost):
    """A cost that stores its argument ``size`` in another attribute."""

    config_attributes: ClassVar[dict[str, str]] = {"size": "stored_size"}

    def __init__(self, size: int, name: str | None = None) -> None:
        super().__init__(name)
        self.stored_size = size


@pytest.mark.parametrize("module", ["callbacks", "data", "layers", "models", "optimizers", "transforms"])
def test_no_public_class_prints_its_address(module):
    classes = [x for x in vars(import_module(f"neonlite.{module}")).values() if isinstance(x, type)]
    classes = [x for x in classes if issubclass(x, NervanaObject)]
    assert classes
    assert not [x.__name__ for x in classes if x.__repr__ is object.__repr__]
