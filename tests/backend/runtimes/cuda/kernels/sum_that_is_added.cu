// --- stage 1: fused (64, 96): mul sum mul add ---
// x0: x (64, 96) float32
// x1: c (64, 1) float32
// y0: add of stage 1 (64, 1) float32
// c0: scalar x0
// s0: sum of stage 1 (64, 1) float32
// y0 = ((c0 * x1) + sum((x0 * x0)))
// s0 = sum((x0 * x0)) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, const float* x1, float* y0, double c0, unsigned num_results, unsigned reduction_size, unsigned chunk, unsigned n1)
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
        constexpr int U = 4;  // packs in flight
        const Index packs = (end - first + (LANES - 1 - lane) * V) / (LANES * V);  // of this lane
        for (Index p = 0; p < packs; p += U) {  // load U packs, then accumulate them
            Pack<float, V> x0s[U];
            #pragma unroll
            for (int u = 0; u < U; ++u) {
                const Index pack = p + u < packs ? p + u : packs - 1;  // the last one again after the end
                const Index j = first + (lane + pack * LANES) * V;
                const Index i1 = j;
                x0s[u] = load<V>(x0 + i0 * n1 + i1);
            }
            #pragma unroll
            for (int u = 0; u < U; ++u) if (p + u < packs) {
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    const float v0 = x0s[u].at[q] * x0s[u].at[q];  // mul
                    a0 = a0 + (float)v0;
                }
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
        const Index i0 = k;
        const float t0 = p0[threadIdx.x];  // sum
        const float x1t = x1[i0];
        const float v1 = ((float)c0) * x1t;  // mul
        const float v2 = v1 + t0;  // add
        y0[i0] = v2;
    }
}
