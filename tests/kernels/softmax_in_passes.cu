// --- stage 1: passes (2, 50000): max stop_gradient sub exp greatest sub exp exps mul div ---
// x0: long (2, 50000) float32
// s0: max of stage 1 (2, 1) float32
// s1: greatest of stage 1 (2, 1) float32
// s2: exps of stage 1 (2, 1) float32
// s0 = max(x0) over axis 1 of 2
// s1 = greatest(x0) over axis 1 of 2
// s2 = exps(x0) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1_0(
    const float* x0, float* s0, Exps<float>* s1, long long K, long long J, long long chunk, long long N1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // elements side by side, for one thread at once
    constexpr int LANES = 256, PLACES = 1;  // threads of a result, results of a block
    const Index n1 = N1;
    const int lane = threadIdx.x % LANES, place = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * PLACES + place;  // the number of the result
    const Index first = blockIdx.y * (Index)chunk, end = first + chunk < J ? first + chunk : J;
    float a0 = -(float)INF;
    Exps<float> a1 = {-(float)INF, 0};
    if (k < K) {
        const Index i0 = k;
        #pragma unroll 4
        for (Index j = first + lane * V; j < end; j += LANES * V) {
            const Index i1 = j;
            const Pack<float, V> x0s = load<V>(x0 + i0 * n1 + i1);
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                a0 = larger(a0, (float)x0s.at[q]);
                a1 = added(a1, (float)x0s.at[q]);
            }
        }
    }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int far = LANES / 2; far; far /= 2) {
        if (lane < far) p0[threadIdx.x] = larger(p0[threadIdx.x], p0[threadIdx.x + far * 1]);
        __syncthreads();
    }
    if (lane == 0 && k < K) s0[blockIdx.y * K + k] = p0[threadIdx.x];
    __shared__ Exps<float> p1[256];
    p1[threadIdx.x] = a1;
    __syncthreads();
    for (int far = LANES / 2; far; far /= 2) {
        if (lane < far) p1[threadIdx.x] = joined(p1[threadIdx.x], p1[threadIdx.x + far * 1]);
        __syncthreads();
    }
    if (lane == 0 && k < K) s1[blockIdx.y * K + k] = p1[threadIdx.x];
}

// the parts of max and greatest and exps, joined
extern "C" __global__ void __launch_bounds__(256) stage_1_0_joined(
    float* s0, float* s1, float* s2, const float* parts0, const Exps<float>* parts1, long long P, long long K)
{
    typedef unsigned Index;
    constexpr int LANES = 8, PLACES = 32;
    const int lane = threadIdx.x / PLACES, place = threadIdx.x % PLACES;
    const long long k = (long long)blockIdx.x * PLACES + place;
    float a0 = -(float)INF;
    Exps<float> a1 = {-(float)INF, 0};
    if (k < K)
        for (long long p = lane; p < P; p += LANES) {
            a0 = larger(a0, parts0[p * K + k]);
            a1 = joined(a1, parts1[p * K + k]);
        }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int far = LANES / 2; far; far /= 2) {
        if (lane < far) p0[threadIdx.x] = larger(p0[threadIdx.x], p0[threadIdx.x + far * PLACES]);
        __syncthreads();
    }
    __shared__ Exps<float> p1[256];
    p1[threadIdx.x] = a1;
    __syncthreads();
    for (int far = LANES / 2; far; far /= 2) {
        if (lane < far) p1[threadIdx.x] = joined(p1[threadIdx.x], p1[threadIdx.x + far * PLACES]);
        __syncthreads();
    }
    if (lane == 0 && k < K) {
        s0[k] = p0[threadIdx.x];
        s1[k] = p1[threadIdx.x].greatest;
        s2[k] = p1[threadIdx.x].sum;
    }
}

// x0: max of stage 1 (2, 1) float32
// x1: greatest of stage 1 (2, 1) float32
// x2: exps of stage 1 (2, 1) float32
// y0: stop_gradient of stage 1 (2, 1) float32
// y1: mul of stage 1 (2, 1) float32
// y0 = stop_gradient(x0)
// y1 = (x2 * exp((x1 - stop_gradient(x0))))
extern "C" __global__ void __launch_bounds__(256) stage_1_1(
    const float* x0, const float* x1, const float* x2, float* y0, float* y1, long long I)
{
    typedef unsigned Index;
    constexpr int V = 1;  // elements side by side, for one thread at once
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
    const float* x0, const float* x1, const float* x2, float* y0, long long I, long long N1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // elements side by side, for one thread at once
    const Index n1 = N1;
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
// x1: greatest of stage 1 (2, 1) float32
// y0: sub of stage 1 (2, 1) float32
// y1: exp of stage 1 (2, 1) float32
// y0 = (x1 - stop_gradient(x0))
// y1 = exp((x1 - stop_gradient(x0)))
extern "C" __global__ void __launch_bounds__(256) stage_1_3(
    const float* x0, const float* x1, float* y0, float* y1, long long I)
{
    typedef unsigned Index;
    constexpr int V = 1;  // elements side by side, for one thread at once
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
