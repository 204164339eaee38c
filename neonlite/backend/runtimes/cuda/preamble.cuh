// Helpers that precede every kernel.

#define INF __longlong_as_double(0x7ff0000000000000LL)
#define NO_INDEX 0x7fffffffffffffffLL
typedef unsigned long long uint64;

// 16-bit floats in memory; they are float in registers.
#ifndef SIMULATED  // on a GPU, each conversion is one instruction
struct Half { unsigned short bits; };
__device__ inline float to_compute(Half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline void store(Half& y, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
__device__ inline void store(Half& y, double x) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x)); }
__device__ inline float fast_divide(float x, float y) { return __fdividef(x, y); }  // error of at most 2 ulp, two instructions
#else
inline float fast_divide(float x, float y) { return x / y; }
#endif
struct BFloat16 { unsigned short bits; };  // the upper half of a float
__device__ inline float to_compute(BFloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline void store(BFloat16& y, float x)
{
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else  // round half to even: 0x7fff and the last bit carry; NaN stays NaN
    const unsigned bits = __float_as_uint(x);
    y.bits = x != x ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}
__device__ inline void store(BFloat16& y, double x) { store(y, (float)x); }
template <class T, class U> __device__ inline void store(T& y, U x) { y = x; }
template <class H, class T> __device__ inline H to_storage(T x) { H y; store(y, x); return y; }
template <class T> __device__ inline T to_compute(T x) { return x; }
template <class H, class T> __device__ inline float round_to(T x) { return to_compute(to_storage<H>(x)); }

// V adjacent elements, which a thread loads or stores at once: at most 16 bytes.
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T at[V]; };
template <int V, class T> __device__ inline Pack<T, V> load(const T* x) { return *(const Pack<T, V>*)x; }
template <class T, int V> __device__ inline void store(T* x, const Pack<T, V>& values) { *(Pack<T, V>*)x = values; }

// Maximum and minimum; NaN if either operand is NaN.
template <class T> __device__ inline T max_nan(T x, T y) { return x > y || x != x ? x : y; }
template <class T> __device__ inline T min_nan(T x, T y) { return x < y || x != x ? x : y; }
#if __CUDA_ARCH__ >= 800  // in one instruction
__device__ inline float max_nan(float x, float y) { asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y)); return x; }
__device__ inline float min_nan(float x, float y) { asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y)); return x; }
#endif

// Record a failed bounds check and its index; the first one is kept.
__device__ inline void report_index(uint64* record, long long check, long long index)
{
    if (atomicCAS(record, 0, (uint64)check) == 0) record[1] = (uint64)index;
}

// A float as an integer; NaN is the least integer, as on a CPU. CUDA makes it 0, which might be a valid index.
template <class I, class F> __device__ inline I float_to_int(F x) { return x != x ? (I)1 << (8 * sizeof(I) - 1) : (I)x; }

// Integer power by squaring; it wraps.
template <class T> __device__ inline T int_pow(T x, T n)
{
    T z = 1;
    for (; n; n >>= 1, x *= x)
        if (n & 1) z *= x;
    return z;
}

