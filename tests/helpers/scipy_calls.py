"""A call of each function that SciPy declares to support the array-API standard; those with ``*`` are differentiated.

Run as a script, as SciPy reads SCIPY_ARRAY_API when it is imported: prints {what: {call: problem, or ""}} as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

from helpers.compare_results import find_problems

RNG = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {
    "x": RNG.uniform(0.2, 2, size=(9, 6)),
    "y": RNG.uniform(0.2, 2, size=(9, 6)),
    "u": RNG.uniform(0.1, 0.9, size=(9, 6)),
    "v": RNG.uniform(0.2, 2, size=30),
    "w": RNG.uniform(0.2, 2, size=30),
    "grid": np.linspace(0.0, 1.0, 30),
    "h": np.asarray([1.0, 2.0, 1.0]),
    "k": np.asarray([[0.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 0.0]]),
    "big": RNG.uniform(size=(80, 80)),
    "n": RNG.integers(1, 6, size=(9, 6)),
    "m": RNG.integers(0, 3, size=(9, 6)),
    "b": RNG.uniform(size=(9, 6)) > 0.4,
    "T": np.asarray([[2.0, 3.0, 1.0, 2.0], [0.0, 1.0, 1.5, 2.0], [4.0, 5.0, 2.5, 5.0]])[[1, 0, 2]],
    "Z": np.asarray([[0.0, 1.0, 0.3, 2.0], [2.0, 3.0, 0.5, 2.0], [4.0, 5.0, 0.9, 4.0]]),
    "sos": np.asarray([[0.1, 0.2, 0.1, 1.0, -0.5, 0.2], [1.0, 0.3, 0.1, 1.0, -0.3, 0.1]]),
    "num": np.asarray([0.2, 0.3]),
    "den": np.asarray([1.0, -0.4, 0.1]),
    "poles": np.asarray([-0.5, -0.9]),
    "zeros": np.asarray([-2.0]),
    "q": RNG.normal(size=(3, 4)),  # quaternions
    "r": RNG.uniform(0.2, 0.5, size=(3, 3)),  # rotation vectors
    "M": np.eye(3) + RNG.uniform(-0.3, 0.3, size=(3, 3)),
    "E": RNG.uniform(0.2, 0.5, size=(3, 6)),  # exponential coordinates
    "D": RNG.normal(size=(3, 8)),  # dual quaternions
}

# one call of each function, by module, and others that are differentiated
CALLS = {
    "scipy.special": """
cbrt(x); cosdg(x); cosm1(x); cotdg(x); digamma(x); ellipk(u); ellipkm1(u); entr(x); erf(x); erfc(x); erfcx(x); erfinv(u)
exp1(x); exp10(x); exp2(x); expi(x); expit(x); exprel(x); gamma(x); gammaln(x); gammasgn(x); i0(x); i0e(x); i1(x)
i1e(x); j0(x); j1(x); k0(x); k0e(x); k1(x); k1e(x); log_ndtr(x); loggamma(x); logit(u); ndtr(x); ndtri(u); psi(x)
rgamma(x); sinc(x); sindg(x); spence(x); tandg(x); y0(x); y1(x); zetac(x + 1); betaln(x, y); binom(x, y); boxcox(x, u)
boxcox1p(x, u); chdtr(x, y); chdtrc(x, y); chdtri(x, u); expn(n, x); gammainc(x, y); gammaincc(x, y); gammainccinv(x, u)
gammaincinv(x, u); huber(x, y); inv_boxcox(x, u); inv_boxcox1p(x, u); kl_div(x, y); pdtr(x, y); pdtrc(x, y)
pdtri(n, u); poch(x, y); polygamma(n, x); pseudo_huber(x, y); *rel_entr(x, y); stdtr(x, y); stdtrit(x, u)
xlog1py(x, y); *xlogy(x, y); yn(n, x); zeta(x + 1, y); bdtr(x, n + 5, u); bdtrc(x, n + 5, u); bdtri(x, n + 5, u)
betainc(x, y, u); betaincc(x, y, u); betaincinv(x, y, u); fdtr(x, y, u); fdtrc(x, y, u); fdtri(x, y, u); gdtr(x, y, u)
gdtrc(x, y, u); hyp1f1(x, y, u); lpmv(m, n, u); nbdtr(n, n, u); nbdtrc(n, n, u); nbdtri(n, n, u); radian(x, y, u)
*log_softmax(x, axis=1); *logsumexp(x, axis=1); *softmax(x, axis=0); multigammaln(v + 2, 2)
""",
    "scipy.stats": """
