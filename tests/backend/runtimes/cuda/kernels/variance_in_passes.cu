// --- stage 1: row_passes (2, 50000): sum mul sub mul online_mean sub sqr online_count mul online_m2 add mul add sqrt div ---
// x0: long (2, 50000) float32
// s0: sum of stage 1 (2, 1) float32
// s1: online_mean of stage 1 (2, 1) float32
// s2: online_count of stage 1 (2, 1) float32
// s3: online_m2 of stage 1 (2, 1) float32
// s0 = sum(x0) over axis 1 of 2
// s1 = online_mean(x0) over axis 1 of 2
// s2 = online_count(x0) over axis 1 of 2
// s3 = online_m2(x0) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1_0(
    const float* x0, float* s0, Welford<float>* s1, unsigned num_results, unsigned reduction_size, unsigned chunk, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    constexpr int LANES = 256, RESULTS = 1;  // threads per result, results per block
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * RESULTS + slot;  // index of the result
    const Index first = blockIdx.y * chunk, last = first + chunk;
    const Index end = last < reduction_size ? last : reduction_size;
    float a0 = 0;
    Welford<float> a1 = {0, 0, 0};
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
                    a0 = a0 + (float)x0s[u].at[q];
                    a1 = update(a1, (float)x0s[u].at[q]);
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
    __shared__ Welford<float> p1[256];
    p1[threadIdx.x] = a1;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p1[threadIdx.x] = combine(p1[threadIdx.x], p1[threadIdx.x + offset * 1]);
        __syncthreads();
    }
    if (lane == 0 && k < num_results) {
        s1[blockIdx.y * num_results + k] = p1[threadIdx.x];
    }
}

// combine the splits of sum and online_mean and online_count and online_m2
extern "C" __global__ void __launch_bounds__(256) stage_1_0_joined(
    float* s0, float* s1, float* s2, float* s3, const float* partials0, const Welford<float>* partials1, unsigned num_splits, unsigned num_results)
{
    typedef unsigned Index;
    constexpr int LANES = 128, RESULTS = 2;
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

// x0: sum of stage 1 (2, 1) float32
// x1: online_mean of stage 1 (2, 1) float32
// x2: online_count of stage 1 (2, 1) float32
// x3: online_m2 of stage 1 (2, 1) float32
// y0: mul of stage 1 (2, 1) float32
// y1: sqrt of stage 1 (2, 1) float32
// c0: scalar x1
// c1: scalar x2
// y0 = (x0 * c0)
// y1 = sqrt((((x3 + (x2 * sqr((x1 - (x0 * c0))))) * c0) + c1))
extern "C" __global__ void __launch_bounds__(256) stage_1_1(
    const float* x0, const float* x1, const float* x2, const float* x3, float* y0, float* y1, double c0, double c1, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 1;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<float, V> x0s = load<V>(x0 + i);
        const Pack<float, V> x1s = load<V>(x1 + i);
        const Pack<float, V> x2s = load<V>(x2 + i);
        const Pack<float, V> x3s = load<V>(x3 + i);
        Pack<float, V> y0s;
        Pack<float, V> y1s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q] * ((float)c0);  // mul
            const float v1 = x1s.at[q] - v0;  // sub
            const float v2 = v1 * v1;  // sqr
            const float v3 = x2s.at[q] * v2;  // mul
            const float v4 = x3s.at[q] + v3;  // add
            const float v5 = v4 * ((float)c0);  // mul
            const float v6 = v5 + ((float)c1);  // add
            const float v7 = sqrtf(v6);  // sqrt
            y0s.at[q] = v0;
            y1s.at[q] = v7;
        }
        store(y0 + i, y0s);
        store(y1 + i, y1s);
    }
}

// x0: long (2, 50000) float32
// x1: mul of stage 1 (2, 1) float32
// x2: sqrt of stage 1 (2, 1) float32
// y0: div of stage 1 (2, 50000) float32
// y0 = ((x0 - x1) / x2)
extern "C" __global__ void __launch_bounds__(256) stage_1_2(
    const float* x0, const float* x1, const float* x2, float* y0, unsigned I, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Index i0 = i / n1;
        const Pack<float, V> x0s = load<V>(x0 + i);
        const float x1s = x1[i0];
        const float x2s = x2[i0];
        Pack<float, V> y0s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q] - x1s;  // sub
            const float v1 = v0 / x2s;  // div
            y0s.at[q] = v1;
        }
        store(y0 + i, y0s);
    }
}

// x0: sum of stage 1 (2, 1) float32
// x1: online_mean of stage 1 (2, 1) float32
// x2: online_count of stage 1 (2, 1) float32
// x3: online_m2 of stage 1 (2, 1) float32
// y0: sub of stage 1 (2, 1) float32
// y1: sqr of stage 1 (2, 1) float32
// y2: mul of stage 1 (2, 1) float32
// y3: add of stage 1 (2, 1) float32
// y4: mul of stage 1 (2, 1) float32
// y5: add of stage 1 (2, 1) float32
// c0: scalar x1
// c1: scalar x2
// y0 = (x1 - (x0 * c0))
// y1 = sqr((x1 - (x0 * c0)))
// y2 = (x2 * sqr((x1 - (x0 * c0))))
// y3 = (x3 + (x2 * sqr((x1 - (x0 * c0)))))
// y4 = ((x3 + (x2 * sqr((x1 - (x0 * c0))))) * c0)
// y5 = (((x3 + (x2 * sqr((x1 - (x0 * c0))))) * c0) + c1)
extern "C" __global__ void __launch_bounds__(256) stage_1_3(
    const float* x0, const float* x1, const float* x2, const float* x3, float* y0, float* y1, float* y2, float* y3, float* y4, float* y5, double c0, double c1, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 1;  // adjacent elements per thread and iteration
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
        Pack<float, V> y5s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q] * ((float)c0);  // mul
            const float v1 = x1s.at[q] - v0;  // sub
            const float v2 = v1 * v1;  // sqr
            const float v3 = x2s.at[q] * v2;  // mul
            const float v4 = x3s.at[q] + v3;  // add
            const float v5 = v4 * ((float)c0);  // mul
            const float v6 = v5 + ((float)c1);  // add
            y0s.at[q] = v1;
            y1s.at[q] = v2;
            y2s.at[q] = v3;
            y3s.at[q] = v4;
            y4s.at[q] = v5;
            y5s.at[q] = v6;
        }
        store(y0 + i, y0s);
        store(y1 + i, y1s);
        store(y2 + i, y2s);
        store(y3 + i, y3s);
        store(y4 + i, y4s);
        store(y5 + i, y5s);
    }
}
