// --- stage 1: fused (64, 96): mul add tanh sub ---
// x0: x (64, 96) float32
// x1: c (64, 1) float32
// x2: r (1, 96) float32
// y0: sub of stage 1 (64, 96) float32
// c0: scalar x3
// y0 = (tanh(((x0 * x1) + x2)) - c0)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, const float* x1, const float* x2, float* y0, double c0, unsigned I, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Index i0 = i / n1;
        const Index i1 = i % n1;
        const Pack<float, V> x0s = load<V>(x0 + i);
        const float x1s = x1[i0];
        const Pack<float, V> x2s = load<V>(x2 + i1);
        Pack<float, V> y0s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q] * x1s;  // mul
            const float v1 = v0 + x2s.at[q];  // add
            const float v2 = tanhf(v1);  // tanh
            const float v3 = v2 - ((float)c0);  // sub
            y0s.at[q] = v3;
        }
        store(y0 + i, y0s);
    }
}
