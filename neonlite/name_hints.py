"""Hints in errors for names of NumPy, PyTorch, Keras, JAX and scikit-learn: what to use in neonlite."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn, TypeVar

from neonlite.messages import did_you_mean
from neonlite.ops import SYNONYMS

T = TypeVar("T")

MODULES = (
    "array_api", "callbacks", "data", "distributed", "initializers", "layers", "models", "optimizers", "transforms",
    "visualize",
)  # fmt: skip

# The tables below: what to use instead of names of other libraries, as Python code. " or " separates several, and a
# comment follows after ";". {t} is the name of the object, {name} that of the attribute.

CLASSES = {  # after "neonlite."; names match in any case, and without underscores
    "layers.Affine": "Dense LazyLinear",
    "layers.Affine; it reads images, too": "Flatten",
    "layers.Affine; it maps each time step": "TimeDistributed",
    "layers.Conv": "Conv1D Conv2D Convolution2D",
    "layers.Deconv": "Conv2DTranspose ConvTranspose ConvTranspose2d UpSampling2D Upsample",
    "layers.Conv((3, 3, 8), padding=1)": "ZeroPad2d ZeroPadding2D",
    "layers.Pooling": "AveragePooling2D AvgPool AvgPool2d MaxPool MaxPool2d MaxPooling2D",
    "layers.Pooling('all', op='avg')": "AdaptiveAvgPool2d GlobalAveragePooling2D",
    "layers.Pooling('all')": "AdaptiveMaxPool2d GlobalMaxPooling2D",
    "layers.BatchNorm": "BatchNorm1d BatchNorm2d BatchNormalization",
    "layers.LayerNorm": "LayerNormalization",
    "layers.Dropout": "Dropout1d Dropout2d SpatialDropout2D",
    "layers.LookupTable": "Embed Embedding",
    "layers.Recurrent": "RNN RNNCell SimpleRNN",
    "layers.LSTM": "LSTMCell OptimizedLSTMCell",
    "layers.GRU": "GRUCell",
    "layers.BiLSTM": "Bidirectional",
    "layers.MultiHeadAttention": "MultiHeadDotProductAttention SelfAttention",
    "layers.TransformerBlock": "Transformer TransformerEncoder TransformerEncoderLayer",
    "layers.MergeSum": "Add",
    "layers.MergeBroadcast": "Concatenate",
    "layers.Sequential": "ModuleList",
    "layers.Layer": "Lambda Module Parameter",
    "models.Model": "Functional NeuralNetwork",
    "models.Model; it reads the shape of the inputs from the data": "Input InputLayer",
    "optimizers.GradientDescentMomentum": "SGD",
    "optimizers.GradientDescentMomentum(0.1, nesterov=True)": "Nesterov",
    "optimizers.GradientDescentMomentum(0.1, wdecay=0.0001)": "L2 l2_loss",
    "optimizers.Adam; gradient_clip_norm and gradient_clip_value limit gradients": (
        "clip_by_global_norm clip_grad_norm clip_grad_value"
    ),
    "optimizers.Schedule": "LambdaLR LearningRateSchedule LearningRateScheduler LRScheduler",
    "optimizers.PowerSchedule(step_config=30, change=0.1)": "StepLR",
    "optimizers.PowerSchedule(step_config=1, change=0.9)": "ExponentialDecay ExponentialLR",
    "optimizers.Schedule(step_config=[30, 60], change=0.1)": "MultiStepLR",
    "optimizers.StepSchedule(step_config=[30, 60], change=[0.01, 0.001])": "PiecewiseConstant PiecewiseConstantDecay",
    "optimizers.CosineSchedule(total_epochs=100)": "CosineAnnealingLR CosineDecay CosineDecaySchedule",
    "optimizers.ExpSchedule(decay=0.1)": "InverseTimeDecay",
    "optimizers.PolySchedule": "PolynomialDecay PolynomialLR PolynomialSchedule",
    "optimizers.WarmupSchedule": "LinearLR",
    "optimizers.CosineSchedule(total_epochs=100, warmup=5)": "WarmupCosineDecaySchedule",
    "optimizers.UpdateSchedule(optimizers.OneCycleSchedule(1000))": "OneCycle OneCycleLR OneCycleScheduler",
    "optimizers.LossScaling": "GradScaler LossScaleOptimizer",
    "transforms.Rectlin": "ReLU",
    "transforms.Rectlinclip(xcut=6)": "ReLU6",
    "transforms.Rectlin(slope=0.01)": "LeakyReLU",
    "transforms.Explin": "ELU",
    "transforms.Logistic": "Sigmoid",
    "transforms.SiLU": "Swish",
    "transforms.Softmax; CrossEntropyMulti takes its logarithm": "LogSoftmax",
    "transforms.MeanSquared": "MSE MSELoss SquaredError",
    "transforms.SmoothL1Loss": "Huber HuberLoss",
    "transforms.SmoothL1Loss(sigma=100); which is nearly |y - t|": "L1Loss",
    "transforms.MeanAbsoluteError": "MAE",
    "transforms.CrossEntropyMulti; end the network with Softmax()": (
        "CategoricalCrossentropy CrossEntropy CrossEntropyLoss NLLLoss SoftmaxCrossEntropy "
        "SoftmaxCrossEntropyWithIntegerLabels SparseCategoricalCrossentropy"
    ),
    "transforms.CrossEntropyBinary; end the network with Logistic()": (
        "BCELoss BCEWithLogitsLoss BinaryCrossentropy SigmoidBinaryCrossEntropy BinaryCrossEntropyWithLogits"
    ),
    "transforms.Accuracy": "AccuracyScore BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy",
    "transforms.TopKMisclassification(k=5)": "TopKCategoricalAccuracy",
    "transforms.PrecisionRecall(num_classes=3)": "Precision Recall",
    "transforms.F1": "F1Score",
    "transforms.ROCAUC": "AUC ROCAUCScore",
    "transforms.R2": "R2Score",
    "transforms.Normalizer": "Normalization Normalize Rescaling",
    "initializers.Gaussian": "Normal RandomNormal TruncatedNormal",
    "initializers.Uniform": "RandomUniform",
    "initializers.GlorotUniform": "XavierUniform",
    "initializers.GlorotUniform; it has the same variance": "GlorotNormal XavierNormal",
    "initializers.Xavier": "LecunUniform",
    "initializers.Xavier; it has the same variance": "LecunNormal",
    "initializers.Kaiming": "HeNormal KaimingNormal",
    "initializers.Kaiming; it has the same variance": "HeUniform KaimingUniform",
    "initializers.Constant": "Ones Zeros",
    "initializers.Orthonormal": "Orthogonal",
    "callbacks.EarlyStop": "EarlyStopping",
    "callbacks.ReduceOnPlateau": "ReduceLROnPlateau",
    "callbacks.SerializeModelCallback": "BackupAndRestore ModelCheckpoint",
    "callbacks.ProgressBarCallback": "ProgbarLogger tqdm",
    "callbacks.Callback": "LambdaCallback",
    "callbacks.TensorBoardLogger": "SummaryWriter TensorBoard",
    "callbacks.TerminateOnNaN": "TerminateOnNan",
    "data.ArrayIterator": "DataLoader ImageDataGenerator TensorDataset",
    "data.ArrayIterator(images, labels, nclass=10, scale=1 / 255)": "ToTensor",
    "data.Crop": "CenterCrop RandomCrop",
    "data.Flip": "RandomFlip RandomHorizontalFlip",
    "data.fashion": "FashionMNIST",
    "data.iris": "load_iris",
    "data.digits": "load_digits",
    "data.Text": "TextVectorization Tokenizer",
    "data.pad_data": "pad_sequence pad_sequences",
    "data.NervanaDataIterator": "IterableDataset",
    "gen_backend": "set_device",
    "backend.concurrency.set_threads": "set_num_threads",
}
ARGUMENTS = {  # of constructors, fit, gen_backend and backend methods
    "nout": "features num_classes num_outputs out_features units",
    "output_size": "hidden_size num_units units",
    "hidden": "dim_feedforward hidden_dim intermediate_size mlp_dim",
    "width": "d_model embed_dim",
    "heads": "nhead num_attention_heads num_heads",
    "vocab_size": "input_dim num_embeddings vocabulary_size",
    "embedding_dim": "dim embedding_size features output_dim",
    "fshape; fshape=(3, 3, 8)": "filters kernel_size out_channels",
    "fshape; fshape=2": "pool_size window_shape",
    "window": "kernel_size pool_size window_shape window_size",
    "f": "filter filters kernel weight",
    "ceil": "ceil_mode",
    "layout; layout='NCHW'": "data_format",
    "strides": "stride subsample",
    "padding": "pad",
    "dilation": "dilation_rate kernel_dilation",
    "dropout": "p prob rate",
    "activation": "act activation_fn nonlinearity",
    "gate_activation": "recurrent_activation",
    "init": "initializer kernel_init kernel_initializer weight_init",
    "init_inner": "recurrent_initializer",
    "bias; bias=nl.initializers.Constant(0)": "bias_initializer use_bias",
    "batch_norm": "batchnorm bn use_batch_norm",
    "rho; rho=0.9, which PyTorch calls momentum=0.1": "decay momentum",
    "eps": "epsilon",
    "epsilon": "eps",
    "slope": "alpha negative_slope",
    "scale": "std stddev",
    "loc": "mean",
    "low": "a minval",
    "high": "b maxval",
    "val": "value",
    "learning_rate": "eta learning_rate_init lr step_size",
    "optimizer; optimizer=nl.optimizers.Adam(0.01)": "eta learning_rate lr",
    "momentum_coef": "mom momentum",
    "decay_rate": "alpha rho",
    "beta_1; beta_1=0.9, beta_2=0.999": "betas",
    "beta_1": "b1 beta1",
    "beta_2": "b2 beta2",
    "wdecay": "decay l2 weight_decay",
    "gradient_clip_norm": "clip_norm clipnorm global_clipnorm max_grad_norm max_norm",
    "gradient_clip_value": "clip_value clipvalue",
    "schedule": "learning_rate_schedule lr_schedule lr_scheduler scheduler",
    "cost": "criterion loss loss_fn",
    "epochs": "max_epochs max_iter n_epochs nb_epoch num_epochs num_train_epochs",
    "num_epochs": "epochs",
    "batch_size": "bs minibatch_size",
    "accumulate": "accumulate_grad_batches accumulation_steps gradient_accumulation_steps iter_size",
    "callbacks": "callback",
    "metrics": "metric",
    "metric": "metrics",
    "validation_split": "val_split validation_fraction",
    "validation_data": "eval_set val_data validation",
    "X": "data features input inputs x",
    "y": "labels target targets",
    "progress_bar": "disp show_progress verbose",
    "patience": "n_iter_no_change",
    "total_epochs": "T_max decay_steps total_iters total_steps",
    "change": "factor gamma",
    "restore_best": "restore_best_weights",
    "monitor": "metric",
    "min_rate": "min_lr",
    "save_path": "checkpoint_path file filename filepath path",
    "folder": "log_dir logdir",
    "path": "file filename filepath",
    "partial_last; partial_last=False for drop_last=True": "drop_last drop_remainder",
    "nclass": "depth n_classes num_classes",
    "rng_seed": "random_seed random_state seed",
    "backend": "device runtime",
    "device_id": "device device_index gpu",
    "datatype": "default_dtype dtype",
    "deterministic": "use_deterministic_algorithms",
    "axis": "axes dim dims",
    "keepdims": "keep_dims keepdim",
    "a_min": "clip_value_min min min_value",
    "a_max": "clip_value_max max max_value",
    "shape": "size",
}
OMITTED_ARGUMENTS = {  # of other libraries, which have no counterpart
    "layers read the size of their inputs from the data": (
        "in_channels in_features input_dim input_shape input_size input_width normalized_shape num_features num_input"
    ),
    "all time steps are returned, and one more layer selects the last: nl.layers.RecurrentLast()": "return_sequences",
    "list several layers: [nl.layers.LSTM(4), nl.layers.LSTM(4)]": "num_layers",
    "both directions are one layer: nl.layers.BiLSTM(4)": "bidirectional",
    "data has the axes (C, H, W, N), and fit takes layout='NHWC'": "batch_first channels_last data_format layout",
    "a backend has one device: nl.gen_backend('gpu')": "device pin_memory",
    "every tensor has gradients: nl.Autodiff(f, be).get_grad_tensor(x)": "requires_grad",
    "convert the result: be.astype(x, 'float64')": "dtype",
    "the seed is that of the backend: nl.gen_backend(rng_seed=1)": "generator key random_state rng seed",
    "some optimizers decay the weights: nl.optimizers.AdamW(wdecay=0.01)": (
        "decay kernel_regularizer l1 l2 penalty regularizer weight_decay"
    ),
    "add a layer: nl.layers.Dropout(dropout=0.1)": "dropout dropout_rate recurrent_dropout",
    "the batch size is that of the backend: nl.gen_backend(batch_size=32)": "batch_size",
    "nothing is printed": "verbose",
    "a cost is the mean over the minibatch": "reduction size_average",
    "end the network with Softmax() or Logistic()": "from_logits",
    "smooth the targets instead": "label_smoothing",
    "fit takes class_weight": "pos_weight weight",
    "NumPy's order C is the only one": "order",
    "the graph is an op-tree, which remains": "create_graph retain_graph",
    "minibatches are prepared in the same process": "num_workers",
    "that of a sample is: be.sqrt(be.var(x) * n / (n - 1))": "correction ddof unbiased",
    "memory is reused automatically": "inplace",
    "there are no groups": "groups",
}
ATTRIBUTES = {"trainable": "requires_grad requires_grad_"} | ARGUMENTS  # to set

MODEL = {
    "model.fit(X, y)": "compile partial_fit train_on_batch",
    "model.fit(X, y); layers have no mode to set, and model(x) and predict run them at inference": "train",
    "model.evaluate(X, y)": "score test test_on_batch",
    "model.predict(X)": "predict_on_batch transform",
    "model(x) or model.predict(X)": "apply call forward",
    "model.bprop(error)": "backward",
    "model.bprop(error); it overwrites the gradients": "zero_grad",
    "model.save_params(path)": "dump export save save_weights to_file",
    "nl.Model(path) or model.load_params(path)": "from_pretrained load load_model load_variables",
    "model.get_weights() or model.save_params(path)": "named_parameters params state_dict",
    "model.set_weights(weights) or model.load_params(path)": "load_state_dict",
    "model.layers.parameters": "parameters trainable_params trainable_variables trainable_weights variables weights",
    "model.layers.num_parameters": "count_params num_params num_parameters",
    "model[name] or model[0]": "get_submodule",
    "list(model)": "children modules named_children named_modules",
    "nl.Model([*layers, nl.layers.Affine(10)])": "add add_module append",
    "model.initialize(shape)": "build configure init",
    "model.copy()": "clone deepcopy",
    "model.layers.in_shape": "input input_shape",
    "model.layers.out_shape": "output output_shape",
    "model.get_description() or model.serialize()": "get_config to_json",
    "model.freeze(name) or model.unfreeze(name)": "requires_grad requires_grad_ trainable",
    "model.summary()": "plot_model tabulate",
    "model.cost": "loss",
    "model.finished": "stop_training",
    "from neonlite.models.generation import sample; for a language model": "generate sample",
    "nl.gen_backend(runtime); before you create the model": "cpu cuda device double float half to",
}
LAYER = {
    "layer(x) or layer.fprop(x)": "apply call forward",
    "layer(x, training=True)": "eval train",
    "layer.bprop(error)": "backward",
    "layer.configure(shape)": "build",
    "layer.W": "kernel weight",
    "layer.parameters": "trainable_variables trainable_weights variables weights",
    "layer.gradients": "grad grads",
    "layer.get_weights()": "named_parameters params state_dict",
    "layer.set_weights(weights)": "load_state_dict",
    "layer.num_parameters": "count_params",
    "layer.in_shape": "in_channels in_features input_size",
    "layer.out_shape": "hidden_size out_channels out_features output_shape units",
    "layer.outputs": "output",
    "layer.get_description()": "get_config",
    "layer.trainable": "requires_grad requires_grad_",
}
LAYER_LIST = {  # a list of layers, such as Affine
    "nl.Model([block])": "apply backward bprop build call configure forward fprop",
    "block[0].W; once a model is trained": "W get_weights kernel parameters state_dict weight weights",
}
OPTIMIZER = {
    "optimizer.optimize(model.layers_to_optimize, epoch=0)": "apply apply_gradients minimize update",
    "optimizer.learning_rate": "lr",
    "optimizer.get_state()": "get_weights state_dict",
    "optimizer.set_state(state)": "load_state_dict set_weights",
    "model.bprop(error); it overwrites the gradients": "zero_grad",
    "nl.optimizers.MultiOptimizer({'default': optimizer})": "add_param_group param_groups",
    "optimizer.get_description()": "defaults get_config",
}
SCHEDULE = {
    "schedule.get_learning_rate(0.1, epoch=1)": "apply call get_last_lr get_lr",
    "nl.optimizers.Adam(0.1, schedule=schedule); optimize sets the rate of each epoch": "step",
}
JIT = {
    "compiled.f.{name}(x); compiled = nl.jit(f) has a plan for each structure of x: print(compiled.programs[0][1])": (
        "derivation draw kernel plan pp trees"
    ),
}
COST = {"cost(y, t)": "apply call forward get_cost", "cost.bprop(y, t)": "grad", "cost(y, t).get()": "item"}
GENERALIZED_COST = {
    "generalized_cost.get_cost(y, t)": "apply call forward item",
    "generalized_cost.get_errors(y, t); then model.bprop": "backward bprop grad",
}
METRIC = {
    "metric(y, t); fit and evaluate average it over the data": (
        "apply call forward reset reset_state reset_states result update update_state"
    )
}
TRANSFORM = {"transform(x)": "apply call forward", "transform.bprop(x)": "derivative grad"}
INITIALIZER = {"initializer.fill(x)": "apply call init initialize initialize_array"}
CALLBACK = {  # methods that subclasses define
    "on_minibatch_begin(epoch, minibatch)": "on_batch_begin on_batch_start on_step_begin on_train_batch_begin",
    "on_minibatch_end(epoch, minibatch)": "on_batch_end on_step_end on_train_batch_end",
    "on_epoch_begin(epoch)": "on_epoch_start on_train_epoch_start",
    "on_epoch_end(epoch)": "on_test_end on_train_epoch_end on_validation_end on_validation_epoch_end",
    "on_train_begin(epochs)": "on_fit_start on_train_start",
    "on_train_end()": "on_fit_end",
}
DATA = {
    "nl.data.ArrayIterator(X, y, nclass=3)": "batch cache from_tensor_slices prefetch repeat take",
    "nl.data.ArrayIterator(images, y, nclass=3, augment=function); with your function": "map",
    "next(iter(data))": "as_numpy_iterator get_batch next next_batch",
    "data.nbatches": "num_batches steps_per_epoch",
    "data.ndata": "num_examples num_samples",
    "nl.gen_backend(batch_size=3)": "batch_size",
}
DATASET = {
    "dataset.train[0] or dataset.test[0]": "data images",
    "dataset.train[1] or dataset.test[1]": "labels target targets",
    "dataset.load_data()": "as_frame frame train_test_split",
    "dataset.iterators(batch_size=3)": "batch map train_dataloader",
}
HISTORY = {"history; the history is a mapping itself": "history", "history.to_pandas()": "frame pandas"}
DTYPES = {
    "'{name}'; as in be.zeros(shape, dtype='{name}')": (
        "bfloat16 float16 float32 float64 int16 int32 int64 int8 uint16 uint32 uint64 uint8"
    ),
    "'float16'; as in be.zeros(shape, dtype='float16')": "half",
    "'float32'; as in be.zeros(shape, dtype='float32')": "float float_ single",
    "'float64'; as in be.zeros(shape, dtype='float64')": "double",
    "'int64'; as in be.zeros(shape, dtype='int64')": "int int_ long",
    "'uint8'; booleans are 0 and 1": "bool bool_",
    "'float32'; there are no complex numbers": "cfloat complex complex64 complex128",
}
BACKEND = {
    "be.array(values)": "Tensor as_tensor constant device_put variable Variable",
    "be.array(a) or be.from_dlpack(a)": "from_numpy",
    "be.array(np.{name}(n))": "arange eye hamming identity",
    "be.array(np.{name}(0, 1, n))": "linspace logspace",
    "be.zeros(shape) + value": "full",
    "be.zeros_like(x) + value": "full_like",
    "be.array(be.rand(shape))": "random_uniform uniform",
    "be.array(be.rand(shape)) or be.array(be.randn(shape))": "random",
    "be.array(be.rand(shape) < 0.5)": "bernoulli",
    "be.array(be.randn(shape))": "normal random_normal standard_normal",
    "be.array(be.rand(x.shape))": "rand_like",
    "be.array(be.randn(x.shape))": "randn_like",
    "be.array(be.rng.randint(0, 9, shape))": "randint",
    "be.rng.permutation(n)": "permutation randperm",
    "be.rng.shuffle(a)": "shuffle",
    "be.rng.choice(n)": "categorical choice multinomial",
    "nl.gen_backend(rng_seed=1)": "PRNGKey default_rng fold_in key manual_seed seed set_random_seed set_seed",
    "nl.gen_backend(runtime)": "cuda device set_device",
    "be.backend_choices()": "device_count devices list_devices list_physical_devices local_device_count",
    "be.concat([x, x], axis=0)": "append row_stack tile vstack",
    "be.concat([x, x], axis=1)": "column_stack hstack",
    "be.take(x, np.repeat(np.arange(n), 2), axis=0)": "repeat repeat_interleave",
    "be.take(x, np.arange(n)[::-1], axis=0)": "flip flipud",
    "be.take(x, np.arange(n)[::-1], axis=1)": "fliplr",
    "be.take(x, np.roll(np.arange(n), 1), axis=0)": "roll",
    "be.array(np.pad(x.get(), 1))": "pad",
    "[x[i] for i in range(n)]": "array_split chunk hsplit split unbind unstack vsplit",
    "np.{name}(values, values)": "meshgrid",
    "be.einsum('ii->i', x)": "diag diagonal",
    "be.einsum('ii->', x)": "trace",
    "be.transpose(x, (1, 0))": "moveaxis rollaxis swapaxes",
    "be.reshape(x, shape)": "atleast_2d expand_dims squeeze unsqueeze view",
    "be.reshape(x, -1, 1)": "flatten ravel",
    "be.array(x)": "clone copy",
    "be.matmul(x, x)": "bmm mm mv tensordot",
    "be.matmul(x, x) or nl.vmap; ops compute whole batches": "pmap vectorize vmap",
    "be.einsum('ik,jk->ij', x, x)": "inner",
    "x.ravel() @ x.ravel().T": "outer",
    "be.sum(x * x)": "vdot",
    "be.max(x)": "reduce_max",
    "be.min(x)": "reduce_min",
    "be.max(x) - be.min(x)": "ptp",
    "be.max(x != 0)": "any",
    "be.min(x != 0)": "all",
    "be.sum(x != 0)": "count_nonzero",
    "be.sqrt(be.sum(be.square(x)))": "global_norm norm",
    "be.sum(x)": "add_n reduce_sum",
    "be.sum(be.where(be.isnan(x), 0, x))": "nansum",
    "be.where(be.isnan(x), 0, x)": "nan_to_num",
    "be.mean(x)": "average reduce_mean",
    "be.cumulative_sum(x, axis=0)": "cumsum",
    "be.cumulative_prod(x, axis=0)": "cumprod",
    "x[:, 1:] - x[:, :-1]": "diff",
    "x - x * be.trunc(x / x)": "fmod",
    "be.rint(x)": "round_",
    "be.reciprocal(be.sqrt(x))": "rsqrt",
    "be.finite(x)": "is_finite",
    "be.clip(x, 0, 1)": "clamp clip_by_value",
    "be.astype(x, 'float64')": "cast",
    "be.sort(x, descending=True)": "top_k topk",
    "be.onehot(indices, axis=0, nclass=3)": "one_hot to_categorical",
    "be.take(x, indices, axis=0)": "embedding gather index_select",
    "be.where(x > 0, x, 0)": "cond masked_fill select",
    "be.sig(x)": "logistic",
    "be.minimum(be.maximum(x, 0), 6)": "relu6",
    "be.silu(x)": "swish",
    "-be.logaddexp(-x, 0)": "log_sigmoid logsigmoid",
    "be.conv or nl.layers.Conv": "conv1d conv2d conv3d conv_general_dilated",
    "be.deconv or nl.layers.Deconv": "conv_transpose conv_transpose1d conv_transpose2d conv_transpose3d",
    "be.pool or nl.layers.Pooling": "max_pool max_pool1d max_pool2d max_pool3d",
    "be.pool or nl.layers.Pooling; with op='avg'": "avg_pool avg_pool1d avg_pool2d avg_pool3d",
    "be.lrn": "local_response_norm",
    "nl.layers.Dropout or be.make_binary_mask": "dropout",
    "nl.layers.Affine or be.dot(x, x)": "linear",
    "be.attention or nl.layers.MultiHeadAttention": "dot_product_attention scaled_dot_product_attention",
    "nl.layers.Recurrent; or a Python loop that builds an op-tree": "fori_loop",
    "be.cross_entropy or nl.transforms.CrossEntropyMulti": (
        "nll_loss softmax_cross_entropy softmax_cross_entropy_with_integer_labels"
    ),
    "nl.transforms.CrossEntropyBinary": "binary_cross_entropy binary_cross_entropy_with_logits sigmoid_cross_entropy",
    "be.mean(be.square(x - x))": "mse_loss",
    "be.mean(be.absolute(x - x))": "l1_loss",
    "nl.Autodiff(f, be).get_grad_tensor(x)": ("backward grad gradient gradients GradientTape value_and_grad"),
    "nl.Autodiff(f, be).get_grad_op_tree(x); it can be differentiated again": "linearize",
    "nl.jacobian; docs/functions.md": "jacfwd jacobian jacrev",
    "nl.hessian; docs/functions.md": "hessian",
    "nl.jvp; docs/functions.md": "jvp",
    "nl.vjp; docs/functions.md": "vjp",
    "nl.scan; docs/functions.md": "scan",
    "nl.while_loop; docs/functions.md": "while_loop",
    "be.stop_gradient(x)": "detach inference_mode no_grad",
    "x.shape": "shape",
    "x.size": "numel size",
    "x.ndim": "ndim rank",
    "np.{name}(x.get())": "argwhere cov median nanmean nonzero unique",
    "np.{name}(indices.get().ravel())": "bincount",
    "np.{name}(x.get(), 0.5)": "percentile quantile",
    "np.{name}(x.get(), x.get())": "cross isin kron",
    "np.{name}(x, x)": "allclose array_equal isclose",
    "x.get()": "block_until_ready device_get synchronize to_numpy",
    "be.array(np.{name}('x.npy'))": "load",
    "be.array(np.{name}('x.txt'))": "genfromtxt loadtxt",
    "np.{name}('x.npy', x)": "save",
    "nl.Model(path)": "load_model",
    "np.{name}('x.npz', x=x)": "savez",
    "np.{name}('x.txt', x)": "savetxt",
    "np.{name}(precision=4)": "set_printoptions",
    "np.{name}": "e inf nan newaxis pi",
    "nl.jit": "jit",
    "be.plan(tree)": "make_jaxpr",
    "be.cholesky, be.inv, be.solve, be.det; or be.array_api.linalg": "linalg",
    "[p.get() for p in model.layers.parameters]": "tree_map",
} | DTYPES
NAMESPACE = {  # of the module neonlite; besides, the methods of Backend, and the names in BACKEND
    "nl.layers": "layer flax functional keras linen nn",
    "nl.optimizers": "lr_scheduler optax optim optimizer schedules",
    "nl.transforms": "activations loss losses metrics",
    "nl.initializers": "init",
    "nl.data": "dataset datasets io preprocessing sequence utils",
    "nl.array_api": "jnp lax np numpy",
    "nl.Autodiff": "autograd",
    "from neonlite.models import zoo": "applications hub model_zoo zoo",
    "nl.Model(path) or np.load(file)": "load",
    "model.save_params(path) or np.save(file, x)": "save save_model",
    "model.summary()": "plot_model",
    "model.fit(X, y, validation_split=0.2)": "random_split train_test_split",
    "nl.optimizers.GradientDescentMomentum(0.1, wdecay=0.0001)": "regularizers",
    "nl.optimizers.Adam(0.01, param_clip_value=1)": "constraints",
    "[p.get() for p in model.layers.parameters]": "tree tree_util",
}
OPERAND = {
    "be.{name}({t}, x)": "dot matmul solve",
    "be.searchsorted({t}.ravel(), x); of sorted values": "searchsorted",
    "be.{name}({t}, indices)": "take_along_axis",
    "be.{name}({t})": (
        "argsort cholesky cumulative_prod cumulative_sum det inv log_softmax logsumexp softmax sort tril triu"
    ),
    "{t} @ x": "bmm mm",
    "be.cumulative_sum({t}, axis=0)": "cumsum",
    "be.cumulative_prod({t}, axis=0)": "cumprod",
    "be.einsum('ii->i', {t})": "diagonal",
    "be.einsum('ii->', {t})": "trace",
    "be.einsum('ik,jk->ij', {t}, x)": "inner",
    "{t}.ravel() @ x.ravel().T": "outer",
    "be.sum({t} * x)": "vdot",
    "be.matmul({t}, x)": "tensordot",
    "out[:] = value; with a tensor out": "assign at copy_ fill fill_ itemset put set zero_",
    "out += value; with a tensor out": "add_ assign_add sub_ mul_",
    "{t}.reshape(shape)": "expand_dims resize squeeze unsqueeze view",
    "be.transpose({t}, axes)": "moveaxis permute permute_dims swapaxes t",
    "be.broadcast_to({t}, shape) or be.concat([{t}, {t}])": "expand repeat tile",
    "be.where(mask, {t}, value)": "choose masked_fill putmask",
    "be.take({t}, indices, axis=0)": "compress gather index_select take",
    "be.take({t}, np.arange(n)[::-1], axis=0)": "flip",
    "[{t}.astensor()[i] for i in range(n)]": "chunk split unbind",
    "{t}; all dtypes are real": "conj conjugate imag real",
    "{t}.astype('float64')": "double",
    "{t}.astype('float32')": "float",
    "{t}.astype('float16')": "half",
    "{t}.astype('int64')": "int long",
    "{t}.astype('uint8')": "bool",
    "{t}.astype(dtype)": "cast type",
    "{t}.clip(0, 1)": "clamp clip_by_value",
    "abs({t})": "abs",
    "-{t}": "neg",
    "{t} ** 2": "pow",
    "{t}.astensor(); a new tensor": "clone contiguous copy",
    "{t}.size": "numel nelement",
    "{t}.ndim": "dim",
    "nl.Autodiff(f, be).get_grad_tensor(x)": "backward grad requires_grad requires_grad_",
    "be.stop_gradient({t})": "detach no_grad",
    "nl.gen_backend(runtime); before you create tensors": "cuda to",
    "{t}.device": "is_cuda",
    "np.asarray({t})": "__array_interface__ __array_struct__",
    "{t}.get(); a NumPy array": "base block_until_ready cpu ctypes data eval flat values",
    "np.{name}({t}.get())": "median unique",
    "be.sqrt(be.sum(be.square({t})))": "norm",
    "be.maximum({t}, 0)": "relu",
    "{t}.max() - {t}.min()": "ptp",
    "{t}.get().{name}; of a NumPy array": (
        "argpartition byteswap dump dumps flags getfield itemsize nbytes nonzero partition setfield setflags strides "
        "tobytes tofile"
    ),
}
NAMES_AND_METHODS = {  # of neonlite.array_api and of its arrays x
    "x[...] = value": "assign at fill fill_ itemset put",
    "x[mask]": "compress delete extract masked_select",
    "xp.asarray(values)": "Tensor as_tensor ndarray device_put from_numpy",
    "xp.asarray(x, copy=True)": "clone copy",
    "xp.concat([x, x], axis=0)": "append",
    "np.vstack([x, x])": "row_stack vstack",
    "np.{name}([x, x])": "column_stack hstack",
    "xp.stack([x, x], axis=2)": "dstack",
    "xp.unstack(x)": "array_split chunk hsplit split unbind vsplit",
    "xp.reshape(x, (-1,))": "flatten ravel",
    "xp.reshape(x, shape)": "atleast_2d resize view",
    "xp.expand_dims(x, axis=0)": "unsqueeze",
    "xp.moveaxis(x, 0, 1)": "rollaxis swapaxes",
    "xp.permute_dims(x, (1, 0))": "permute transpose",
    "xp.matrix_transpose(x)": "t",
    "xp.cumulative_sum(x, axis=0)": "cumsum",
    "xp.cumulative_prod(x, axis=0)": "cumprod",
    "xp.round(x)": "rint",
    "xp.mean(x)": "average",
    "xp.max(x) - xp.min(x)": "ptp",
    "x @ y": "bmm dot mm",
    "np.inner(x, y)": "inner",
    "xp.linalg.diagonal(x)": "diag",
    "xp.eye(n)": "identity",
    "xp.unique_values(x)": "unique",
    "xp.nonzero(x)": "argwhere flatnonzero",
    "xp.where(x > 0, x, 0)": "choose masked_fill select",
    "xp.where(xp.isnan(x), 0, x)": "nan_to_num",
    "xp.sum(xp.where(xp.isnan(x), 0, x))": "nansum",
    "xp.take(x, xp.arange(n), axis=0)": "gather index_select",
    "xp.clip(x, 0, 1)": "clamp",
    "xp.maximum(x, 0)": "relu",
    "xp.exp(-xp.logaddexp(-x, 0.0))": "expit logistic sig sigmoid",
    "xp.exp(x - xp.max(x, axis=0)) / xp.sum(xp.exp(x - xp.max(x, axis=0)), axis=0)": "softmax",
    "xp.max(x) + xp.log(xp.sum(xp.exp(x - xp.max(x))))": "logsumexp",
    "xp.astype(x, xp.float64)": "cast type",
    "xp.random.default_rng(0).uniform(size=shape)": "rand random_sample uniform",
    "xp.random.default_rng(0).normal(size=shape)": "normal randn standard_normal",
    "xp.random.default_rng(0).integers(0, 9, size=shape)": "integers randint",
    "xp.random.default_rng(0).{name}(x)": "permutation",
    "xp.random.default_rng(0).{name}(9, shape)": "choice",
    "xp.random.default_rng(0); its methods draw new numbers in each call": "Generator PRNGKey RandomState key seed",
    "xp.asarray(np.{name}(0, 1, n))": "logspace",
    "np.{name}(x, 1)": "pad",
    "np.{name}(indices.numpy().ravel())": "bincount",
    "np.{name}(x)": "median",
    "np.{name}(x, 0.5)": "percentile quantile",
    "np.{name}(x.numpy())": "cov histogram nanmean",
    "np.{name}(x.numpy(), x.numpy())": "allclose array_equal isclose kron",
    "x.numpy()": "cpu detach get",
    "x.numpy(); complex numbers are not supported: compute with NumPy's array": "complex128 complex64 fft",
    "x.size": "numel",
    "x.ndim": "dim",
    "nl.Autodiff(f).get_grad_op_tree(x); f is an expression of x = xp.variable(values)": "backward grad",
    "xp.variable(x)": "requires_grad requires_grad_",
    "nl.gen_backend(runtime); before you create arrays": "cuda to",
}
ARRAY_API = NAMES_AND_METHODS | {  # of neonlite.array_api; besides, its functions
    "xp.float32": "bfloat16 float16 half single",
    "xp.float64": "double float",
    "xp.int64": "int long",
    "xp.linalg.pinv(x) @ vector": "lstsq",
}
ARRAY = NAMES_AND_METHODS | {  # of its arrays x; besides, the functions of an array
    "x.astype(xp.bool)": "bool",
    "x.astype(xp.float32)": "bfloat16 float half",
    "x.astype(xp.float64)": "double",
    "x.astype(xp.int64)": "int long",
}
GENERATOR = {  # of its random generators rng
    "rng.uniform(size=shape)": "rand random random_sample",
    "rng.normal(size=shape)": "randn standard_normal",
    "rng.integers(0, 9, size=shape)": "randint",
    "rng.permutation(x)": "permuted shuffle",
    "-xp.log(1 - rng.uniform(size=shape))": "exponential standard_exponential",
    "xp.astype(rng.uniform(size=shape) < 0.3, xp.int64)": "bernoulli",
    "xp.sum(rng.uniform(size=(9, *shape)) < 0.3, axis=0)": "binomial",
    "(x := rng.gamma(2.0, size=shape)) / (x + rng.gamma(3.0, size=shape))": "beta",
}
AUTODIFF = {"autodiff.get_grad_op_tree(x) or autodiff.get_grad_tensor(x)": "backward grad gradient gradients jacobian"}


def look_up(table: dict[str, str], name: str, accepted: Collection[str] | None = None) -> str | None:
    """Return what to use instead of a name, from one of the tables above, or None if it is unknown.

    Parameters
    ----------
    table : dict
        {what to use: names}.
    name : str
        The name.
    accepted : collection of str, optional
        The arguments or attributes that can be used; by default, what the table says.
    """
    for counterpart, names in table.items():
        if name in names.split() and (accepted is None or counterpart.partition(";")[0] in accepted):
            return counterpart.replace("{name}", name)
    return None


def normalize(name: str) -> str:
    """Return the name of a class without underscores, in lower case: "glorotuniform" for ``glorot_uniform_``."""
    return name.replace("_", "").lower()


def find_class(name: str) -> str | None:
    """Return what to use instead of the name of a class, after "neonlite.", or None if it is unknown."""
    own = {f"{m}.{x}": x for m in MODULES for x in getattr(import_module(f"neonlite.{m}"), "__all__", ())}
    tables = own, CLASSES, *({x: normalize(names) for x, names in table.items()} for table in (own, CLASSES))
    names = name, name, normalize(name), normalize(name)
    return next(filter(None, map(look_up, tables, names)), None)


def find_in_backend(name: str) -> str | None:
    """Return what to use instead of the name of a function, or None if it is unknown."""
    counterpart = look_up(BACKEND, name)
    if counterpart is None and callable(getattr(sys.modules["neonlite"].Backend, name, None)):
        return f"be.{name}"
    return counterpart


def find_in_array_api(name: str) -> str | None:
    """Return what to use instead of a name of ``neonlite.array_api`` or its linalg, or None if it is unknown."""
    if (counterpart := look_up(ARRAY_API, name)) is not None:
        return counterpart
    xp = sys.modules["neonlite.array_api"]
    for x in (name, *SYNONYMS.get(name, ())):
        for prefix, module in (("xp", xp), ("xp.linalg", xp.linalg)):
            if x in module.__all__:
                return f"{prefix}.{x}"
    return look_up(BACKEND, name)


def find_name(module: str, name: str) -> str | None:
    """Return what to use instead of a name that a module does not have, or None if it is unknown."""
    if module.startswith("neonlite.array_api"):
        return find_in_array_api(name)
    classes = (f"neonlite.{x}" for x in (find_class(name),) if x)
    if module == "neonlite":
        return look_up(NAMESPACE, name) or find_in_backend(name) or next(classes, None)
    return next(classes, None) or find_in_backend(name)


def use(counterpart: str, given: str = "") -> str:
    """Return a sentence that says what to use, and how to create the objects in it, except the given one."""
    created = {"be": "be = nl.gen_backend()", "xp": "xp = nl.array_api"}
    code = counterpart.partition(";")[0]
    needed = [creation for x, creation in created.items() if re.search(rf"\b{x}\.", code) and x != given]
    return f"Use {counterpart}{', with ' if needed else ''}{' and '.join(needed)}."


def is_import() -> bool:
    """Return whether ``from module import name`` calls the ``__getattr__`` of the module that calls this function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name == "__getattr__":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap"


