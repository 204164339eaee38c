// --- stage 1: fused (64, 96): exp add ---
// x0: d (64, 96) float64
// y0: add of stage 1 (64, 96) float64
// y0 = (exp(x0) + 1)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const double* x0, double* y0, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 2;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<double, V> x0s = load<V>(x0 + i);
        Pack<double, V> y0s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const double v0 = exp(x0s.at[q]);  // exp
            const double v1 = v0 + 1.0;  // add
            y0s.at[q] = v1;
        }
        store(y0 + i, y0s);
    }
}
