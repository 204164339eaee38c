// --- stage 1: fused (3000, 3000): sum ---
// x0: large (3000, 3000) float32
// s0: sum of stage 1 (1, 1) float32
// s0 = sum(x0)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, float* s0, unsigned num_results, unsigned reduction_size, unsigned chunk)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    constexpr int LANES = 256, RESULTS = 1;  // threads per result, results per block
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * RESULTS + slot;  // index of the result
    const Index first = blockIdx.y * chunk, last = first + chunk;
    const Index end = last < reduction_size ? last : reduction_size;
    float a0 = 0;
    if (k < num_results) {
        constexpr int U = 4;  // packs in flight
        const Index packs = (end - first + (LANES - 1 - lane) * V) / (LANES * V);  // of this lane
        for (Index p = 0; p < packs; p += U) {  // load U packs, then accumulate them
            Pack<float, V> x0s[U];
            #pragma unroll
            for (int u = 0; u < U; ++u) {
                const Index pack = p + u < packs ? p + u : packs - 1;  // the last one again after the end
                const Index j = first + (lane + pack * LANES) * V;
                const Index i0 = j;
                x0s[u] = load<V>(x0 + i0);
            }
            #pragma unroll
            for (int u = 0; u < U; ++u) if (p + u < packs) {
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    a0 = a0 + (float)x0s[u].at[q];
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
        s0[blockIdx.y * num_results + k] = p0[threadIdx.x];
    }
}

// combine the splits of sum
extern "C" __global__ void __launch_bounds__(256) stage_1_joined(
    float* s0, const float* partials0, unsigned num_splits, unsigned num_results)
{
    typedef unsigned Index;
    constexpr int LANES = 256, RESULTS = 1;
    const int lane = threadIdx.x / RESULTS, slot = threadIdx.x % RESULTS;
    const Index k = (Index)blockIdx.x * RESULTS + slot;
    float a0 = 0;
    if (k < num_results)
        for (Index p = lane; p < num_splits; p += LANES) {
            a0 = a0 + partials0[p * num_results + k];
        }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p0[threadIdx.x] = p0[threadIdx.x] + p0[threadIdx.x + offset * RESULTS];
        __syncthreads();
    }
    if (lane == 0 && k < num_results) {
        s0[k] = p0[threadIdx.x];
    }
}
