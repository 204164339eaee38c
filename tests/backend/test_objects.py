"""Objects become descriptions, and descriptions objects."""

from __future__ import annotations

import gc
import json
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers.network_steps import inputs, ready, step, values
from helpers.parametrize import each

import neonlite.layers as layers_module
from neonlite import NervanaObject
from neonlite.backend.objects import constructor_arguments, deserialize
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
    QuantizedConvolution,
    QuantizedLinear,
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
        (QuantizedLinear(3, 0.5, relu=True), 4),
        (QuantizedConvolution((3, 2, 5), 0.5, relu=True, strides=2, padding=1, dilation=1), (2, 7, 6)),
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


@each("number", range(len(single())))
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
            "the type of a defined class, got '__main__.Deconvolution'. Similar names: neonlite.layers.images.Deconv",
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

    description = {"type": "neonlite.layers.images.LRN", "config": {"depth": 3}}
    for name in ("neonlite.layers.images.LRN", "neon.layers.layer.LRN", "LRN"):
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
