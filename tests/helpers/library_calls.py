"""Calls into other libraries, as a table: each works as for a NumPy array, or raises the error that is noted.

``x`` and ``y`` are matrices (2, 3), ``q`` is (3, 3), ``v`` and ``w`` are vectors of 6 elements, ``s`` is a number,
``i`` holds integers (2, 3), and ``img`` is an image. A note says for which operands a call is refused (t: tensors,
n: op-tree nodes, a: arrays of ``neonlite.array_api``), and words of the error.
"""

from __future__ import annotations

TABLE = r"""
# builtins
"%.3f" % s
"%d" % s
"%5.1f and %s" % (s, 1)
f"{s:.3f}"
"{:.2f}".format(s)
format(s, ".1f")
str(s) != ""
len(f"{x}") > 0
round(s)
round(s, 0)
sum([x, y])
sum([s, s])
sum(v)  # n: the triple
sum(x)  # n: the triple
max(s, 1)
max([s, 2 * s])
min([s, 2 * s])
max(v)  # n: the triple
min(v)  # n: the triple
sorted([s, 2 * s, 0 * s])
sorted(v)  # n: the triple
[a + b for a, b in zip(v, w)]  # n: the triple
any([s > 1])
all(v > 0)  # t n: the triple
any(v > 9)  # t n: the triple
bool(s > 1)
float(s)
int(s)
complex(s)  # t n: Use float(t); a: Complex numbers are not supported
abs(x)
divmod(x, 2)
pow(x, 2)
bool(s)
x[:, 1]  # n: the triple
x[x > 1]  # n: the triple
x[0, 1]  # n: the triple
s == 2.5
2.5 in v
7 in v
list(map(float, v))
list(filter(lambda a: a > 2, v))  # n: the triple
[10, 20, 30][i[0, 0]]  # n: the triple
range(i[0, 0])  # n: the triple
list(range(int(i[0, 0])))  # n: the triple
{"a": s}["a"] + 1
[0] * i[0, 0]  # n: the triple; a: Create an array with asarray
chr(i[0, 0] + 65)  # n: the triple
hex(i[0, 0])  # n: the triple
repr(x) != ""
x is not None and x.shape[0]
slice(i[0, 1], i[0, 0])  # n: the triple

# math
math.sqrt(s)
math.exp(s)
math.floor(s)
math.ceil(s)
math.isfinite(s)
math.isclose(s, 2.5)
math.prod(v)  # n: the triple
math.hypot(s, s)
math.log(s)
math.dist(v, w)
statistics.mean(v)  # a: can't convert type
statistics.median(v)  # n: the triple
statistics.stdev(v)  # a: can't convert type
statistics.fmean(v)
operator.index(i[0, 0])  # n: the triple
operator.add(x, y)
functools.reduce(operator.add, [x, y, x])
list(itertools.accumulate(v))  # n: the triple
decimal.Decimal(s.item())
fractions.Fraction(s.item())
random.Random(0).sample(v.tolist(), 2)

# json
json.dumps(x.tolist())
json.dumps({"loss": float(s)})
json.dumps({"loss": s})
json.dumps(x)
json.dumps(s.item())
csv.writer(io.StringIO()).writerow(x.tolist()[0])
pprint.pformat({"a": s}) != ""
struct.pack("f", s)
array.array("f", v)
bisect.bisect([1, 2, 3], s)
heapq.nlargest(2, v)  # n: the triple
logging.getLogger("x").debug("%.3f", s)
logging.LogRecord("x", 10, "", 1, "%.3f", (s,), None).getMessage()
logging.LogRecord("x", 10, "", 1, "loss %s", (s,), None).getMessage()[:5]
datetime.timedelta(seconds=float(s))

# copying
copy.copy(x)
copy.deepcopy(x)
pickle.loads(pickle.dumps(x))  # n: tree.astensor() or tree.get()
pickle.loads(pickle.dumps({"x": x}))["x"]  # n: tree.astensor() or tree.get()
joblib.hash(x) == joblib.hash(x)  # n: tree.astensor() or tree.get()
joblib.dump(x, io.BytesIO())  # n: tree.astensor() or tree.get()
cloudpickle.loads(cloudpickle.dumps(x))  # n: tree.astensor() or tree.get()
memoryview(x)  # t n a: a bytes-like object is required
bytes(x)  # t a: expected an integer; n: interpreted as an integer
x.tobytes()  # t n a: no attribute 'tobytes'
x.__array_interface__["shape"]  # t n: Use np.asarray(; a: '__array_interface__'
x.__dlpack__() is not None
x.__dlpack_device__()[0]
np.from_dlpack(x)
np.asarray(x)
np.array(x)
np.array([x, y])
np.array([s, s])
np.asarray(x, dtype="float64")
np.array(x, copy=True)
np.array(v.tolist())
np.asanyarray(x)
np.ascontiguousarray(x)
np.asarray([s, 1.0])  # t n: inhomogeneous shape
np.float32(s)
np.float64(s)
np.int64(i[0, 0])  # n: the triple
np.frombuffer(x)  # t n a: a bytes-like object is required
np.ma.array(x)
np.matrix(x)
np.fromiter(v, float)
np.fromiter(map(float, v), float)

# numpy
np.einsum("ij,kj->ik", x, y)
np.einsum("ij->j", x)
np.einsum("ii", q)
np.einsum("ij,kj->ik", x, np.ones((2, 3), "f"))
np.dot(x, y.T)
np.dot(x, y.T, out=None)
np.vdot(x, y)
np.inner(x, y)
np.outer(v, w)
np.kron(x, y)
np.tensordot(x, y, axes=([1], [1]))
np.vstack([x, y])
np.vstack((v, w))
np.hstack([x, y])
np.hstack((v, w))
np.column_stack([v, w])
np.dstack([x, y])
np.concatenate([x, y])
np.concatenate([x, y], axis=1)
np.stack([x, y])
np.stack([x, y], axis=-1)
np.block([[x, y], [y, x]])
np.append(v, w)
np.insert(v, 0, 1)
np.delete(v, 0)
np.split(v, 2)
np.array_split(v, 4)
np.hsplit(x, 3)
np.vsplit(x, 2)
np.linalg.norm(x)
np.linalg.norm(x, axis=1)
np.linalg.norm(v)
np.linalg.norm(x, ord=1, axis=0)
np.linalg.norm(x, "fro")
np.linalg.norm(x, 2)
np.linalg.inv(q)
np.linalg.det(q)
np.linalg.slogdet(q)
np.linalg.solve(q, q)
np.linalg.pinv(x)
np.linalg.eigh(q)[0]
np.linalg.eigvalsh(q)
np.linalg.svd(q)[1]
np.linalg.qr(q)[1]
np.linalg.cholesky(q)
np.linalg.matrix_rank(q)
np.linalg.matrix_power(q, 2)
np.linalg.lstsq(q, q)[0]
np.linalg.eig(q)[0]
np.linalg.cond(q)
np.linalg.multi_dot([q, q, q])
np.median(x)
np.median(v)
np.median(x, axis=0)
np.percentile(v, 50)
np.quantile(v, 0.5)
np.nanmean(x)
np.nansum(x, axis=0)
np.nanmax(x)
np.nanmin(x)
np.nanstd(x)
np.nanmedian(x)
np.nanvar(x)
np.nanargmax(v)
np.nan_to_num(x)
np.average(x)
np.average(v, weights=w)
np.ptp(x)
np.std(x, ddof=1)
np.var(x, axis=0, ddof=1)
np.cov(x)
np.corrcoef(x)
np.histogram(v)[0]
np.histogram2d(v, w)[0]
np.bincount(i[0])  # t: too deep; n: depth
np.digitize(v, [1, 2, 3])
np.unique(i)
np.unique(i, return_counts=True)
np.pad(x, 1)
np.pad(x, ((1, 0), (0, 2)))
np.pad(x, 1, mode="edge")
np.flip(x)
np.fliplr(x)
np.flipud(x)
np.rot90(x)
np.roll(x, 1)
np.roll(x, 1, axis=0)
np.tile(x, (2, 1))
np.repeat(x, 2)
np.repeat(x, 2, axis=0)
np.expand_dims(x, 0)
np.squeeze(x)
np.ravel(x)
np.reshape(x, (3, 2))
np.transpose(x)
np.swapaxes(x, 0, 1)
np.moveaxis(x, 0, 1)
np.broadcast_to(v, (2, 6))
np.broadcast_shapes(x.shape, (1, 3))
np.atleast_1d(v)
np.atleast_2d(x)
np.atleast_3d(x)
np.meshgrid(v, w)[0]
np.diag(v)
np.diag(q)
np.diagonal(q)
np.trace(q)
np.tril(q)
np.triu(q)
np.eye(3) @ q
q @ np.eye(3)
np.ones((2, 3), "f") + x
np.float64(2) * x
np.where(x > 1, x, y)
np.where(x > 1, x, 0)
np.where(x > 1)
np.nonzero(x > 1)
np.argwhere(x > 1)
np.flatnonzero(x > 1)
np.count_nonzero(x)
np.select([x > 1], [x], 0)  # t n: should be boolean ndarray
np.choose(i, [x, y, x])
np.clip(x, 0, 1)
np.interp(v, [0, 5], [0, 1])
np.polyfit(v, w, 1)
np.polyval([1, 2], x)
np.gradient(v)
np.diff(v)
np.trapezoid(v)
np.cumsum(x)
np.cumsum(x, axis=0)
np.cumprod(x, axis=1)
np.cross(q, q)
np.convolve(v, [1, 1])
np.correlate(v, w)
np.sort(x)
np.argsort(x)
np.sort(v)
np.argmax(x)
np.argmax(x, axis=1)
np.argmin(x)
np.searchsorted([1, 2, 3], v)
np.partition(v, 2)[2]
np.argpartition(v, 2)[2]
np.lexsort((v,))
np.isin(i, [1])
np.intersect1d(v, w)
np.union1d(v, w)
np.setdiff1d(v, w)
np.allclose(x, x)
np.isclose(x, x)
np.array_equal(x, y)
np.testing.assert_allclose(x, x)
np.testing.assert_array_equal(x, x)
np.all(x > 0)
np.any(x > 9)
np.sum(x)
np.sum(x, axis=0)
np.sum(x, axis=1, keepdims=True)
np.sum(x, dtype="float64")
np.sum([x, y])
np.mean(x)
np.mean(x, axis=0)
np.prod(x)
np.max(x)
np.min(x, axis=1)
np.exp(x)
np.log(x)
np.sqrt(x)
np.tanh(x)
np.abs(x)
np.sign(x)
np.power(x, 2)
np.square(x)
np.maximum(x, y)
np.add(x, y)
np.add(x, 1, dtype="float64")
np.exp(x, where=np.ones((2, 3), bool))
np.add.reduce(x)
np.add.accumulate(x)
np.add.outer(v, w)
np.multiply.outer(v, w)
np.isnan(x)
np.isfinite(x)
np.round(x, 1)
np.floor(x)
np.rint(x)
np.mod(x, 2)
np.fmod(x, 2)
np.modf(x)
np.frexp(x)
np.cbrt(x)
np.heaviside(x, 0)
np.deg2rad(x)
np.degrees(x)
np.sinc(x)
np.logaddexp(x, y)
np.real(x)
np.imag(x)
np.conj(x)
np.angle(x)
np.iscomplexobj(x)
np.isreal(x)
np.isscalar(x)
np.zeros_like(x)
np.ones_like(x)
np.empty_like(x).shape
np.full_like(x, 2)
np.zeros(i[0, 0])  # n: the triple
np.arange(i[0, 0])  # n: the triple
np.linspace(0, s, 3)
np.arange(s)
np.full((2, 2), s)
np.take(x, [0], axis=1)
np.take_along_axis(x, np.argsort(x, axis=1), axis=1)
np.put_along_axis(x, np.zeros((2, 1), int), 9, 1)  # t n a: a NumPy array to write to
np.copyto(x, 0)  # t n a: a NumPy array to write to
np.put(x, [0], 9)  # t n a: a NumPy array to write to
np.fill_diagonal(q, 0)  # t n a: a NumPy array to write to
np.apply_along_axis(np.sum, 0, x)
np.vectorize(lambda a: a + 1)(x)
np.fft.fft(x)
np.fft.rfft(v)
np.shape(x)
np.ndim(x)
np.size(x)
np.result_type(x)
np.can_cast(x.dtype, "float64")
np.savetxt(io.StringIO(), x)
np.save(io.BytesIO(), x)
np.savez(io.BytesIO(), x=x)
np.array2string(x) != ""
np.array_str(x) != ""
np.random.default_rng(0).choice(v, 2)
np.random.default_rng(0).permutation(v)
np.random.default_rng(0).normal(x)
np.random.default_rng(0).normal(s)
np.ma.masked_where(x > 1, x)
np.ndenumerate(x) is not None
np.lib.stride_tricks.sliding_window_view(v, 2)
np.zeros((2, 3))[x > 1]  # t n: are valid indices
np.arange(9.0)[i]
np.zeros((2, 3)).__iadd__(x)
np.arange(6.0).__setitem__(0, s)
np.zeros((2, 3)).__setitem__(0, x[0])  # n: the triple
np.zeros((2, 3)).__setitem__(slice(None), x)
be.einsum("ij,kj->ik", x, y)
be.array(x)
be.exp(x)
be.sum(x)

# pandas
pd.DataFrame(x)
pd.DataFrame(x, columns=["a", "b", "c"])
pd.DataFrame({"a": v})
pd.DataFrame({"a": v, "b": w})
pd.DataFrame({"a": [float(s)]})
pd.Series(v)
pd.Series(x[0])  # t: must be 1-dimensional; n: the triple
pd.Index(v)
pd.Series([1.0] * 6) + v
pd.DataFrame(np.ones((2, 3))) + x  # t n a: Unable to coerce list
pd.DataFrame(np.ones((2, 3))) * s  # t n: Unable to coerce list; a: no attribute 'view'
pd.DataFrame(np.ones((2, 3))) @ q
pd.DataFrame(np.ones((2, 3))).assign(d=x[:, 0])  # n: the triple
pd.cut(v, 3).codes
pd.Series(range(6))[v > 2]  # t n: multidimensional key; a: are in the [index]
pd.Series(range(6))[(v > 2).numpy().squeeze()]
x * pd.DataFrame(np.ones((2, 3)))  # t n a: Unable to coerce list
x.numpy() * pd.DataFrame(np.ones((2, 3)))
pd.unique(v)  # a: unique requires
pd.Series(range(6)).where(v > 2, 0)
pd.DataFrame(np.ones((6, 1)))[v > 2]  # t n: not iterable; a: are in the [columns]
pd.concat([pd.DataFrame(x), pd.DataFrame(y)])
pd.isna(x)
pd.to_numeric(v)
pd.DataFrame(np.zeros((2, 3))).equals(x)

# polars
pl.DataFrame(x)  # t n: Pass t.get(); a: Pass x.numpy()
pl.DataFrame({"a": v})  # t n: Pass t.get(); a: Pass x.numpy()
pl.DataFrame({"a": v, "b": w})  # t n: Pass t.get(); a: Pass x.numpy()
pl.Series(v)  # t n: Pass t.get(); a: Pass x.numpy()
pl.Series("a", v)  # t n: Pass t.get(); a: Pass x.numpy()
pl.Series(x)  # t n: Pass t.get(); a: Pass x.numpy()
pl.from_numpy(np.asarray(x))
pl.from_numpy(x)  # t: Pass t.get(); n: the triple; a: Pass x.numpy()
pl.lit(s).meta.eq(pl.lit(2.5))
pl.DataFrame({"a": [1.0, 2.0]}).with_columns(pl.col("a") * float(s))
pl.DataFrame({"a": [1.0, 2.0]}).with_columns(pl.col("a") * s)
pa.array(v)  # a: Could not convert

# xarray
xr.DataArray(x).values
xr.DataArray(x).mean().values
xr.DataArray(x).mean("dim_0").values
xr.DataArray(x).sum().values  # t n: Booleans are stored as 0 and 1
xr.DataArray(x).std().values
xr.DataArray(x).max("dim_1").values
(xr.DataArray(x) + 1).values
(xr.DataArray(x) * xr.DataArray(y)).values
np.exp(xr.DataArray(x)).values
xr.DataArray(x, dims=("a", "b")).isel(a=0).values  # t: must have the same length; n: the triple
xr.DataArray(x, dims=("a", "b")).transpose("b", "a").values
xr.DataArray(x, coords={"a": [0, 1]}, dims=("a", "b")).sel(a=1).values  # t: must have the same length; n: the triple
xr.Dataset({"x": (("a", "b"), x)}).mean()["x"].values
xr.DataArray(x).to_numpy()
xr.DataArray(x).where(xr.DataArray(x) > 1).values  # t n: Booleans are stored as 0 and 1
xr.DataArray(x).median().values
xr.concat([xr.DataArray(x), xr.DataArray(y)], "dim_0").values
xr.dot(xr.DataArray(x), xr.DataArray(y)).values  # t n: unexpected number of dimensions
xr.DataArray(v).to_series().to_numpy()
xr.DataArray(np.ones((2, 3))) + x
xr.DataArray(x).fillna(0).values  # t n: Booleans are stored as 0 and 1
xr.DataArray(v).rolling(dim_0=2).mean().values  # t n: Booleans are stored as 0 and 1; a: no attribute 'pad'
xr.DataArray(x).isnull().values
xr.DataArray(x).clip(0, 1).values
repr(xr.DataArray(x)) != ""
[a.get_ydata() for a in ax.plot([0, 1], [s, s])]  # t n: no greater than 2D
ax.hist(v)[0]
ax.hist(v, bins=3)[0]
ax.hist([v, w], bins=3)[0]
ax.hist(x, bins=3)[0]
[a.get_width() for a in ax.barh(range(6), v)]
[a.get_height() for a in ax.bar(v, w, yerr=w)]
[a.get_width() for a in ax.barh(v, w)]
ax.scatter(v, w).get_offsets().data
ax.scatter(v, w, c=v).get_array()
ax.scatter(v, w, s=v).get_sizes()
ax.scatter(x, y).get_offsets().data
ax.errorbar(range(6), v, yerr=w)[0].get_ydata()
ax.errorbar(v, w, xerr=v)[0].get_xdata()
ax.fill_between(range(6), v, w).get_paths()[0].vertices
ax.fill_between(range(6), v).get_paths()[0].vertices
ax.fill_between(range(6), v - s, v + s).get_paths()[0].vertices
ax.axhline(s).get_ydata()
ax.axvline(s).get_xdata()
ax.axhspan(0, s) is not None  # t n: inhomogeneous shape
ax.axvspan(0, s) is not None  # t n: inhomogeneous shape
ax.imshow(x).get_array()
ax.imshow(img).get_array()
ax.imshow(x, vmin=0, vmax=s).get_array()
ax.imshow(x, cmap="gray").get_extent()
ax.matshow(x).get_array()
ax.pcolormesh(x).get_array()
ax.pcolor(x).get_array()
ax.contour(x).levels
ax.contourf(x).levels
ax.boxplot(v)["medians"][0].get_ydata()
ax.violinplot(v)["bodies"][0] is not None
[a.get_ydata() for a in ax.step(range(6), v)]
ax.stem(v)[0].get_ydata()  # n: could not broadcast
ax.pie(v)[0][0].theta2
ax.text(s, s, "a").get_position()
ax.set_xlim(0, s)
ax.set_ylim(0, s)
ax.set_title("loss %.2f" % s).get_text()
ax.set_title(f"loss {s:.2f}").get_text()
ax.annotate("a", (s, s)).xy
ax.hlines(v, 0, 1).get_segments()
ax.vlines(v, 0, 1).get_segments()
ax.quiver(v, w, v, w).U
ax.semilogy(v)[0].get_ydata()
ax.loglog(v, w)[0].get_ydata()
ax.stackplot(range(6), v, w)[0].get_paths()[0].vertices
ax.hexbin(v, w, gridsize=3).get_array()
ax.hist2d(v, w, bins=2)[0]
ax.spy(q).get_array()
ax.set_xticks(v)[0].get_loc()
ax.axline((0, 0), slope=s).get_slope()
matplotlib.colors.Normalize(0, 1)(x)
matplotlib.cm.viridis(x)

# seaborn
sns.heatmap(x, ax=ax).collections[0].get_array()
sns.lineplot(x=v, y=w, ax=ax).lines[0].get_ydata()
sns.histplot(v, ax=ax) is not None
sns.scatterplot(x=v, y=w, ax=ax) is not None

# torch
torch.tensor(x)
torch.tensor(s)
torch.as_tensor(x)
torch.asarray(x)
torch.from_dlpack(x)
torch.from_numpy(np.asarray(x))
torch.from_numpy(x)  # t n a: expected np.ndarray
torch.utils.dlpack.from_dlpack(x)
torch.ones(2, 3) + x
torch.ones(2, 3) * s
torch.ones(2, 3) @ q
torch.exp(x)
torch.stack([torch.as_tensor(x)])
torch.nn.functional.relu(torch.as_tensor(x))
torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(x))
torch.full((2,), float(s))
torch.full((2,), s)  # t n a: must be Number
torch.ones(9)[i]  # t n a: too many indices
torch.tensor(x.tolist())
torch.tensor([s, s])  # t: too many dimensions; n: Could not infer dtype; a: expected at least one dimension
torch.equal(torch.as_tensor(x), torch.as_tensor(x))
torch.utils.data.default_collate([np.asarray(x)])
torch.utils.data.default_collate([x, x])  # t n a: batch must contain

# opt_einsum
oe.contract("ij,kj->ik", x, y)
oe.contract("ij->j", x)
oe.contract("ij,kj,kl->il", x, y, y)
oe.contract("ii", q)
oe.contract("ij,kj->ik", x, np.ones((2, 3), "f"))
oe.contract_path("ij,kj->ik", x, y)[0]

# array_api
array_api_compat.array_namespace(x).exp(x)  # t n: is not a supported array type
array_api_compat.array_namespace(x, y).sum(x)  # t n: is not a supported array type
array_api_compat.to_device(x, "cpu")
array_api_compat.to_device(x, x.device)
array_api_compat.device(x)
array_api_compat.size(x)
x.to_device("cpu")
xpx.atleast_nd(x, ndim=3)  # t n: is not a supported array type
xpx.kron(x, y)  # t n: is not a supported array type
xpx.cov(x)  # t n: is not a supported array type
xpx.pad(x, 1)  # t n: is not a supported array type
xpx.nunique(i)  # t n: is not a supported array type
xpx.one_hot(i, 3)  # t n: is not a supported array type
xpx.setdiff1d(v, w)  # t n: is not a supported array type
xpx.sinc(x)  # t n: is not a supported array type
xpx.isclose(x, y)  # t n: is not a supported array type
xpx.nan_to_num(x)  # t n: is not a supported array type
xpx.expand_dims(x, axis=(0,))  # t n: is not a supported array type
xpx.create_diagonal(v)  # t n: is not a supported array type
xpx.at(x, 0).set(1)  # t n: is not a supported array type
xpx.argpartition(v, 2)[2]
xpx.partition(v, 2)[2]
xpx.broadcast_shapes(x.shape, (1, 3))
xpx.apply_where(x > 1, x, lambda a: a * 2, fill_value=0)  # t n: is not a supported array type

# einops
einops.rearrange(x, "a b -> b a")  # t n a: Tensor type unknown to einops
einops.rearrange(x, "a b -> (a b)")  # t n a: Tensor type unknown to einops
einops.rearrange([x, y], "n a b -> n b a")  # t n a: Tensor type unknown to einops
einops.reduce(x, "a b -> a", "mean")  # t n a: Tensor type unknown to einops
einops.reduce(x, "a b -> b", "max")  # t n a: Tensor type unknown to einops
einops.repeat(x, "a b -> a b c", c=2)  # t n a: Tensor type unknown to einops
einops.einsum(x, y, "i j, k j -> i k")  # t n a: Tensor type unknown to einops
einops.pack([x, y], "* b")[0]  # t n a: Tensor type unknown to einops
einops.parse_shape(x, "a b")  # t n a: Tensor type unknown to einops
einops.asnumpy(x)  # t n a: Tensor type unknown to einops

# sklearn
sklearn.preprocessing.StandardScaler().fit_transform(x)
sklearn.preprocessing.MinMaxScaler().fit_transform(x)
sklearn.preprocessing.OneHotEncoder().fit_transform(i).toarray()
sklearn.preprocessing.LabelEncoder().fit_transform(i[0])  # t n: y should be a 1d array
sklearn.preprocessing.LabelBinarizer().fit_transform(i[0])  # t: Multioutput target; n: Expected array-like
sklearn.decomposition.PCA(1).fit(x).explained_variance_
sklearn.linear_model.LinearRegression().fit(v.reshape(-1, 1), w).coef_
sklearn.linear_model.LogisticRegression().fit(q, [0, 1, 0]).predict(q)
sklearn.linear_model.LogisticRegression().fit(q, i[0]).predict(q)  # t n: y should be a 1d array
sklearn.cluster.KMeans(2, random_state=0, n_init=1).fit(x).labels_
sklearn.metrics.accuracy_score(i[0], i[1])  # t: multiclass-multioutput is not supported; n: Expected array-like
sklearn.metrics.mean_squared_error(v, w)
sklearn.metrics.r2_score(v, w)
sklearn.metrics.confusion_matrix(i[0], i[1])  # t: multiclass-multioutput is not supported; n: index out of range
sklearn.metrics.log_loss([0, 1, 1], q[0] / 10)  # t: inconsistent numbers of samples; n: the triple
sklearn.metrics.roc_auc_score([0, 1, 1, 0, 1, 0], v)
sklearn.metrics.pairwise_distances(x)
sklearn.model_selection.train_test_split(v, random_state=0)[0]  # n: the triple
sklearn.model_selection.train_test_split(q, i[0], random_state=0)[0]  # t n: inconsistent numbers of samples
sklearn.model_selection.KFold(3).get_n_splits(v)
[a[1] for a in sklearn.model_selection.KFold(3).split(v)]
sklearn.utils.check_array(x)
sklearn.utils.shuffle(v, random_state=0)  # n: the triple
sklearn.utils.resample(v, random_state=0)  # n: the triple
sklearn.utils.validation.check_X_y(q, i[0])[0]  # t n: y should be a 1d array

# scipy
scipy.special.expit(x)
scipy.special.logsumexp(x)
scipy.special.softmax(x)
scipy.special.gamma(x)
scipy.special.erf(x)
scipy.special.xlogy(x, y)
scipy.stats.zscore(v)
scipy.stats.describe(v).mean
scipy.stats.pearsonr(v, w)[0]
scipy.stats.ttest_ind(v, w)[1]
scipy.stats.norm.pdf(x)
scipy.stats.norm(s, 1).cdf(2.0)
scipy.stats.entropy(v)
scipy.stats.rankdata(v)
scipy.stats.gaussian_kde(v).factor
scipy.linalg.inv(q)
scipy.linalg.solve(q, q)
scipy.linalg.expm(q)
scipy.linalg.norm(x)
scipy.linalg.eigh(q)[0]
scipy.linalg.lu(q)[2]
scipy.signal.convolve(v, w)
scipy.signal.convolve2d(x, q)
scipy.signal.fftconvolve(v, w)
scipy.signal.lfilter([1.0], [1.0, 0.5], v)
scipy.signal.find_peaks(v)[0]
scipy.signal.savgol_filter(v, 3, 1)
scipy.signal.detrend(v)
scipy.ndimage.gaussian_filter(x, 1)
scipy.ndimage.zoom(x, 2)
scipy.ndimage.rotate(x, 90)
scipy.ndimage.convolve(x, q)
scipy.optimize.minimize(lambda z: float(np.sum((z - 1) ** 2)), v).x.round(3)
scipy.optimize.linear_sum_assignment(x)[1]
scipy.optimize.nnls(q, q[0])[0]  # t: Expected a 1D array; n: the triple
scipy.interpolate.interp1d([0, 9], [0, 1])(v)
scipy.interpolate.interp1d(np.sort(np.asarray(v)), w)(2.0)
scipy.interpolate.CubicSpline(range(6), v)(2.5)
scipy.spatial.distance.cdist(x, y)
scipy.spatial.distance.pdist(x)
scipy.spatial.distance.cosine(v, w)
scipy.spatial.distance.euclidean(v, w)
scipy.fft.fft(x)
scipy.fft.rfft(v)
scipy.fft.dct(v)
scipy.fft.fft2(x)
scipy.integrate.simpson(v)
scipy.integrate.trapezoid(v)
scipy.sparse.csr_matrix(x).toarray()
scipy.sparse.csr_array(x).toarray()
scipy.sparse.csr_matrix(np.eye(3)) @ q
scipy.cluster.vq.whiten(x)

# pillow
np.asarray(PIL.Image.fromarray((img * 255).astype("uint8")))  # t n: Use np.asarray(; a: '__array_interface__'
np.asarray(PIL.Image.fromarray(np.asarray((img * 255).astype("uint8"))))
np.asarray(PIL.Image.fromarray(x))  # t n: Use np.asarray(; a: '__array_interface__'

# other
h5py.File(io.BytesIO(), "w").create_dataset("x", data=x)[...]
sympy.Matrix(x.tolist()).shape
sympy.Matrix(x).shape
sympy.Float(float(s)) > 2
networkx.from_numpy_array(q).number_of_nodes()  # t n a: nonzero
mpmath.mpf(float(s)) > 2
"""

ROWS = [line.partition("  # ") for line in TABLE.splitlines() if line[:1] not in ("", "#")]
CALLS: dict[str, str] = {call: notes for call, _, notes in ROWS}
