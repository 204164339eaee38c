// --- stage 1: row_passes (20000, 64): cast sum mul sub sqr online_mean sub sqr online_count mul online_m2 add mul cast ---
// x0: h (20000, 64) float16
// s0: sum of stage 1 (1, 64) float32
// s1: online_mean of stage 1 (1, 64) float32
// s2: online_count of stage 1 (1, 64) float32
// s3: online_m2 of stage 1 (1, 64) float32
// s0 = sum(cast(x0)) over axis 0 of 2
// s1 = online_mean(cast(x0)) over axis 0 of 2
// s2 = online_count(cast(x0)) over axis 0 of 2
// s3 = online_m2(cast(x0)) over axis 0 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1_0(
    const Half* x0, float* s0, Welford<float>* s1, unsigned num_results, unsigned reduction_size, unsigned chunk, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 8;  // adjacent elements per thread and iteration
    constexpr int LANES = 32, RESULTS = 8;  // threads per V results, groups of V results per block
    const int lane = threadIdx.x / RESULTS, slot = threadIdx.x % RESULTS;
    const Index c = ((Index)blockIdx.x * RESULTS + slot) * V;  // index of the first result
    const Index first = blockIdx.y * chunk, last = first + chunk;
    const Index end = last < reduction_size ? last : reduction_size;
    float a0[V];
    #pragma unroll
    for (int q = 0; q < V; ++q) a0[q] = 0;
    Welford<float> a1[V];
    #pragma unroll
    for (int q = 0; q < V; ++q) a1[q] = {0, 0, 0};
    if (c < num_results) {
        const Index i1 = c;
        constexpr int U = 4;  // packs in flight
        const Index packs = (end - first + (LANES - 1 - lane)) / (LANES);  // of this lane
        for (Index p = 0; p < packs; p += U) {  // load U packs, then accumulate them
            Pack<Half, V> x0s[U];
            #pragma unroll
            for (int u = 0; u < U; ++u) {
                const Index pack = p + u < packs ? p + u : packs - 1;  // the last one again after the end
                const Index j = first + (lane + pack * LANES);
                const Index i0 = j;
                x0s[u] = load<V>(x0 + i0 * n1 + i1);
            }
            #pragma unroll
            for (int u = 0; u < U; ++u) if (p + u < packs) {
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    const float v0 = (float)to_compute(x0s[u].at[q]);  // cast
                    a0[q] = a0[q] + (float)v0;
                    a1[q] = update(a1[q], (float)v0);
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
    if (lane == 0 && c < num_results) {
        #pragma unroll
        for (int q = 0; q < V; ++q) s0[blockIdx.y * num_results + c + q] = p0[q][threadIdx.x];
    }
    __shared__ Welford<float> p1[V][256];
    #pragma unroll
    for (int q = 0; q < V; ++q) p1[q][threadIdx.x] = a1[q];
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) {
            #pragma unroll
            for (int q = 0; q < V; ++q) p1[q][threadIdx.x] = combine(p1[q][threadIdx.x], p1[q][threadIdx.x + offset * RESULTS]);
        }
        __syncthreads();
    }
    if (lane == 0 && c < num_results) {
        #pragma unroll
        for (int q = 0; q < V; ++q) s1[blockIdx.y * num_results + c + q] = p1[q][threadIdx.x];
    }
}

// combine the splits of sum and online_mean and online_count and online_m2
extern "C" __global__ void __launch_bounds__(256) stage_1_0_joined(
    float* s0, float* s1, float* s2, float* s3, const float* partials0, const Welford<float>* partials1, unsigned num_splits, unsigned num_results)
{
    typedef unsigned Index;
    constexpr int LANES = 8, RESULTS = 32;
    const int lane = threadIdx.x / RESULTS, slot = threadIdx.x % RESULTS;
    const Index k = (Index)blockIdx.x * RESULTS + slot;
    float a0 = 0;
    Welford<float> a1 = {0, 0, 0};
    if (k < num_results)
        for (Index p = lane; p < num_splits; p += LANES) {
            a0 = a0 + partials0[p * num_results + k];
            a1 = combine(a1, partials1[p * num_results + k]);
        }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p0[threadIdx.x] = p0[threadIdx.x] + p0[threadIdx.x + offset * RESULTS];
        __syncthreads();
    }
    __shared__ Welford<float> p1[256];
    p1[threadIdx.x] = a1;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p1[threadIdx.x] = combine(p1[threadIdx.x], p1[threadIdx.x + offset * RESULTS]);
        __syncthreads();
    }
    if (lane == 0 && k < num_results) {
        s0[k] = p0[threadIdx.x];
        s1[k] = p1[threadIdx.x].mean;
        s2[k] = p1[threadIdx.x].count;
        s3[k] = p1[threadIdx.x].m2;
    }
}

// x0: sum of stage 1 (1, 64) float32
// x1: online_mean of stage 1 (1, 64) float32
// x2: online_count of stage 1 (1, 64) float32
// x3: online_m2 of stage 1 (1, 64) float32
// y0: sub of stage 1 (1, 64) float32
// y1: sqr of stage 1 (1, 64) float32
// y2: mul of stage 1 (1, 64) float32
// y3: add of stage 1 (1, 64) float32
// y4: mul of stage 1 (1, 64) float32
// y5: cast of stage 1 (1, 64) float16
// c0: scalar x1
// y0 = (x1 - (x0 * c0))
// y1 = sqr((x1 - (x0 * c0)))
// y2 = (x2 * sqr((x1 - (x0 * c0))))
// y3 = (x3 + (x2 * sqr((x1 - (x0 * c0)))))
// y4 = ((x3 + (x2 * sqr((x1 - (x0 * c0))))) * c0)
// y5 = cast(((x3 + (x2 * sqr((x1 - (x0 * c0))))) * c0))
extern "C" __global__ void __launch_bounds__(256) stage_1_1(
    const float* x0, const float* x1, const float* x2, const float* x3, float* y0, float* y1, float* y2, float* y3, float* y4, Half* y5, double c0, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<float, V> x0s = load<V>(x0 + i);
        const Pack<float, V> x1s = load<V>(x1 + i);
        const Pack<float, V> x2s = load<V>(x2 + i);
        const Pack<float, V> x3s = load<V>(x3 + i);
        Pack<float, V> y0s;
        Pack<float, V> y1s;
        Pack<float, V> y2s;
        Pack<float, V> y3s;
        Pack<float, V> y4s;
        Pack<Half, V> y5s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q] * ((float)c0);  // mul
            const float v1 = x1s.at[q] - v0;  // sub
            const float v2 = v1 * v1;  // sqr
            const float v3 = x2s.at[q] * v2;  // mul
            const float v4 = x3s.at[q] + v3;  // add
            const float v5 = v4 * ((float)c0);  // mul
            const float v6 = round_to<Half>((float)v5);  // cast
            y0s.at[q] = v1;
            y1s.at[q] = v2;
            y2s.at[q] = v3;
            y3s.at[q] = v4;
            y4s.at[q] = v5;
            y5s.at[q] = to_storage<Half>(v6);
        }
        store(y0 + i, y0s);
        store(y1 + i, y1s);
        store(y2 + i, y2s);
        store(y3 + i, y3s);
        store(y4 + i, y4s);
        store(y5 + i, y5s);
    }
}
