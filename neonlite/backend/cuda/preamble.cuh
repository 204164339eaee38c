// What every kernel begins with.

#define INF __longlong_as_double(0x7ff0000000000000LL)
#define NOWHERE 0x7fffffffffffffffLL

// A half in memory; in registers it is a float.
#ifndef SIMULATED  // on a card, each of these is one instruction
struct Half { unsigned short bits; };
__device__ inline float widened(Half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline Half narrowed(float x) { Half y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
__device__ inline Half narrowed(double x) { Half y; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x)); return y; }
#endif
template <class T> __device__ inline float rounded(T x) { return widened(narrowed(x)); }

// V elements side by side, which a thread reads or writes at once: 16 bytes at most.
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T at[V]; };
template <int V, class T> __device__ inline Pack<T, V> load(const T* x) { return *(const Pack<T, V>*)x; }
template <class T, int V> __device__ inline void store(T* x, const Pack<T, V>& values) { *(Pack<T, V>*)x = values; }

// The larger and the smaller of two numbers; NaN when one of them is NaN.
template <class T> __device__ inline T larger(T x, T y) { return x > y || x != x ? x : y; }
template <class T> __device__ inline T smaller(T x, T y) { return x < y || x != x ? x : y; }

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