alexandergovern(v, w).pvalue; ansari(v, w).pvalue; bartlett(v, w).pvalue
*bootstrap((v,), sp.stats.tmean, n_resamples=9, batch=9, method="percentile", rng=0).standard_error; *boxcox_llf(0.5, v)
brunnermunzel(v, w).pvalue; chatterjeexi(v, w).statistic; chisquare(v).pvalue; *circmean(x, axis=0); *circstd(x, axis=0)
*circvar(x, axis=0); combine_pvalues(u, axis=0).pvalue; cramervonmises(v, sp.special.ndtr).pvalue
cramervonmises_2samp(v, w).pvalue; *describe(x); *differential_entropy(x, axis=0); *directional_stats(x).mean_direction
entropy(x, axis=0); epps_singleton_2samp(v, w).pvalue; f_oneway(v, w).pvalue; *false_discovery_control(u, axis=0)
fligner(v, w).pvalue; friedmanchisquare(v, w, v * w).pvalue; *gmean(x, axis=0); *gstd(x, axis=0); *gzscore(x, axis=0)
*hmean(x, axis=0); *iqr(x, axis=0); jarque_bera(x, axis=0).pvalue; kruskal(v, w).pvalue
ks_1samp(v, sp.special.ndtr).pvalue; *kstat(x, 2, axis=0); *kstatvar(x, 2, axis=0); *kurtosis(x, axis=0)
kurtosistest(v).pvalue; levene(v, w).pvalue; *lmoment(x, axis=0); mannwhitneyu(v, w).pvalue
*median_abs_deviation(x, axis=0); mode(m, axis=0); *moment(x, 3, axis=0)
monte_carlo_test(v, lambda size: xp.asarray(np.ones(size)), sp.stats.tmean, n_resamples=9).pvalue; mood(v, w)
normaltest(v).pvalue; *pearsonr(v, w).statistic; permutation_test((h, h), lambda a, b, axis: xp.mean(a, axis=axis)
- xp.mean(b, axis=axis), vectorized=True, n_resamples=99).pvalue; *pmean(x, 3, axis=0)
power(lambda a, axis: sp.stats.ttest_1samp(a, 0.0, axis=axis).pvalue, lambda size: xp.ones(size) * xp.arange(size[-1],
dtype=xp.float64), 9, n_resamples=5).power
power_divergence(v, lambda_=0.5).pvalue; *quantile(x, 0.4, axis=0); rankdata(x, axis=0); *sem(x, axis=0); sigmaclip(v)
*skew(x, axis=0); skewtest(v).pvalue; spearmanrho(v, w).statistic; *tmax(x, axis=0); *tmean(x, (0.3, 1.9), axis=0)
*tmin(x, axis=0); *trim_mean(x, 0.1, axis=0); *tsem(x, (0.3, 1.9), axis=0); *tstd(x, axis=0)
ttest_1samp(x, 1.0, axis=0).pvalue; ttest_ind(x, y, axis=0).pvalue
ttest_ind_from_stats(v, w, 9, w, v, 9).pvalue; ttest_rel(x, y, axis=0).pvalue; *tvar(x, axis=0); *variation(x, axis=0)
wilcoxon(v, w).pvalue
*yeojohnson_llf(0.5, v); *zmap(x, y, axis=0); *zscore(x, axis=0)
*alexandergovern(v, w).statistic; *bartlett(v, w).statistic; *chisquare(v).statistic
*combine_pvalues(u, axis=0).statistic; *entropy(x, y, axis=0)
*f_oneway(v, w).statistic; *jarque_bera(x, axis=0).statistic; *ks_1samp(v, lambda a: 1 - xp.exp(-a)).statistic
*kurtosistest(v).statistic; *levene(v, w).statistic; *normaltest(v).statistic
*power_divergence(v, lambda_=0.5).statistic; *skewtest(v).statistic; *ttest_1samp(x, 1.0, axis=0).statistic
*ttest_ind(x, y, axis=0).statistic; *ttest_ind_from_stats(v, w, 9, w, v, 9).statistic
*ttest_rel(x, y, axis=0).statistic
""",
    "scipy.cluster.vq": "kmeans(x, x[:3, :]); kmeans2(x, x[:3, :], minit='matrix'); vq(x, x[:3, :]); *whiten(x)",
    "scipy.cluster.hierarchy": """