// Division rounded down and its remainder, which has the sign of y, as in Python.
template <class T> __device__ inline T remainder_of(T x, T y)
{
    const T r = fmod(x, y);
    return r == 0 ? (T)copysign(0.0, (double)y) : (r < 0) != (y < 0) && r == r ? r + y : r;
}
template <class T> __device__ inline T floor_divide(T x, T y)
{
    if (y == 0) return x / y;
    const T r = fmod(x, y), q = (x - r) / y - (r != 0 && (r < 0) != (y < 0));  // an integer, but for rounding
    return q == 0 ? (T)copysign(0.0, (double)(x / y)) : (T)rint(q);
}
// Of integers: 0 where y is 0, as in NumPy. On a CPU, a division by 0, or of the least integer by -1, would trap.
template <class T> __device__ inline bool is_minus_one(T y) { return (T)-1 < 0 && y == (T)-1; }
template <class T> __device__ inline T int_remainder(T x, T y)
{
    if (y == 0 || is_minus_one(y)) return 0;
    const T r = x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
template <class T> __device__ inline T int_floor_divide(T x, T y)
{
    if (y == 0 || is_minus_one(y)) return y == 0 ? 0 : 0 - (uint64)x;
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
}

// Shifts of integers; by as many bits as T has, or more, or by a negative number: 0, or -1 for a negative x shifted right.
template <class T> __device__ inline T shift_left(T x, T n) { return (uint64)n < 8 * sizeof(T) ? (uint64)x << n : 0; }
template <class T> __device__ inline T shift_right(T x, T n) { return (uint64)n < 8 * sizeof(T) ? x >> n : -(x < 0); }

template <class T> __device__ inline T log_add_exp(T x, T y)
{
    return x == y ? x + (T)0.69314718055994530942 : max_nan(x, y) + (T)log1p(exp(-fabs(x - y)));
}

// The next 16-bit float after x toward y.
template <class H> __device__ inline float next_half(float x, float y)
{
    if (x != x || y != y || x == y) return x == y ? y : x + y;
    H z = to_storage<H>(x);
    z.bits = x == 0 ? (y < 0 ? 0x8001 : 1) : z.bits + ((x < y) == (x > 0) ? 1 : -1);
    return to_compute(z);
}

// An extreme element and its index. The first of equal elements is selected, and NaN before any number.
template <class T> struct ArgValue { T value; long long index; };
template <class T> __device__ inline ArgValue<T> select_arg(ArgValue<T> a, ArgValue<T> b, bool is_b_better)
{
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    const bool equal = a.value == b.value || (nan_a && nan_b);
    return equal ? (b.index < a.index ? b : a) : (nan_b || is_b_better ? b : a);
}
template <class T> __device__ inline ArgValue<T> combine_argmax(ArgValue<T> a, ArgValue<T> b)
{
    return select_arg(a, b, b.value > a.value);
}
template <class T> __device__ inline ArgValue<T> combine_argmin(ArgValue<T> a, ArgValue<T> b)
{
    return select_arg(a, b, b.value < a.value);
}

// *x, or 0 out of bounds.
template <class T> __device__ inline T load_if(const T* x, bool in_bounds) { return in_bounds ? *x : T(); }

// x / y by r = reciprocal(y), which many divisions share. It is correctly rounded: the remainder x - q y is exact unless
// it is denormal (Markstein, IBM J. Res. Dev. 34, 1990). If it might be, and if a value is not finite, x / y is computed.
__device__ inline float reciprocal(float y)
{
    return fabsf(y) > 0x1p-40f && fabsf(y) < 0x1p40f ? 1 / y : (float)(INF - INF);  // NaN: divide computes x / y
}
__device__ __noinline__ float divide(float x, float y) { return x / y; }
__device__ inline float divide(float x, float y, float r)
{
    const float q = x * r, z = fmaf(fmaf(-q, y, x), r, q);
    return fabsf(z) > 0x1p-60f ? z : divide(x, y);
}

__device__ inline double fast_divide(double x, double y) { return x / y; }
__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }

// Online softmax: the maximum, and the sum of exp(x - max), which is rescaled when the maximum grows.
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class T> struct OnlineExpSum { T max, sum; };
template <class T> __device__ inline OnlineExpSum<T> update(OnlineExpSum<T> a, T x)
{
    const T e = x == a.max ? 1 : exp_of(x > a.max ? a.max - x : x - a.max);
    return {max_nan(a.max, x), x > a.max ? a.sum * e + 1 : a.sum + e};
}
template <class T> __device__ inline OnlineExpSum<T> combine(OnlineExpSum<T> a, OnlineExpSum<T> b)
{
    const T top = max_nan(a.max, b.max);
    const T first = a.max == top ? a.sum : a.sum * exp_of(a.max - top);
    return {top, first + (b.max == top ? b.sum : b.sum * exp_of(b.max - top))};
}

// Welford's variance: the count, the mean, and the sum of squared differences from the mean (M2).
// Welford, Technometrics 1962; Chan, Golub and LeVeque, COMPSTAT 1982.
template <class T> struct Welford { T count, mean, m2; };
template <class T> __device__ inline Welford<T> update(Welford<T> a, T x)
{
    const T delta = x - a.mean, mean = a.mean + fast_divide(delta, a.count + 1);
    return {a.count + 1, mean, a.m2 + delta * (x - mean)};
}
template <class T> __device__ inline Welford<T> combine(Welford<T> a, Welford<T> b)
{
    const T count = a.count + b.count, delta = b.mean - a.mean, part = count > 0 ? b.count / count : 0;
    return {count, a.mean + delta * part, a.m2 + b.m2 + delta * delta * (a.count * part)};
}
