// What every kernel begins with.

#define INF __longlong_as_double(0x7ff0000000000000LL)
#define NOWHERE 0x7fffffffffffffffLL
typedef unsigned long long Word;

// Numbers of 16 bits in memory; in registers they are floats.
#ifndef SIMULATED  // on a card, each of these is one instruction
struct Half { unsigned short bits; };
__device__ inline float widened(Half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline void put(Half& y, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
__device__ inline void put(Half& y, double x) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x)); }
__device__ inline float quotient(float x, float y) { return __fdividef(x, y); }  // to 2 ulp, in two instructions
#else
inline float quotient(float x, float y) { return x / y; }
#endif
struct BFloat16 { unsigned short bits; };  // the upper half of a float
__device__ inline float widened(BFloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline void put(BFloat16& y, float x)
{
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else  // to the nearest, of two to the even one: 0x7fff and the last bit carry; NaN stays NaN
    const unsigned bits = __float_as_uint(x);
    y.bits = x != x ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}
__device__ inline void put(BFloat16& y, double x) { put(y, (float)x); }
template <class T, class U> __device__ inline void put(T& y, U x) { y = x; }
template <class H, class T> __device__ inline H narrowed(T x) { H y; put(y, x); return y; }
__device__ inline float wide(Half x) { return widened(x); }
__device__ inline float wide(BFloat16 x) { return widened(x); }
template <class T> __device__ inline T wide(T x) { return x; }
template <class H, class T> __device__ inline float rounded(T x) { return widened(narrowed<H>(x)); }

// V elements side by side, which a thread reads or writes at once: 16 bytes at most.
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T at[V]; };
template <int V, class T> __device__ inline Pack<T, V> load(const T* x) { return *(const Pack<T, V>*)x; }
template <class T, int V> __device__ inline void store(T* x, const Pack<T, V>& values) { *(Pack<T, V>*)x = values; }

// The larger and the smaller of two numbers; NaN when one of them is NaN.
template <class T> __device__ inline T larger(T x, T y) { return x > y || x != x ? x : y; }
template <class T> __device__ inline T smaller(T x, T y) { return x < y || x != x ? x : y; }

// Leave word of a check that failed, and of the index: the first one stays.
__device__ inline void tell(Word* failed, long long check, long long index)
{
    if (atomicCAS(failed, 0, (Word)check) == 0) failed[1] = (Word)index;
}

// x^n of whole numbers, by squaring; it wraps.
template <class T> __device__ inline T power(T x, T n)
{
    T z = 1;
    for (; n; n >>= 1, x *= x)
        if (n & 1) z *= x;
    return z;
}

// An extreme element and its place. The first of equal ones wins, and NaN wins over any number.
template <class T> struct Best { T value; long long place; };
template <class T> __device__ inline Best<T> winner(Best<T> a, Best<T> b, bool more)
{
    const bool none_a = a.value != a.value, none_b = b.value != b.value;
    const bool equal = a.value == b.value || (none_a && none_b);
    return equal ? (b.place < a.place ? b : a) : (none_b || more ? b : a);
}
template <class T> __device__ inline Best<T> first_largest(Best<T> a, Best<T> b) { return winner(a, b, b.value > a.value); }
template <class T> __device__ inline Best<T> first_smallest(Best<T> a, Best<T> b) { return winner(a, b, b.value < a.value); }

// An element, or nothing where there is none.
template <class T> __device__ inline T at(const T* x, bool there) { return there ? *x : T(); }

__device__ inline double quotient(double x, double y) { return x / y; }
__device__ inline float e_to(float x) { return expf(x); }
__device__ inline double e_to(double x) { return exp(x); }

// The greatest element, and the sum of exp(element - greatest): rescaled whenever there is a greater one.
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class T> struct Exps { T greatest, sum; };
template <class T> __device__ inline Exps<T> added(Exps<T> a, T x)
{
    const T e = x == a.greatest ? 1 : e_to(x > a.greatest ? a.greatest - x : x - a.greatest);
    return {larger(a.greatest, x), x > a.greatest ? a.sum * e + 1 : a.sum + e};
}
template <class T> __device__ inline Exps<T> joined(Exps<T> a, Exps<T> b)
{
    const T top = larger(a.greatest, b.greatest);
    const T first = a.greatest == top ? a.sum : a.sum * e_to(a.greatest - top);
    return {top, first + (b.greatest == top ? b.sum : b.sum * e_to(b.greatest - top))};
}

// How many elements, their mean, and the sum of the squares of their distances from it.
// Welford, Technometrics 1962; Chan, Golub and LeVeque, COMPSTAT 1982.
template <class T> struct Moments { T count, mean, squares; };
template <class T> __device__ inline Moments<T> added(Moments<T> a, T x)
{
    const T far = x - a.mean, mean = a.mean + quotient(far, a.count + 1);
    return {a.count + 1, mean, a.squares + far * (x - mean)};
}
template <class T> __device__ inline Moments<T> joined(Moments<T> a, Moments<T> b)
{
    const T count = a.count + b.count, far = b.mean - a.mean, part = count > 0 ? b.count / count : 0;
    return {count, a.mean + far * part, a.squares + b.squares + far * far * (a.count * part)};
}
