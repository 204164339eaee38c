// Run a CUDA kernel on the CPU: the parts of CUDA C++ that kernels use, in standard C++.
//
// No header is included: reading <math.h> takes as long as compiling a kernel. simulator.cpp is compiled only once.
#define SIMULATED
#define __global__
#define __device__
#define __noinline__
#define __shared__ static  // one block at a time
#define __launch_bounds__(...)
typedef __SIZE_TYPE__ size_t;
struct dim3 { unsigned x, y, z; };

#pragma GCC visibility push(hidden)  // each kernel's library has its own
extern dim3 gridDim, blockDim, blockIdx, threadIdx;
void __syncthreads();
void run(const unsigned* grid, unsigned block, void (*kernel)(), void* stacks, bool uses_barriers);
namespace cuda {
struct Half { unsigned short bits; };
float to_compute(Half x);
void store(Half& y, double x);
}
#pragma GCC visibility pop

// --- arithmetic ---

#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define isfinite __builtin_isfinite
#define isinf __builtin_isinf
#define isnan __builtin_isnan
#define signbit __builtin_signbit
extern "C" void* memcpy(void* to, const void* from, size_t nbytes);
// CUDA overloads these functions for float, and converts integers to double
#define UNARY(name) \
    extern "C" double name(double); \
    extern "C" float name##f(float); \
    namespace cuda { \
    static float name(float x) { return name##f(x); } \
    template <class Number> static double name(Number x) { return ::name((double)x); } \
    }
UNARY(acos) UNARY(acosh) UNARY(asin) UNARY(asinh) UNARY(atan) UNARY(atanh) UNARY(cbrt) UNARY(ceil) UNARY(cos)
UNARY(cosh) UNARY(erf) UNARY(erfc) UNARY(exp) UNARY(exp2) UNARY(expm1) UNARY(fabs) UNARY(floor) UNARY(lgamma)
UNARY(log) UNARY(log10) UNARY(log1p) UNARY(log2) UNARY(rint) UNARY(round) UNARY(sin) UNARY(sinh) UNARY(sqrt)
UNARY(tan) UNARY(tanh) UNARY(tgamma) UNARY(trunc)
#define BINARY(name) extern "C" double name(double, double); extern "C" float name##f(float, float);
BINARY(atan2) BINARY(copysign) BINARY(fdim) BINARY(fmax) BINARY(fmin) BINARY(fmod) BINARY(hypot) BINARY(nextafter)
BINARY(pow) BINARY(remainder)
extern "C" double fma(double, double, double), ldexp(double, int);
extern "C" float fmaf(float, float, float), ldexpf(float, int);
extern "C" int ilogb(double), abs(int);

namespace cuda {

template <class To, class From> static To bit_cast(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
static double __longlong_as_double(long long x) { return bit_cast<double>(x); }
static float __uint_as_float(unsigned x) { return bit_cast<float>(x); }
static unsigned __float_as_uint(float x) { return bit_cast<unsigned>(x); }
static float pow(float x, float y) { return powf(x, y); }
template <class X, class Y> static double pow(X x, Y y) { return ::pow((double)x, (double)y); }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static unsigned long long __umul64hi(unsigned long long x, unsigned long long y) { return (unsigned __int128)x * y >> 64; }

static unsigned long long atomicCAS(unsigned long long* x, unsigned long long from, unsigned long long to)
{
    const unsigned long long was = *x;  // threads run one at a time
    if (was == from) *x = to;
    return was;
}

inline void store(Half& y, float x) { store(y, (double)x); }
}  // namespace cuda