average(x); centroid(x); complete(x); cophenet(Z); correspond(Z, x[0, :]); dendrogram(Z, no_plot=True)["leaves"]
fcluster(Z, 0.4); fclusterdata(x, 0.9); from_mlab_linkage(Z + xp.asarray([1.0, 1.0, 0.0, 0.0])); inconsistent(Z)
is_isomorphic(m[:, 0], m[:, 0]); is_monotonic(Z); is_valid_im(sp.cluster.hierarchy.inconsistent(Z)); is_valid_linkage(Z)
leaders(Z, sp.cluster.hierarchy.fcluster(Z, 0.4)); leaves_list(Z); linkage(x)
maxRstat(Z, sp.cluster.hierarchy.inconsistent(Z), 3); maxdists(Z)
maxinconsts(Z, sp.cluster.hierarchy.inconsistent(Z)); median(x); num_obs_linkage(Z); optimal_leaf_ordering(Z, v[:6])
single(x); to_mlab_linkage(Z); to_tree(Z).count; ward(x); weighted(x)
""",
    "scipy.constants": '*convert_temperature(x, "Celsius", "Kelvin"); *lambda2nu(x); *nu2lambda(x)',
    "scipy.differentiate": """
*derivative(xp.exp, v).df; hessian(lambda a: xp.sum(a**3, axis=0), v[:2]).ddf; *jacobian(lambda a: a**2, v[:2]).df
""",
    "scipy.integrate": """
*cubature(lambda a: xp.sum(xp.exp(a), axis=-1), v[:2], w[:2]).estimate; *cumulative_simpson(x, axis=0)
*cumulative_trapezoid(x, axis=0); nsum(lambda a: 1 / a**2, xp.asarray(1.0), xp.asarray(xp.inf)).sum
*qmc_quad(lambda a: xp.sum(xp.exp(a * v[:2, None]), axis=0), xp.zeros(2), xp.ones(2), n_points=64,
qrng=sp.stats.qmc.Halton(2, rng=0)).integral; *romb(x, axis=0)
*tanhsinh(lambda a, b: xp.exp(-b * a**2), v[:2], w[:2] + 2, args=(v[2:4],)).integral; *trapezoid(x, axis=0)
""",
    "scipy.interpolate": """
Akima1DInterpolator(grid, v)(u); BPoly(k[:2, :1], num)(u); BSpline(grid, v, 3)(u)
CubicHermiteSpline(grid, v, w)(u); CubicSpline(grid, v)(u)
NdBSpline((grid[:9], grid[:9]), xp.reshape(v[:25], (5, 5)), 3)(u[:, :2] * 0.1); PPoly(k, grid[:4])(u)
PchipInterpolator(grid, v)(u); RBFInterpolator(x, x)(y)
RegularGridInterpolator((grid[:9], grid[:6]), x)(u[:, :2] * 0.1)
generate_knots(grid, v).send(None); make_interp_spline(grid, v)(u)
make_lsq_spline(grid, v, xp.asarray([0.0] * 4 + [0.5] +
[1.0] * 4))(u); make_smoothing_spline(grid, v)(u); make_splprep([v, w], s=1)[0](u); make_splrep(grid, v, s=1)(u)
""",
    "scipy.linalg": "*block_diag(x, k); *fiedler(v); *orthogonal_procrustes(x, y)",
    "scipy.ndimage": """
