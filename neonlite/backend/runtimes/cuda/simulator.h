// Run a CUDA kernel on the CPU: the parts of CUDA C++ that kernels use, in standard C++.
//
// Blocks run sequentially. The threads of a block are fibers: __syncthreads() switches to the next one, and returns when
// all threads have reached it. The threads of a kernel without __syncthreads() run sequentially, without fibers.
#define SIMULATED
#define __global__
#define __device__
#define __shared__ static  // one block at a time
#define __launch_bounds__(...)
#include <math.h>
#include <string.h>
#include <ucontext.h>

struct dim3 { unsigned x, y, z; };
static dim3 gridDim, blockDim, blockIdx, threadIdx;

struct Fiber { bool done; ucontext_t context; char stack[30000]; };
static Fiber* fibers;  // one per thread of a block, allocated by the host
static ucontext_t scheduler;
static void (*thread_body)();

static void __syncthreads() { swapcontext(&fibers[threadIdx.x].context, &scheduler); }
static void run_fiber() { thread_body(), fibers[threadIdx.x].done = true; }

static void run_with_barriers()
{
    for (unsigned t = 0; t < blockDim.x; ++t) {
        Fiber& fiber = fibers[t];
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = sizeof fiber.stack;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (bool any_running = true; any_running;) {
        any_running = false;
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
            if (!fibers[threadIdx.x].done) any_running = true, swapcontext(&scheduler, &fibers[threadIdx.x].context);
    }
}

static void run(const unsigned* grid, unsigned block, void (*kernel)(), void* stacks, bool uses_barriers)
{
    gridDim = {grid[0], grid[1], 1}, blockDim = {block, 1, 1}, thread_body = kernel, fibers = (Fiber*)stacks;
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
            if (uses_barriers)
                run_with_barriers();
            else
                for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) thread_body();
}

// --- arithmetic ---

namespace cuda {  // hides functions of the same names in <math.h>, which a C++ library also overloads

template <class To, class From> static To bit_cast(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
static double __longlong_as_double(long long x) { return bit_cast<double>(x); }
static float __uint_as_float(unsigned x) { return bit_cast<float>(x); }
static unsigned __float_as_uint(float x) { return bit_cast<unsigned>(x); }
// CUDA overloads these functions for float, and converts integers to double
#define FLOAT_OVERLOADS(f, of_float) \
    static float f(float x) { return of_float(x); } \
    template <class Number> static double f(Number x) { return ::f((double)x); }
FLOAT_OVERLOADS(exp, expf) FLOAT_OVERLOADS(exp2, exp2f) FLOAT_OVERLOADS(expm1, expm1f) FLOAT_OVERLOADS(log, logf) FLOAT_OVERLOADS(log1p, log1pf)
FLOAT_OVERLOADS(log2, log2f) FLOAT_OVERLOADS(sqrt, sqrtf) FLOAT_OVERLOADS(cbrt, cbrtf) FLOAT_OVERLOADS(fabs, fabsf) FLOAT_OVERLOADS(floor, floorf)
FLOAT_OVERLOADS(ceil, ceilf) FLOAT_OVERLOADS(sin, sinf) FLOAT_OVERLOADS(cos, cosf) FLOAT_OVERLOADS(tan, tanf) FLOAT_OVERLOADS(asin, asinf)
FLOAT_OVERLOADS(acos, acosf) FLOAT_OVERLOADS(atan, atanf) FLOAT_OVERLOADS(sinh, sinhf) FLOAT_OVERLOADS(cosh, coshf) FLOAT_OVERLOADS(tanh, tanhf)
FLOAT_OVERLOADS(erf, erff) FLOAT_OVERLOADS(erfc, erfcf) FLOAT_OVERLOADS(rint, rintf)
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

struct Half { unsigned short bits; };
static float to_compute(Half x)
{
    const int sign = x.bits >> 15, exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
    const float size = exponent == 31 ? (digits ? NAN : INFINITY)
                                      : ldexpf(exponent ? 1024 + digits : digits, (exponent ? exponent : 1) - 25);
    return sign ? -size : size;
}
static void store(Half& y, double x)
{
    const unsigned short sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (x != x) { y.bits = sign | 0x7e00; return; }
    if (x >= 65520) { y.bits = sign | 0x7c00; return; }  // halfway between the largest half and the next power of two
    const int exponent = x < 0x1p-14 ? -14 : ilogb(x);  // the smallest normal number is 2^-14
    const int digits = (int)rint(ldexp(x, 10 - exponent));  // 1024 to 2048; less for denormal numbers
    y.bits = sign | (((exponent + 14) << 10) + digits);
}
static void store(Half& y, float x) { store(y, (double)x); }