def module_getattr(module: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__``, whose error says where a name is, or what it is called in neonlite.

    Parameters
    ----------
    module : str
        The name of the module.
    """

    def __getattr__(name: str) -> object:
        hint = ""
        if not name.startswith("_"):
            counterpart = find_name(module, name)
            found = sys.modules[module]
            if name in vars(found):  # a module that the search for the name has imported
                return vars(found)[name]
            known = [x for x in (*dir(found), *getattr(found, "__all__", ())) if not x.startswith("_")]
            hint = did_you_mean(name, known) if counterpart is None else f" {use(counterpart)}"
        if hint and is_import():
            # "from module import name" replaces the message of an AttributeError
            raise ImportError(f"cannot import name {name!r} from {module!r}.{hint}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}{'.' if hint else ''}{hint}")

    return __getattr__


def argument_hint(name: str, accepted: list[str]) -> str:
    """Return a sentence with the argument to pass instead of an unknown one, or an empty string.

    Parameters
    ----------
    name : str
        The unknown name.
    accepted : list of str
        The names that the function accepts.
    """
    counterpart = look_up(ARGUMENTS, name, accepted)
    if counterpart is not None:
        argument, _, comment = counterpart.partition("; ")
        return f"Did you mean {argument!r}{', as in ' * bool(comment)}{comment}?"
    if (reason := look_up(OMITTED_ARGUMENTS, name)) is not None:
        return f"Leave it out: {reason}."
    return did_you_mean(name, accepted).lstrip()


def hide_unknown(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose signature, for editors and stubs, lacks its last parameter, ``**unknown``.

    A function that is called often refuses unknown arguments itself: a decorator would slow down every call.
    """
    signature = inspect.signature(function)
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(signature.parameters.values())[:-1]
    )
    return function