affine_transform(x, k[:2, :2]); binary_closing(b); binary_dilation(b); binary_erosion(b); binary_fill_holes(b)
binary_hit_or_miss(b); binary_opening(b); binary_propagation(b); black_tophat(x, 3); center_of_mass(x); convolve(x, k)
convolve1d(x, h); correlate(x, k); correlate1d(x, h); distance_transform_bf(b); distance_transform_cdt(b)
distance_transform_edt(b); extrema(x); find_objects(m); fourier_ellipsoid(x, 2.0); fourier_gaussian(x, 2.0)
fourier_shift(x, 2.0); fourier_uniform(x, 2.0); gaussian_filter(x, 1.0); gaussian_filter1d(x, 1.0)
gaussian_gradient_magnitude(x, 1.0); gaussian_laplace(x, 1.0); generic_filter(x, np.mean, 3)
generic_filter1d(x, lambda a, out: np.copyto(out, a[1:-1]), 3)
generic_gradient_magnitude(x, sp.ndimage.sobel); generic_laplace(x, lambda a, axis, *_: sp.ndimage.sobel(a, axis))
geometric_transform(x, lambda a: a); grey_closing(x, 3); grey_dilation(x, 3); grey_erosion(x, 3); grey_opening(x, 3)
histogram(x, 0, 2, 4); iterate_structure(b[:3, :3], 2); label(b); labeled_comprehension(x, m, [0, 1, 2], np.mean, float,
0.0); laplace(x); map_coordinates(x, xp.stack([u, u])); maximum(x, m, xp.asarray([0, 1])); maximum_filter(x, 3)
maximum_filter1d(x, 3); maximum_position(x); mean(x, m, xp.asarray([0, 1])); median(x, m, xp.asarray([0, 1]))
median_filter(x, 3); minimum(x, m, xp.asarray([0, 1])); minimum_filter(x, 3); minimum_filter1d(x, 3)
minimum_position(x); morphological_gradient(x, 3); morphological_laplace(x, 3); percentile_filter(x, 40, 3); prewitt(x)
rank_filter(x, 1, 3); rotate(x, 30); shift(x, 0.5); sobel(x); spline_filter(x); spline_filter1d(x)
standard_deviation(x, m, xp.asarray([0, 1])); sum(x, m, xp.asarray([0, 1])); sum_labels(x, m, xp.asarray([0, 1]))
uniform_filter(x, 3); uniform_filter1d(x, 3); value_indices(m)[1]; variance(x, m, xp.asarray([0, 1]))
vectorized_filter(x, xp.mean, size=3); watershed_ift(xp.astype(n, xp.uint8), xp.astype(m, xp.int8)); white_tophat(x, 3)
zoom(x, 2)
""",
    "scipy.optimize": "*rosen(v); *rosen_der(v); *rosen_hess(v); *rosen_hess_prod(v, w)",
    "scipy.signal": """
