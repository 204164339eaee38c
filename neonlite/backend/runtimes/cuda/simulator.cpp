// The part of the simulator that is the same for all kernels, follows simulator.h, and is compiled once.
#include <setjmp.h>
#include <ucontext.h>

dim3 gridDim, blockDim, blockIdx, threadIdx;

// The threads of a block take turns. _setjmp and _longjmp switch between them: swapcontext makes system calls.
struct Fiber { bool done; jmp_buf resume; ucontext_t start; char stack[30000]; };
static Fiber* fibers;  // one per thread of a block, allocated by the host
static jmp_buf scheduler;
static void (*thread_body)();

void __syncthreads() { if (!_setjmp(fibers[threadIdx.x].resume)) _longjmp(scheduler, 1); }
static void run_fiber() { for (;;) __syncthreads(), thread_body(), fibers[threadIdx.x].done = true; }

static void start_fibers()
{
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
        Fiber& fiber = fibers[threadIdx.x];
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack;
        fiber.start.uc_stack.ss_size = sizeof fiber.stack;
        makecontext(&fiber.start, run_fiber, 0);
        if (!_setjmp(scheduler)) setcontext(&fiber.start);  // until it waits for the first block
    }
}

static void run_with_barriers()
{
    for (unsigned t = 0; t < blockDim.x; ++t) fibers[t].done = false;
    for (bool any_running = true; any_running;) {
        any_running = false;
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
            if (fibers[threadIdx.x].done) continue;
            any_running = true;
            if (!_setjmp(scheduler)) _longjmp(fibers[threadIdx.x].resume, 1);
        }
    }
}

void run(const unsigned* grid, unsigned block, void (*kernel)(), void* stacks, bool uses_barriers)
{
    gridDim = {grid[0], grid[1], 1}, blockDim = {block, 1, 1}, thread_body = kernel, fibers = (Fiber*)stacks;
    if (uses_barriers) start_fibers();
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
            if (uses_barriers)
                run_with_barriers();
            else
                for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) thread_body();
}

// --- 16-bit floats ---

namespace cuda {

float to_compute(Half x)
{
    const int sign = x.bits >> 15, exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
    const float size = exponent == 31 ? (digits ? NAN : INFINITY)
                                      : ldexpf(exponent ? 1024 + digits : digits, (exponent ? exponent : 1) - 25);
    return sign ? -size : size;
}
void store(Half& y, double x)
{
    const unsigned short sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (x != x) { y.bits = sign | 0x7e00; return; }
    if (x >= 65520) { y.bits = sign | 0x7c00; return; }  // halfway between the largest half and the next power of two
    const int exponent = x < 0x1p-14 ? -14 : ilogb(x);  // the smallest normal number is 2^-14
    const int digits = (int)rint(ldexp(x, 10 - exponent));  // 1024 to 2048; less for denormal numbers
    y.bits = sign | (((exponent + 14) << 10) + digits);
}
}  // namespace cuda