def attribute_hint(name: str, known: list[str]) -> str:
    """Return a sentence with the attribute to set instead of an unknown one.

    Parameters
    ----------
    name : str
        The unknown name.
    known : list of str
        The names that the object has.
    """
    from difflib import get_close_matches  # not loaded by ``import neonlite``

    similar = get_close_matches(name, known, 1)
    found = (look_up(ATTRIBUTES, name, known) or next(iter(similar), "")).partition(";")[0]
    return f"Set {found}." if found else "Only objects of custom classes may have attributes of any name."


class MissingAttribute:
    """An attribute that the objects of a class do not have; the AttributeError says what to use.

    ``__getattr__`` could do this as well, but would slow down every other attribute.
    """

    def __init__(self, name: str, counterpart: str) -> None:
        self.name, self.counterpart = name, counterpart

    def __get__(self, obj: object, owner: type) -> NoReturn:
        counterpart = self.counterpart.replace("{t}", "tree" if owner.__name__ == "OpTreeNode" else "t")
        hint = use(counterpart.replace("{name}", self.name), given="be")
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}. {hint}")


def add_hints(table: dict[str, str]) -> Callable[[type[T]], type[T]]:
    """Decorate a class to raise an AttributeError with a hint for the names of a table that it does not have.

    Parameters
    ----------
    table : dict
        {what to use: names}.
    """

    def decorate(cls: type[T]) -> type[T]:
        missing = {name: counterpart for counterpart, names in table.items() for name in names.split()}
        for name, counterpart in missing.items():
            if not hasattr(cls, name):
                setattr(cls, name, MissingAttribute(name, counterpart))
        cls.__dir__ = list_names  # type: ignore[assignment, method-assign]
        return cls

    return decorate


def list_names(obj: object) -> list[str]:
    """Return the names of an object's attributes, without those of ``MissingAttribute``."""
    missing = {name for cls in type(obj).__mro__ for name, x in vars(cls).items() if type(x) is MissingAttribute}
    return [name for name in object.__dir__(obj) if name not in missing or hasattr(obj, name)]
