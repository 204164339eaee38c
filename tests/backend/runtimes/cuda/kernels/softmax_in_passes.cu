// --- stage 1: row_passes (2, 50000): max stop_gradient sub exp online_max sub exp online_exp_sum mul div ---
// x0: long (2, 50000) float32
// s0: max of stage 1 (2, 1) float32
// s1: online_max of stage 1 (2, 1) float32
// s2: online_exp_sum of stage 1 (2, 1) float32
// s0 = max(x0) over axis 1 of 2
// s1 = online_max(x0) over axis 1 of 2
// s2 = online_exp_sum(x0) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1_0(
    const float* x0, float* s0, OnlineExpSum<float>* s1, unsigned num_results, unsigned reduction_size, unsigned chunk, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    constexpr int LANES = 256, RESULTS = 1;  // threads per result, results per block
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * RESULTS + slot;  // index of the result
    const Index first = blockIdx.y * chunk, last = first + chunk;
    const Index end = last < reduction_size ? last : reduction_size;
    float a0 = -(float)INF;
    OnlineExpSum<float> a1 = {-(float)INF, 0};
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
                    a0 = max_nan(a0, (float)x0s[u].at[q]);
                    a1 = update(a1, (float)x0s[u].at[q]);
                }
            }
        }
    }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p0[threadIdx.x] = max_nan(p0[threadIdx.x], p0[threadIdx.x + offset * 1]);
        __syncthreads();
    }
    if (lane == 0 && k < num_results) {
        s0[blockIdx.y * num_results + k] = p0[threadIdx.x];
    }
    __shared__ OnlineExpSum<float> p1[256];
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

// combine the splits of max and online_max and online_exp_sum
extern "C" __global__ void __launch_bounds__(256) stage_1_0_joined(
    float* s0, float* s1, float* s2, const float* partials0, const OnlineExpSum<float>* partials1, unsigned num_splits, unsigned num_results)
{
    typedef unsigned Index;
    constexpr int LANES = 128, RESULTS = 2;
    const int lane = threadIdx.x / RESULTS, slot = threadIdx.x % RESULTS;
    const Index k = (Index)blockIdx.x * RESULTS + slot;
    float a0 = -(float)INF;
    OnlineExpSum<float> a1 = {-(float)INF, 0};
    if (k < num_results)
        for (Index p = lane; p < num_splits; p += LANES) {
            a0 = max_nan(a0, partials0[p * num_results + k]);
            a1 = combine(a1, partials1[p * num_results + k]);
        }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p0[threadIdx.x] = max_nan(p0[threadIdx.x], p0[threadIdx.x + offset * RESULTS]);
        __syncthreads();
    }
    __shared__ OnlineExpSum<float> p1[256];
    p1[threadIdx.x] = a1;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p1[threadIdx.x] = combine(p1[threadIdx.x], p1[threadIdx.x + offset * RESULTS]);
        __syncthreads();
    }
    if (lane == 0 && k < num_results) {
        s0[k] = p0[threadIdx.x];
        s1[k] = p1[threadIdx.x].max;
        s2[k] = p1[threadIdx.x].sum;
    }
}

// x0: max of stage 1 (2, 1) float32
// x1: online_max of stage 1 (2, 1) float32
// x2: online_exp_sum of stage 1 (2, 1) float32
// y0: stop_gradient of stage 1 (2, 1) float32
// y1: mul of stage 1 (2, 1) float32
// y0 = stop_gradient(x0)
// y1 = (x2 * exp((x1 - stop_gradient(x0))))
extern "C" __global__ void __launch_bounds__(256) stage_1_1(
    const float* x0, const float* x1, const float* x2, float* y0, float* y1, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 1;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<float, V> x0s = load<V>(x0 + i);
        const Pack<float, V> x1s = load<V>(x1 + i);
        const Pack<float, V> x2s = load<V>(x2 + i);
        Pack<float, V> y0s;
        Pack<float, V> y1s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q];  // stop_gradient
            const float v1 = x1s.at[q] - v0;  // sub
            const float v2 = expf(v1);  // exp
            const float v3 = x2s.at[q] * v2;  // mul
            y0s.at[q] = v0;
            y1s.at[q] = v3;
        }
        store(y0 + i, y0s);
        store(y1 + i, y1s);
    }
}

// x0: long (2, 50000) float32
// x1: stop_gradient of stage 1 (2, 1) float32
// x2: mul of stage 1 (2, 1) float32
// y0: div of stage 1 (2, 50000) float32
// y0 = (exp((x0 - x1)) / x2)
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
            const float v1 = expf(v0);  // exp
            const float v2 = v1 / x2s;  // div
            y0s.at[q] = v2;
        }
        store(y0 + i, y0s);
    }
}

// x0: max of stage 1 (2, 1) float32
// x1: online_max of stage 1 (2, 1) float32
// y0: sub of stage 1 (2, 1) float32
// y1: exp of stage 1 (2, 1) float32
// y0 = (x1 - stop_gradient(x0))
// y1 = exp((x1 - stop_gradient(x0)))
extern "C" __global__ void __launch_bounds__(256) stage_1_3(
    const float* x0, const float* x1, float* y0, float* y1, unsigned I)
{
    typedef unsigned Index;
    constexpr int V = 1;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Pack<float, V> x0s = load<V>(x0 + i);
        const Pack<float, V> x1s = load<V>(x1 + i);
        Pack<float, V> y0s;
        Pack<float, V> y1s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q];  // stop_gradient
            const float v1 = x1s.at[q] - v0;  // sub
            const float v2 = expf(v1);  // exp
            y0s.at[q] = v1;
            y1s.at[q] = v2;
        }
        store(y0 + i, y0s);
        store(y1 + i, y1s);
    }
}
