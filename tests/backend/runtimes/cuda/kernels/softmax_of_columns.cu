// --- stage 1: row_tile (64, 96): max stop_gradient sub exp sum div ---
// x0: x (64, 96) float32
// y0: div of stage 1 (64, 96) float32
// s0: max of stage 1 (1, 96) float32
// s1: sum of stage 1 (1, 96) float32
// y0 = (exp((x0 - stop_gradient(max(x0)))) / sum(exp((x0 - stop_gradient(max(x0))))))
// s0 = max(x0) over axis 0 of 2
// s1 = sum(exp((x0 - stop_gradient(max(x0))))) over axis 0 of 2
extern "C" __global__ void __launch_bounds__(512) stage_1(
    const float* x0, float* y0, unsigned num_results, unsigned reduction_size, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 1;  // adjacent elements per thread and iteration
    constexpr int LANES = 32, RESULTS = 16;  // threads per result, results per block
    constexpr int R = 2;  // packs per lane
    const int lane = threadIdx.x / RESULTS, slot = threadIdx.x % RESULTS;
    const Index result = (Index)blockIdx.x * RESULTS + slot;  // index of the result
    const bool active = result < num_results;
    const Index k = active ? result : num_results - 1;  // the last result may be computed several times
    const int packs = ((R - 1) * LANES + lane) * V < reduction_size ? R : R - 1;  // of this lane
    const Index i1 = k;
    const Index i0 = lane * V;
    x0 += i0 * n1 + i1;  // to the first pack of this lane
    y0 += i0 * n1 + i1;  // to the first pack of this lane
    Pack<float, V> x0s[R];
    float r2[R * V];
    float a0 = -(float)INF;
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        if (r < packs) {
            x0s[r] = load<V>(x0 + r * LANES * V * (long long)n1);
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                a0 = max_nan(a0, (float)x0s[r].at[q]);
            }
        }
    }
    __shared__ float p0[512];
    p0[threadIdx.x] = a0;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p0[threadIdx.x] = max_nan(p0[threadIdx.x], p0[threadIdx.x + offset * RESULTS]);
        __syncthreads();
    }
    const float t0 = p0[slot];  // max
    const float v0 = t0;  // stop_gradient
    float a1 = 0;
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        if (r < packs) {
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                const float v1 = x0s[r].at[q] - v0;  // sub
                const float v2 = expf(v1);  // exp
                r2[r * V + q] = v2;
                a1 = a1 + (float)v2;
            }
        }
    }
    __shared__ float p1[512];
    p1[threadIdx.x] = a1;
    __syncthreads();
    for (int offset = LANES / 2; offset; offset /= 2) {
        if (lane < offset) p1[threadIdx.x] = p1[threadIdx.x] + p1[threadIdx.x + offset * RESULTS];
        __syncthreads();
    }
    const float t1 = p1[slot];  // sum
    const float d0 = reciprocal(t1);
    if (active) {
        #pragma unroll
        for (int r = 0; r < R; ++r) {
            if (r < packs) {
                Pack<float, V> y0s;
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    const float v3 = divide(r2[r * V + q], t1, d0);  // div
                    y0s.at[q] = v3;
                }
                store(y0 + r * LANES * V * (long long)n1, y0s);
            }
        }
    }
}