*abcd_normalize(x[:2, :2], x[:2, :1], x[:1, :2], x[:1, :1]); bessel(2, num[0]); besselap(2, xp=xp)
bilinear(num, den); *bilinear_zpk(zeros, poles, 1.0, 1.0); bode((num, den)); buttap(2, xp=xp); butter(2, num[0])
buttord(xp.asarray(0.2), xp.asarray(0.3), 3, 40); cheb1ap(2, 1.0, xp=xp); cheb1ord(xp.asarray(0.2), xp.asarray(0.3), 3,
40); cheb2ap(2, 20.0, xp=xp); cheb2ord(xp.asarray(0.2), xp.asarray(0.3), 3, 40); cheby1(2, 1.0, num[0])
cheby2(2, 20.0, num[0]); choose_conv_method(v, h); convolve(v, h, method="direct"); convolve2d(x, k)
correlate(v, h, method="direct"); correlate2d(x, k); cspline1d(v); cspline1d_eval(v, xp.arange(5.0))
cspline2d(big, 1.0)
deconvolve(v, den); detrend(x); ellip(2, 1.0, 20.0, num[0]); ellipap(2, 1.0, 20.0, xp=xp)
ellipord(xp.asarray(0.2), xp.asarray(0.3), 3, 40); envelope(v); fftconvolve(v, h); filtfilt(num, den, v)
firls(5, xp.asarray([0.0, 0.3, 0.4, 1.0]), xp.asarray([1.0, 1.0, 0.0, 0.0])); *firwin(5, num[0])
firwin2(9, xp.asarray([0.0, 0.5, 1.0]), xp.asarray([1.0, 1.0, 0.0])); freqs(num, den, v)
freqs_zpk(zeros, poles, 1.0, v); freqz(num, den); freqz_sos(sos); freqz_zpk(zeros, poles, 1.0, v)
gammatone(440.0, "fir", fs=16000, xp=xp); *gauss_spline(v, 3); get_window("hann", 8, xp=xp); group_delay((num, den))
hilbert(v); hilbert2(x); iircomb(0.2, 30.0, xp=xp); iirdesign(num[0], num[1], 1.0, 40.0, output="ba")
iirfilter(2, num[0], btype="low"); iirnotch(0.3, 30.0, xp=xp); iirpeak(0.3, 30.0, xp=xp); impulse((num, den))
lfilter(num, den, v); lfilter_zi(num, den); lfiltic(num, den, v[:2]); *lp2bp(num, den); lp2bp_zpk(zeros, poles, 1.0)
*lp2bs(num, den); lp2bs_zpk(zeros, poles, 1.0); *lp2hp(num, den); *lp2hp_zpk(zeros, poles, 1.0); *lp2lp(num, den)
lp2lp_zpk(zeros, poles, 1.0); medfilt(v, 3); medfilt2d(x, 3); minimum_phase(v[:9]); *normalize(num, den)
oaconvolve(v, h); order_filter(v, h, 1); place_poles(x[:2, :2], x[:2, :2], poles).gain_matrix; qspline1d(v)
qspline1d_eval(v, xp.arange(5.0)); remez(9, xp.asarray([0.0, 0.1, 0.2, 0.5]), xp.asarray([1.0, 0.0])); resample(v, 20)
resample_poly(v, 2, 3); savgol_coeffs(5, 2, xp=xp); savgol_filter(v, 5, 2); sos2tf(sos); sos2zpk(sos); sosfilt(sos, v)
sosfilt_zi(sos); sosfiltfilt(sos, v); sosfreqz(sos); spline_filter(big); tf2sos(num, den); tf2zpk(num, den)
upfirdn(h, v); vectorstrength(v, 1.0); wiener(x); zpk2sos(zeros, poles, 1.0); zpk2tf(zeros, poles, 1.0)
""",
    "scipy.signal.windows": """
barthann(8, xp=xp); bartlett(8, xp=xp); blackman(8, xp=xp); blackmanharris(8, xp=xp); bohman(8, xp=xp); boxcar(8, xp=xp)
chebwin(8, 60, xp=xp); cosine(8, xp=xp); *exponential(8, None, num[0], xp=xp); flattop(8, xp=xp)
*gaussian(8, num[0] * 9, xp=xp)
*general_cosine(8, num); *general_gaussian(8, 2, num[0] * 9, xp=xp); *general_hamming(8, num[0], xp=xp)
get_window("hann", 8, xp=xp)
hamming(8, xp=xp); hann(8, xp=xp); kaiser(8, 2.0, xp=xp); kaiser_bessel_derived(8, 2.0, xp=xp); lanczos(8, xp=xp)
nuttall(8, xp=xp); parzen(8, xp=xp); taylor(8, xp=xp); triang(8, xp=xp); tukey(8, xp=xp)
""",
    "scipy.spatial.transform": """
