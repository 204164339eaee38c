// --- stage 1: fused (32, 96): mul ---
// x0: x (32, 96) float32
// y0: mul of stage 1 (32, 96) float32
// y0 = (x0 * 2)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, float* y0, long long x0_0, long long x0_1, unsigned I, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Index i0 = i / n1;
        const Index i1 = i % n1;
        Pack<float, V> x0s;
        for (int q = 0; q < V; ++q) x0s.at[q] = x0[i0 * x0_0 + i1 * x0_1 + q * x0_1];
        Pack<float, V> y0s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q] * 2.0f;  // mul
            y0s.at[q] = v0;
        }
        store(y0 + i, y0s);
    }
}
