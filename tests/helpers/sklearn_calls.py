"""A call of each estimator, metric and tool of scikit-learn for the array-API standard; ``*``: it is differentiated.

Run as a script, as SciPy reads SCIPY_ARRAY_API when it is imported: prints {what: {call: problem, or ""}} as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

from helpers.compare_results import find_problems
from helpers.scipy_calls import split_calls

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, size=60)
ARRAYS: dict[str, Any] = {
    "X": RNG.normal(size=(60, 5)) + LABELS[:, None],  # samples, of three classes
    "Y": RNG.normal(size=(60, 5)),
    "U": RNG.uniform(0.1, 1.0, size=(60, 5)),  # positive features
    "K": RNG.normal(size=(60, 60)),
    "y": LABELS,
    "z": (LABELS + RNG.integers(0, 2, size=60)) % 3,  # predicted classes
    "c": LABELS > 0,
    "a": np.asarray([0.7]),  # a regularization
    "p": RNG.uniform(0.05, 0.95, size=60),  # predicted probabilities
    "t": RNG.uniform(0.5, 2.0, size=60),  # targets
    "s": RNG.uniform(0.5, 2.0, size=60),  # predicted targets
    "w": RNG.uniform(0.5, 2.0, size=60),  # weights
    "M": (RNG.uniform(size=(60, 4)) > 0.5).astype(np.int64),  # indicators of several labels
    "L": (RNG.uniform(size=(60, 4)) > 0.5).astype(np.int64),
}

CALLS = """
*preprocessing.StandardScaler().fit(X).transform(X); *preprocessing.StandardScaler().fit(X, sample_weight=w).scale_
*preprocessing.StandardScaler().fit(X).inverse_transform(X); *preprocessing.MinMaxScaler().fit_transform(X)
*preprocessing.MaxAbsScaler().fit_transform(X); *preprocessing.Normalizer().fit_transform(X)
*preprocessing.Normalizer("l1").fit_transform(X); preprocessing.Binarizer(threshold=0.5).fit_transform(X)
*preprocessing.KernelCenterer().fit_transform(K); *preprocessing.PolynomialFeatures(2).fit_transform(X)
preprocessing.LabelEncoder().fit(y).transform(y); preprocessing.LabelEncoder().fit(y).inverse_transform(y)
preprocessing.LabelBinarizer().fit(y).transform(y); preprocessing.label_binarize(y, classes=xp.asarray([0, 1, 2]))
*preprocessing.normalize(X); *preprocessing.minmax_scale(X); *preprocessing.maxabs_scale(X)
preprocessing.binarize(X)
*decomposition.PCA(2, svd_solver="full").fit(X).transform(Y)
*decomposition.PCA(2, svd_solver="covariance_eigh").fit_transform(X)
*decomposition.PCA(2, svd_solver="full", whiten=True).fit(X).get_covariance()
decomposition.PCA(2, svd_solver="randomized", power_iteration_normalizer="QR",
random_state=0).fit(X).explained_variance_
*decomposition.PCA(2, svd_solver="randomized", power_iteration_normalizer="QR", n_oversamples=1,
random_state=0).fit(X).inverse_transform(Y[:, :2])
*decomposition.PCA(2, svd_solver="full").fit(X).score_samples(X)
*linear_model.Ridge(a, solver="svd").fit(X, t).predict(X); *linear_model.Ridge(solver="svd").fit(X, t, w).coef_
*linear_model.ridge_regression(X, t, a, solver="svd")
*linear_model.RidgeClassifier(solver="svd").fit(X, y).decision_function(X)
linear_model.RidgeCV().fit(X, t).predict(X)
linear_model.RidgeClassifier(solver="svd").fit(X, y).predict(X); linear_model.RidgeClassifierCV().fit(X, y).predict(X)
linear_model.LogisticRegression(solver="lbfgs", tol=1e-10).fit(X, y).predict_proba(X)
linear_model.LogisticRegression(solver="lbfgs", tol=1e-10).fit(X, y).predict(X)
linear_model.PoissonRegressor(tol=1e-10).fit(X, t).predict(X)
*discriminant_analysis.LinearDiscriminantAnalysis().fit(X, y).predict_proba(X)
*discriminant_analysis.LinearDiscriminantAnalysis().fit(X, y).decision_function(X)
discriminant_analysis.LinearDiscriminantAnalysis().fit(X, y).predict(X)
xp.abs(discriminant_analysis.LinearDiscriminantAnalysis().fit(X, y).transform(X))
naive_bayes.GaussianNB().fit(X, y).predict(X); *naive_bayes.GaussianNB().fit(X, y).predict_proba(X)
mixture.GaussianMixture(2, init_params="random_from_data", random_state=0).fit(X).means_
mixture.GaussianMixture(2, init_params="random", random_state=0).fit(X).predict_proba(X)
*kernel_approximation.Nystroem(kernel="rbf", n_components=9, random_state=0).fit_transform(X)
*kernel_approximation.AdditiveChi2Sampler().fit_transform(U)
*pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.Ridge(a, solver="svd")).fit(X, t).predict(Y)
*pipeline.FeatureUnion([("a", preprocessing.StandardScaler()), ("b", preprocessing.MinMaxScaler())]).fit_transform(X)
calibration.CalibratedClassifierCV(
discriminant_analysis.LinearDiscriminantAnalysis(), method="temperature", cv=2).fit(X, y).predict_proba(X)
model_selection.GridSearchCV(linear_model.Ridge(solver="svd"), {"alpha": [0.1, 1.0]}, cv=2).fit(X, t).predict(X)
model_selection.RandomizedSearchCV(
linear_model.Ridge(solver="svd"), {"alpha": [0.1, 1.0]}, n_iter=2, cv=2, random_state=0).fit(X, t).predict(X)
model_selection.HalvingGridSearchCV(
linear_model.Ridge(solver="svd"), {"alpha": [0.1, 1.0]}, cv=2, random_state=0).fit(X, t).predict(X)
model_selection.HalvingRandomSearchCV(
linear_model.Ridge(solver="svd"), {"alpha": [0.1, 1.0]}, cv=2, random_state=0).fit(X, t).predict(X)
*model_selection.cross_val_predict(linear_model.Ridge(solver="svd"), X, t, cv=3)
model_selection.train_test_split(X, y, random_state=0)
utils.check_consistent_length(X, y); utils.resample(X, random_state=0); utils.check_array(X)
utils.extmath.randomized_svd(X, 2, power_iteration_normalizer="QR", random_state=0)[1]
*utils.extmath.randomized_svd(X, 2, n_oversamples=1, power_iteration_normalizer="QR", random_state=0)[1]
*utils.extmath.randomized_range_finder(X, size=3, n_iter=1, power_iteration_normalizer="QR", random_state=0)
*utils.extmath.row_norms(X); *utils.extmath.softmax(X); *utils.extmath.safe_sparse_dot(X, Y.T)
metrics.accuracy_score(y, z); metrics.balanced_accuracy_score(y, z); metrics.average_precision_score(c, p)
metrics.brier_score_loss(c, p); metrics.cohen_kappa_score(y, z); metrics.confusion_matrix(y, z)
metrics.d2_brier_score(c, p); metrics.d2_log_loss_score(c, p); metrics.d2_tweedie_score(t, s, power=1)
metrics.d2_absolute_error_score(t, s); metrics.d2_pinball_score(t, s); metrics.det_curve(c, p)
metrics.explained_variance_score(t, s); metrics.f1_score(y, z, average="macro"); metrics.f1_score(y, z, average=None)
metrics.fbeta_score(y, z, beta=2, average="micro"); metrics.hamming_loss(M, L); metrics.hamming_loss(y, z)
metrics.jaccard_score(y, z, average="macro"); metrics.jaccard_score(M, L, average="samples"); metrics.log_loss(c, p)
metrics.max_error(t, s); metrics.mean_absolute_error(X, Y); metrics.mean_absolute_error(t, s, sample_weight=w)
metrics.mean_absolute_percentage_error(t, s); metrics.mean_gamma_deviance(t, s); metrics.mean_pinball_loss(t, s)
metrics.mean_poisson_deviance(t, s); metrics.mean_squared_error(t, s)
*metrics.mean_squared_error(X, Y, multioutput="raw_values")
*metrics.mean_absolute_error(X, Y, multioutput="raw_values")
*metrics.root_mean_squared_error(X, Y, multioutput="raw_values"); *metrics.r2_score(X, Y, multioutput="raw_values")
*metrics.mean_absolute_percentage_error(X, Y, multioutput="raw_values")
*metrics.mean_pinball_loss(X, Y, multioutput="raw_values")
*metrics.mean_squared_log_error(U, U**2, multioutput="raw_values")
*metrics.root_mean_squared_log_error(U, U**2, multioutput="raw_values")
*metrics.explained_variance_score(X, Y, multioutput="raw_values")
*metrics.d2_absolute_error_score(X, Y, multioutput="raw_values")
*metrics.d2_pinball_score(X, Y, multioutput="raw_values"); metrics.mean_squared_log_error(t, s)
metrics.mean_tweedie_deviance(t, s, power=1.5); metrics.median_absolute_error(t, s)
metrics.multilabel_confusion_matrix(M, L); metrics.precision_score(y, z, average="weighted")
metrics.precision_recall_curve(c[:20], p[:20]); metrics.precision_recall_fscore_support(y, z); metrics.r2_score(t, s)
metrics.recall_score(y, z, average="macro"); metrics.roc_curve(c, p); metrics.root_mean_squared_error(t, s)
metrics.root_mean_squared_log_error(t, s); metrics.zero_one_loss(y, z); metrics.zero_one_loss(M, L)
metrics.accuracy_score(M, L); metrics.cluster.contingency_matrix(y, z); metrics.cluster.entropy(y)
metrics.calinski_harabasz_score(X, y); metrics.davies_bouldin_score(X, y)
*metrics.pairwise.additive_chi2_kernel(U, U + 1.0); *metrics.pairwise.chi2_kernel(U, U + 1.0)
*metrics.pairwise.cosine_distances(X, Y); *metrics.pairwise.cosine_similarity(X, Y)
*metrics.pairwise.euclidean_distances(X, Y); *metrics.pairwise.manhattan_distances(X[:9, :], Y[:9, :])
*metrics.pairwise.linear_kernel(X, Y); *metrics.pairwise.laplacian_kernel(X[:9, :], Y[:9, :])
*metrics.pairwise.polynomial_kernel(X, Y)
*metrics.pairwise.rbf_kernel(X, Y); *metrics.pairwise.sigmoid_kernel(X, Y)
*metrics.pairwise.paired_cosine_distances(X, Y)
*metrics.pairwise.paired_euclidean_distances(X, Y); *metrics.pairwise.paired_manhattan_distances(X, Y)
*metrics.pairwise_distances(X, Y, "cosine"); *metrics.pairwise_distances(X, Y, "euclidean")
*metrics.pairwise.paired_distances(X, Y); metrics.pairwise_distances_argmin(X, Y)
*metrics.pairwise.pairwise_kernels(X, Y, "rbf")
*metrics.pairwise.pairwise_kernels(X, Y, "polynomial")
"""


# the calls that cannot agree with NumPy's, by the reason, with a pattern of what happens
REFUSED = {
    "it writes to a view of an array, as in f(x[i]) for a function that changes its argument": (
        "not positive definite|Not equal to tolerance",
        ["mixture.GaussianMixture"],
    ),
    "it returns NumPy's arrays": (
        "expected an Array, got ndarray|expected a function of the array-API standard",
        ["metrics.cluster.contingency_matrix"],
    ),
}


def evaluate(call: str, xp: Any, arrays: dict[str, Any]) -> Any:
    """Return the result of a call for a namespace and its arrays."""
    import sklearn
    import sklearn.utils.extmath
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401

    modules = {name: importlib.import_module(f"sklearn.{name}") for name in MODULES}
    with sklearn.config_context(array_api_dispatch=xp is not np):
        return eval(call, {"xp": xp, **modules, **arrays})


MODULES = (
    "calibration", "decomposition", "discriminant_analysis", "kernel_approximation", "linear_model", "metrics",
    "mixture", "model_selection", "naive_bayes", "pipeline", "preprocessing", "utils",
)  # fmt: skip

if __name__ == "__main__":
    from neonlite import Backend

    runtime, *kinds = sys.argv[1:]
    xp = Backend(runtime, default_dtype="float64").array_api
    print(json.dumps({what: find_problems(split_calls(CALLS), ARRAYS, evaluate, xp, what) for what in kinds}))
