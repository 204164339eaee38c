// Runs a CUDA kernel on the CPU: what NVIDIA's compiler gives a kernel, in standard C++.
//
// Blocks run one after another. The threads of a block are fibres: __syncthreads() goes on to the next one, and returns
// when all have come there. A kernel without it needs none, and its threads run one after another.
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

struct Fibre { bool done; ucontext_t context; char stack[30000]; };
static Fibre* fibres;  // room for those of a block, given by the host
static ucontext_t scheduler;
static void (*body)();

static void __syncthreads() { swapcontext(&fibres[threadIdx.x].context, &scheduler); }
static void begin() { body(), fibres[threadIdx.x].done = true; }

static void run_threads_together()
{
    for (unsigned t = 0; t < blockDim.x; ++t) {
        Fibre& fibre = fibres[t];
        fibre.done = false;
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack;
        fibre.context.uc_stack.ss_size = sizeof fibre.stack;
        fibre.context.uc_link = &scheduler;
        makecontext(&fibre.context, begin, 0);
    }
    for (bool some = true; some;) {
        some = false;
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
            if (!fibres[threadIdx.x].done) some = true, swapcontext(&scheduler, &fibres[threadIdx.x].context);
    }
}

static void run(const unsigned* grid, unsigned block, void (*kernel)(), void* room, bool together)
{
    gridDim = {grid[0], grid[1], 1}, blockDim = {block, 1, 1}, body = kernel, fibres = (Fibre*)room;
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
            if (together)
                run_threads_together();
            else
                for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) body();
}

// --- arithmetic ---

template <class To, class From> static To same_bits(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
static double __longlong_as_double(long long x) { return same_bits<double>(x); }
static float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
// CUDA's functions of a float are of that name, too, and those of whole numbers are functions of a double
#define OF_FLOATS(f, of_float) \
    static float f(float x) { return of_float(x); } \
    template <class Whole> static double f(Whole x) { return f((double)x); }
OF_FLOATS(exp, expf) OF_FLOATS(exp2, exp2f) OF_FLOATS(expm1, expm1f) OF_FLOATS(log, logf) OF_FLOATS(log1p, log1pf)
OF_FLOATS(log2, log2f) OF_FLOATS(sqrt, sqrtf) OF_FLOATS(cbrt, cbrtf) OF_FLOATS(fabs, fabsf) OF_FLOATS(floor, floorf)
OF_FLOATS(ceil, ceilf) OF_FLOATS(sin, sinf) OF_FLOATS(cos, cosf) OF_FLOATS(tan, tanf) OF_FLOATS(asin, asinf)
OF_FLOATS(acos, acosf) OF_FLOATS(atan, atanf) OF_FLOATS(sinh, sinhf) OF_FLOATS(cosh, coshf) OF_FLOATS(tanh, tanhf)
OF_FLOATS(erf, erff) OF_FLOATS(erfc, erfcf) OF_FLOATS(rint, rintf)
static float pow(float x, float y) { return powf(x, y); }
template <class X, class Y> static double pow(X x, Y y) { return pow((double)x, (double)y); }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static unsigned long long __umul64hi(unsigned long long x, unsigned long long y) { return (unsigned __int128)x * y >> 64; }

static unsigned long long atomicCAS(unsigned long long* x, unsigned long long from, unsigned long long to)
{
    const unsigned long long was = *x;  // threads take turns
    if (was == from) *x = to;
    return was;
}

struct Half { unsigned short bits; };
static float widened(Half x)
{
    const int sign = x.bits >> 15, exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
    const float size = exponent == 31 ? (digits ? NAN : INFINITY)
                                      : ldexpf(exponent ? 1024 + digits : digits, (exponent ? exponent : 1) - 25);
    return sign ? -size : size;
}
static void put(Half& y, double x)
{
    const unsigned short sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (x != x) { y.bits = sign | 0x7e00; return; }
    if (x >= 65520) { y.bits = sign | 0x7c00; return; }  // halfway from the largest half to the next power of two
    const int exponent = x < 0x1p-14 ? -14 : ilogb(x);  // the least normal number is 2^-14
    const int digits = (int)rint(ldexp(x, 10 - exponent));  // from 1024 to 2048; fewer below the normal numbers
    y.bits = sign | (((exponent + 14) << 10) + digits);
}
static void put(Half& y, float x) { put(y, (double)x); }
