// --- stage 1: fused (64, 96): exp add ---
// x0: b (64, 96) bfloat16
// y0: add of stage 1 (64, 96) bfloat16
// y0 = (exp(x0) + 1)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const BFloat16* x0, BFloat16* y0, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 8;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<BFloat16, V> x0s = load<V>(x0 + i);
        Pack<BFloat16, V> y0s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = round_to<BFloat16>(expf(to_compute(x0s.at[q])));  // exp
            const float v1 = round_to<BFloat16>(v0 + 1.0f);  // add
            y0s.at[q] = to_storage<BFloat16>(v1);
        }
        store(y0 + i, y0s);
    }
}
