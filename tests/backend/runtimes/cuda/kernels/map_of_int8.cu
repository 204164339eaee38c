// --- stage 1: fused (64, 96): add ---
// x0: n (64, 96) int8
// y0: add of stage 1 (64, 96) int8
// y0 = (x0 + 1)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const signed char* x0, signed char* y0, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 16;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<signed char, V> x0s = load<V>(x0 + i);
        Pack<signed char, V> y0s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const signed char v0 = (unsigned)x0s.at[q] + (unsigned)(signed char)1;  // add
            y0s.at[q] = v0;
        }
        store(y0 + i, y0s);
    }
}
