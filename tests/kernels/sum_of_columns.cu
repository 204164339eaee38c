// --- stage 1: region (64, 96): mul sum ---
// x0: x (64, 96) float32
// x1: c (64, 1) float32
// s0: sum of stage 1 (1, 96) float32
// s0 = sum((x0 * x1)) over axis 0 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, const float* x1, float* s0, long long K, long long J, long long chunk, long long N1)
{
    typedef unsigned Index;
    constexpr int V = 1;  // elements side by side, for one thread at once
    constexpr int LANES = 8, PLACES = 32;  // threads of a result, results of a block
    const Index n1 = N1;
    const int lane = threadIdx.x / PLACES, place = threadIdx.x % PLACES;
    const Index k = (Index)blockIdx.x * PLACES + place;  // the number of the result
    const Index first = blockIdx.y * (Index)chunk, end = first + chunk < J ? first + chunk : J;
    float a0 = 0;
    if (k < K) {
        const Index i1 = k;
        #pragma unroll 4
        for (Index j = first + lane * V; j < end; j += LANES * V) {
            const Index i0 = j;
            const Pack<float, V> x0s = load<V>(x0 + i0 * n1 + i1);
            const float x1s = x1[i0];
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                const float v0 = x0s.at[q] * x1s;  // mul
                a0 = a0 + (float)v0;
            }
        }
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