*Rotation.from_quat(q).as_quat(); *Rotation.from_matrix(M).as_quat(); *Rotation.from_rotvec(r).as_quat()
*Rotation.from_mrp(r).as_quat(); *Rotation.from_euler("xyz", r).as_quat()
*Rotation.from_davenport(xp.eye(3), "extrinsic", r[0, :]).as_quat(); *Rotation.as_quat(Rotation.from_mrp(r))
*Rotation.as_matrix(Rotation.from_quat(q)); *Rotation.as_rotvec(Rotation.from_quat(q))
*Rotation.as_mrp(Rotation.from_quat(q)); *Rotation.as_euler(Rotation.from_quat(q), "xyz")
*Rotation.as_davenport(Rotation.from_quat(q), xp.eye(3), "extrinsic"); *Rotation.apply(Rotation.from_quat(q), r)
RigidTransform.identity().as_matrix()
Rotation.approx_equal(Rotation.from_quat(q), Rotation.from_mrp(r)); *Rotation.inv(Rotation.from_quat(q)).as_quat()
*Rotation.magnitude(Rotation.from_quat(q)); *Rotation.mean(Rotation.from_quat(q)).as_quat()
*Rotation.align_vectors(r, r**2)[0].as_quat(); Rotation.reduce(Rotation.from_quat(q), Rotation.from_mrp(r)).as_quat()
*Rotation.concatenate([Rotation.from_quat(q), Rotation.from_mrp(r)]).as_quat()
*RigidTransform.from_translation(r).as_matrix(); *RigidTransform.from_rotation(Rotation.from_quat(q)).as_matrix()
*RigidTransform.from_components(r, Rotation.from_quat(q)).as_matrix(); *RigidTransform.from_exp_coords(E).as_matrix()
*RigidTransform.from_dual_quat(D).as_matrix(); *RigidTransform.as_exp_coords(RigidTransform.from_exp_coords(E))
*RigidTransform.from_matrix(RigidTransform.from_exp_coords(E).as_matrix()).as_matrix()
*RigidTransform.as_matrix(RigidTransform.from_exp_coords(E))
*RigidTransform.apply(RigidTransform.from_exp_coords(E), r)
*RigidTransform.as_components(RigidTransform.from_exp_coords(E))[0]
*RigidTransform.as_dual_quat(RigidTransform.from_exp_coords(E))
*RigidTransform.mean(RigidTransform.from_exp_coords(E)).as_matrix()
*RigidTransform.inv(RigidTransform.from_exp_coords(E)).as_matrix()
*RigidTransform.concatenate([RigidTransform.from_exp_coords(E), RigidTransform.from_translation(r)]).as_matrix()
""",
    "scipy.fft": """
