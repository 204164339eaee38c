// --- stage 1: fused (64, 96): mul sum ---
// x0: x (64, 96) float32
// x1: r (1, 96) float32
// s0: sum of stage 1 (64, 1) float32
// s0 = sum((x0 * x1)) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, const float* x1, float* s0, unsigned num_results, unsigned reduction_size, unsigned chunk, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    constexpr int LANES = 32, RESULTS = 8;  // threads per result, results per block
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * RESULTS + slot;  // index of the result
    const Index first = blockIdx.y * chunk, last = first + chunk;
    const Index end = last < reduction_size ? last : reduction_size;
    float a0 = 0;
    if (k < num_results) {
        const Index i0 = k;
        const Index packs = (end - first + (LANES - 1 - lane) * V) / (LANES * V);  // of this lane
        #pragma unroll 4  // packs are loaded, and then accumulated
        for (Index p = 0; p < packs; ++p) {
            const Index j = first + (lane + p * LANES) * V;
            const Index i1 = j;
            const Pack<float, V> x0s = load<V>(x0 + i0 * n1 + i1);
            const Pack<float, V> x1s = load<V>(x1 + i1);
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                const float v0 = x0s.at[q] * x1s.at[q];  // mul
                a0 = a0 + (float)v0;
            }
        }
    }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p0[threadIdx.x] = p0[threadIdx.x] + p0[threadIdx.x + offset * 1];
        __syncthreads();
    }
    if (lane == 0 && k < num_results) {
        s0[k] = p0[threadIdx.x];
    }
}
