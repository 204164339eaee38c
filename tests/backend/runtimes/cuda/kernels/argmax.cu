// --- stage 1: call (64, 1): argmax ---
// x0: x (64, 96) float32
// s0: argmax of stage 1 (64, 1) int64
// s0 = argmax(x0) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, long long* s0, unsigned num_results, unsigned reduction_size, unsigned chunk, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    constexpr int LANES = 32, RESULTS = 8;  // threads per result, results per block
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * RESULTS + slot;  // index of the result
    const Index first = blockIdx.y * chunk, last = first + chunk;
    const Index end = last < reduction_size ? last : reduction_size;
    ArgValue<float> a0 = {-(float)INF, NO_INDEX};
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
                const Index j = first + (lane + (p + u) * LANES) * V;
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    a0 = combine_argmax(a0, ArgValue<float>{(float)x0s[u].at[q], (long long)j + q});
                }
            }
        }
    }
    __shared__ ArgValue<float> p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p0[threadIdx.x] = combine_argmax(p0[threadIdx.x], p0[threadIdx.x + offset * 1]);
        __syncthreads();
    }
    if (lane == 0 && k < num_results) {
        s0[k] = p0[threadIdx.x].index;
    }
}
