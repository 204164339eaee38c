// --- stage 1: call (64, 1): argmax ---
// x0: x (64, 96) float32
// s0: argmax of stage 1 (64, 1) int32
// s0 = argmax(x0) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, int* s0, long long K, long long J, long long chunk, long long N1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // elements side by side, for one thread at once
    constexpr int LANES = 32, PLACES = 8;  // threads of a result, results of a block
    const Index n1 = N1;
    const int lane = threadIdx.x % LANES, place = threadIdx.x / LANES;
    const Index k = (Index)blockIdx.x * PLACES + place;  // the number of the result
    const Index first = blockIdx.y * (Index)chunk, end = first + chunk < J ? first + chunk : J;
    Best<float> a0 = {-(float)INF, NOWHERE};
    if (k < K) {
        const Index i0 = k;
        #pragma unroll 4
        for (Index j = first + lane * V; j < end; j += LANES * V) {
            const Index i1 = j;
            const Pack<float, V> x0s = load<V>(x0 + i0 * n1 + i1);
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                a0 = first_largest(a0, Best<float>{(float)x0s.at[q], (long long)j + q});
            }
        }
    }
    __shared__ Best<float> p0[256];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int far = LANES / 2; far; far /= 2) {
        if (lane < far) p0[threadIdx.x] = first_largest(p0[threadIdx.x], p0[threadIdx.x + far * 1]);
        __syncthreads();
    }
    if (lane == 0 && k < K) {
        s0[k] = p0[threadIdx.x].place;
    }
}
