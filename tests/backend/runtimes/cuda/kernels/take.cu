// --- stage 1: call (2, 96): take ---
// y: take of stage 1 (2, 96) float32
// x: x (64, 96) float32
// indices: x1 (2, 1) int64
// y[row, i, e] = x[row, indices[i], e]; negative indices count from the end. Errors are recorded.
extern "C" __global__ void stage_1(float* y, const float* x, const long long* indices, uint64* error_record, long long check_id,
                                  long long n, long long count, long long size, long long inner_size)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const long long e = i % inner_size, outer_index = i / inner_size;
        const long long index = indices[outer_index % count];
        const long long position = index < 0 ? index + size : index;
        const bool in_bounds = position >= 0 && position < size;
        y[i] = load_if(x + (outer_index / count * size + position) * inner_size + e, in_bounds);
        if (!in_bounds) report_index(error_record, check_id, index);
    }
}
