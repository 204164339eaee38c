// --- stage 1: call (3, 3): onehot ---
// y: onehot of stage 1 (3, 3) float32
// labels: x0 (3, 1) int64
// y = 1 in the row of each label, else 0. A label out of range is recorded.
extern "C" __global__ void stage_1(float* y, const long long* labels, uint64* error_record, long long check_id,
                                  long long n, long long width, long long classes)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const long long row = i / width, column = i % width, label = labels[column];
        store(y[i], label == row ? 1.0f : 0.0f);
        if (label < 0 || label >= classes) report_index(error_record, check_id, label);
    }
}
