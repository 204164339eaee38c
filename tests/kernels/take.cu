// --- stage 1: call (2, 96): take ---
// y: take of stage 1 (2, 96) float32
// x: x (64, 96) float32
// places: x1 (2, 1) int64
// y[row, i, e] = x[row, places[i], e]; places below 0 count from the end. One that is out of range is told of
extern "C" __global__ void stage_1(float* y, const float* x, const long long* places, Word* failed, long long check,
                                  long long n, long long count, long long size, long long each)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const long long e = i % each, slice = i / each;
        const long long given = places[slice % count];
        const long long place = given < 0 ? given + size : given;
        const bool there = place >= 0 && place < size;
        y[i] = at(x + (slice / count * size + place) * each + e, there);
        if (!there) tell(failed, check, given);
    }
}
