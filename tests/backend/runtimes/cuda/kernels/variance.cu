// --- stage 1: row_tile (64, 96): sum mul sub sqr sum mul ---
// x0: x (64, 96) float32
// y0: mul of stage 1 (64, 1) float32
// c0: scalar x1
// s0: sum of stage 1 (64, 1) float32
// s1: sum of stage 1 (64, 1) float32
// y0 = (sum(sqr((x0 - (sum(x0) * c0)))) * c0)
// s0 = sum(x0) over axis 1 of 2
// s1 = sum(sqr((x0 - (sum(x0) * c0)))) over axis 1 of 2
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, float* y0, double c0, unsigned num_results, unsigned reduction_size, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    constexpr int LANES = 32, RESULTS = 8;  // threads per result, results per block
    constexpr int R = 1;  // packs per lane
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const Index result = (Index)blockIdx.x * RESULTS + slot;  // index of the result
    const bool active = result < num_results;
    const Index k = active ? result : num_results - 1;  // the last result may be computed several times
    const int packs = ((R - 1) * LANES + lane) * V < reduction_size ? R : R - 1;  // of this lane
    const Index i0 = k;
    const Index i1 = lane * V;
    x0 += i0 * n1 + i1;  // to the first pack of this lane
    Pack<float, V> x0s[R];
    float a0 = 0;
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        if (r < packs) {
            x0s[r] = load<V>(x0 + r * LANES * V);
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                a0 = a0 + (float)x0s[r].at[q];
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
    const float t0 = p0[threadIdx.x - lane];  // sum
    const float v0 = t0 * ((float)c0);  // mul
    float a1 = 0;
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        if (r < packs) {
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                const float v1 = x0s[r].at[q] - v0;  // sub
                const float v2 = v1 * v1;  // sqr
                a1 = a1 + (float)v2;
            }
        }
    }
    __shared__ float p1[256];
    p1[threadIdx.x] = a1;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p1[threadIdx.x] = p1[threadIdx.x] + p1[threadIdx.x + offset * 1];
        __syncthreads();
    }
    const float t1 = p1[threadIdx.x - lane];  // sum
    const float v3 = t1 * ((float)c0);  // mul
    if (lane == 0 && active) {
        y0[i0] = v3;
    }
}