dct(x); dctn(x); dst(x); dstn(x); fft(v); fft2(x); fftfreq(8, xp=xp); fftn(x); fftshift(x); fht(v, 0.1, 0.2); hfft(v)
hfft2(x); hfftn(x); idct(x); idctn(x); idst(x); idstn(x); ifft(v); ifft2(x); ifftn(x); ifftshift(x); ifht(v, 0.1, 0.2)
ihfft(v); ihfft2(x); ihfftn(x); irfft(v); irfft2(x); irfftn(x); rfft(v); rfft2(x); rfftfreq(8, xp=xp); rfftn(x)
""",
}


# the functions that cannot return arrays, by the reason, with a pattern of what happens
REFUSED: dict[str, tuple[str, dict[str, str]]] = {
    "they compute with complex numbers": (
        "[Cc]omplex numbers are not supported: compute with NumPy's array",
        {
            "scipy.fft": "fft fft2 fftn ifft ifft2 ifftn rfft rfft2 rfftn ihfft ihfft2 ihfftn fht ifht",
            "scipy.ndimage": "fourier_shift",
            "scipy.signal": "bessel besselap buttap butter cheb1ap cheb2ap cheby1 cheby2 ellip ellipap envelope "
            "fftconvolve firwin2 freqs freqs_zpk freqz freqz_sos freqz_zpk hilbert hilbert2 iirdesign iirfilter "
            "lp2bp_zpk lp2bs_zpk minimum_phase oaconvolve resample sos2zpk sosfreqz tf2sos tf2zpk vectorstrength",
            "scipy.signal.windows": "chebwin",
        },
    ),
    "they return NumPy's arrays": (
        "expected an Array, got ndarray|expected a function of the array-API standard",
        {
            "scipy.fft": "fftfreq rfftfreq",
            "scipy.signal": "bode impulse place_poles",
            "scipy.spatial.transform": "RigidTransform.identity",
        },
    ),
    "they write to a view of an array, as in x[1:][mask] = 0, and arrays share no memory": (
        "Arrays share no memory|nan location mismatch",
        {"scipy.interpolate": "PchipInterpolator", "scipy.integrate": "nsum"},
    ),
    "it is another function for NumPy's arrays: SciPy takes ones for rotations that are left out": (
        "Not equal to tolerance",
        {"scipy.spatial.transform": "Rotation.reduce"},
    ),
    "they call a method of NumPy's arrays": ("no attribute 'view'", {"scipy.interpolate": "RBFInterpolator"}),
}


def calls() -> list[str]:
    """Return all calls, with the module in front, and ``*`` before it."""
    return [
        f"{'*' if call.startswith('*') else ''}{module}.{call.removeprefix('*')}"
        for module, text in CALLS.items()
        for call in split_calls(text.replace(";\n", ";").strip("\n"))
    ]


def split_calls(text: str) -> list[str]:
    """Return the calls of a text: they end at a semicolon, or at the end of a line outside of parentheses."""
    parts, depth, current = [], 0, ""
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == ";" or (c == "\n" and not depth):
            parts.append(current)
            current = ""
        else:
            current += " " if c == "\n" else c
    return [part.strip() for part in [*parts, current] if part.strip()]


def evaluate(call: str, xp: Any, arrays: dict[str, Any]) -> Any:
    """Return the result of a call for a namespace and its arrays."""
    import scipy
    from scipy.spatial import transform

    names = {"scipy": scipy, "sp": scipy, "np": np, "xp": xp}
    names |= {"Rotation": transform.Rotation, "RigidTransform": transform.RigidTransform}
    return eval(call, {**names, **arrays})


def declared_functions() -> dict[str, bool]:
    """Return the functions that SciPy declares to support the standard: {name: whether it is computed by NumPy}."""
    import types

    from scipy._lib._array_api import xp_capabilities_table

    found: dict[str, bool] = {}
    for module in CALLS:
        namespace = importlib.import_module(module)
        for name in namespace.__all__:
            function = getattr(namespace, name)
            if isinstance(function, types.ModuleType) or not callable(function):
                continue
            functions = {name: function}
            if module == "scipy.spatial.transform":
                functions = {f"{name}.{method}": getattr(function, method) for method in vars(function)}
            for each, implementation in functions.items():
                is_known = callable(implementation) and not each.endswith("__")
                if is_known and (known := xp_capabilities_table.get(implementation)) and not known["np_only"]:
                    found[f"{module}.{each}"] = known["cpu_only"]
    return found


if __name__ == "__main__":
    from neonlite import Backend

    for name in CALLS:
        importlib.import_module(name)
    runtime, *kinds = sys.argv[1:]
    xp = Backend(runtime, default_dtype="float64").array_api
    results = {what: find_problems(calls(), ARRAYS, evaluate, xp, what) for what in kinds if what != "declared"}
    print(json.dumps({"declared": declared_functions(), **results}))
