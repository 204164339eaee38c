// --- stage 1: fused (64, 96): mul sum ---
// x0: x (64, 96) float32
// x1: c (64, 1) float32
// s0: sum of stage 1 (1, 96) float32
// s0 = sum((x0 * x1)) over axis 0 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, const float* x1, float* s0, unsigned num_results, unsigned reduction_size, unsigned chunk, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    constexpr int LANES = 8, RESULTS = 32;  // threads per V results, groups of V results per block
    const int lane = threadIdx.x / RESULTS, slot = threadIdx.x % RESULTS;
    const Index c = ((Index)blockIdx.x * RESULTS + slot) * V;  // index of the first result
    const Index first = blockIdx.y * chunk, last = first + chunk;
    const Index end = last < reduction_size ? last : reduction_size;
    float a0[V];
    #pragma unroll
    for (int q = 0; q < V; ++q) a0[q] = 0;
    if (c < num_results) {
        const Index i1 = c;
        constexpr int U = 4;  // packs in flight
        const Index packs = (end - first + (LANES - 1 - lane)) / (LANES);  // of this lane
        for (Index p = 0; p < packs; p += U) {  // load U packs, then accumulate them
            Pack<float, V> x0s[U];
            float x1s[U];
            #pragma unroll
            for (int u = 0; u < U; ++u) {
                const Index pack = p + u < packs ? p + u : packs - 1;  // the last one again after the end
                const Index j = first + (lane + pack * LANES);
                const Index i0 = j;
                x0s[u] = load<V>(x0 + i0 * n1 + i1);
                x1s[u] = x1[i0];
            }
            #pragma unroll
            for (int u = 0; u < U; ++u) if (p + u < packs) {
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    const float v0 = x0s[u].at[q] * x1s[u];  // mul
                    a0[q] = a0[q] + (float)v0;
                }
            }
        }
    }
    __shared__ float p0[V][256];
    #pragma unroll
    for (int q = 0; q < V; ++q) p0[q][threadIdx.x] = a0[q];
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) {
            #pragma unroll
            for (int q = 0; q < V; ++q) p0[q][threadIdx.x] = p0[q][threadIdx.x] + p0[q][threadIdx.x + offset * RESULTS];
        }
        __syncthreads();
    }
    for (int q = 0; q < V && lane == 0 && c < num_results; ++q) {
        const Index k = c + q;
        s0[k] = p0[q][threadIdx.x];
    }
}
