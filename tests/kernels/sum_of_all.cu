// --- stage 1: region (3000, 3000): sum ---
// x0: large (3000, 3000) float32
// s0: sum of stage 1 (1, 1) float32
// s0 = sum(x0)
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, float* s0, long long K, long long J, long long chunk)
{
    typedef unsigned Index;
    constexpr int V = 4;  // elements side by side, for one thread at once
    constexpr int LANES = 256, PLACES = 1;  // threads of a result, results of a block
    const int lane = threadIdx.x % LANES, place = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * PLACES + place;  // the number of the result
    const Index first = blockIdx.y * (Index)chunk, end = first + chunk < J ? first + chunk : J;
    float a0 = 0;
    if (k < K) {
        #pragma unroll 4
        for (Index j = first + lane * V; j < end; j += LANES * V) {
            const Index i0 = j;
            const Pack<float, V> x0s = load<V>(x0 + i0);
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                a0 = a0 + (float)x0s.at[q];
            }
        }
    }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int far = LANES / 2; far; far /= 2) {
        if (lane < far) p0[threadIdx.x] = p0[threadIdx.x] + p0[threadIdx.x + far * 1];
        __syncthreads();
    }
    if (lane == 0 && k < K) s0[blockIdx.y * K + k] = p0[threadIdx.x];
}

// the parts of sum, joined
extern "C" __global__ void __launch_bounds__(256) stage_1_joined(
    float* s0, const float* parts0, long long P, long long K)
{
    typedef unsigned Index;
    constexpr int LANES = 8, PLACES = 32;
    const int lane = threadIdx.x / PLACES, place = threadIdx.x % PLACES;
    const long long k = (long long)blockIdx.x * PLACES + place;
    float a0 = 0;
    if (k < K)
        for (long long p = lane; p < P; p += LANES) {
            a0 = a0 + parts0[p * K + k];
        }
    __shared__ float p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int far = LANES / 2; far; far /= 2) {
        if (lane < far) p0[threadIdx.x] = p0[threadIdx.x] + p0[threadIdx.x + far * PLACES];
        __syncthreads();
    }
    if (lane == 0 && k < K) {
        s0[k] = p0[threadIdx.x];
    }
}
