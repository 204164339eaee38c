// --- stage 1: fused (64, 96): add mul gt cast ---
// x0: x (64, 96) float32
// x1: c (64, 1) float32
// x2: r (1, 96) float32
// y0: add of stage 1 (64, 96) float32
// y1: mul of stage 1 (64, 96) float32
// y2: cast of stage 1 (64, 96) int32
// y0 = (x0 + x1)
// y1 = ((x0 + x1) * x2)
// y2 = cast((x0 > 0))
extern "C" __global__ void __launch_bounds__(256) stage_1(
    const float* x0, const float* x1, const float* x2, float* y0, float* y1, int* y2, unsigned I, unsigned n1)
{
    typedef unsigned Index;
    constexpr int V = 4;  // adjacent elements per thread and iteration
    const Index stride = (Index)gridDim.x * blockDim.x * V;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {
        const Index i0 = i / n1;
        const Index i1 = i % n1;
        const Pack<float, V> x0s = load<V>(x0 + i);
        const float x1s = x1[i0];
        const Pack<float, V> x2s = load<V>(x2 + i1);
        Pack<float, V> y0s;
        Pack<float, V> y1s;
        Pack<int, V> y2s;
        #pragma unroll
        for (int q = 0; q < V; ++q) {
            const float v0 = x0s.at[q] + x1s;  // add
            const float v1 = v0 * x2s.at[q];  // mul
            const float v2 = x0s.at[q] > 0.0f;  // gt
            const int v3 = float_to_int<int>(v2);  // cast
            y0s.at[q] = v0;
            y1s.at[q] = v1;
            y2s.at[q] = v3;
        }
        store(y0 + i, y0s);
        store(y1 + i, y1s);
        store(y2 + i, y2s);
    }
}
