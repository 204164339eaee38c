// --- stage 1: fused (64, 96): exp add ---
// x0: h (64, 96) float16
// y0: add of stage 1 (64, 96) float16
// y0 = (exp(x0) + 1)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const Half* x0, Half* y0, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 8;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<Half, V> x0s = load<V>(x0 + i);
        Pack<Half, V> y0s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = round_to<Half>(expf(to_compute(x0s.at[q])));  // exp
            const float v1 = round_to<Half>(v0 + 1.0f);  // add
            y0s.at[q] = to_storage<Half>(v1);
        }
        store(y0 + i, y0s);
    }
}
