// --- stage 1: call (6, 7): rand ---
// y: rand of stage 1 (6, 7) float32
// Philox4x64-10: each thread computes a block of four words from the counter and (seed, stream).
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
extern "C" __global__ void stage_1(float* y, long long n, long long size, long long seed, long long stream,
                                  long long c0, long long c1, long long c2, long long c3,
                                  const uint64* stream_offset)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint64 c[4] = {(uint64)c0, (uint64)c1, (uint64)c2, (uint64)c3};
        uint64 key[2] = {(uint64)seed, (uint64)stream}, carry = i;
        for (int k = 0; k < 4; ++k) {  // c + stream_offset + i; a CUDA graph gives the offset at launch
            const uint64 start = stream_offset ? stream_offset[k] : 0, sum = c[k] + start;
            c[k] = sum + carry, carry = (sum < start) + (c[k] < sum);
        }
        for (int round = 0; round < 10; ++round) {
            const uint64 a = 0xD2E7470EE14C6C93ULL * c[0], high_a = __umul64hi(0xD2E7470EE14C6C93ULL, c[0]);
            const uint64 b = 0xCA5A826395121157ULL * c[2], high_b = __umul64hi(0xCA5A826395121157ULL, c[2]);
            c[0] = high_b ^ c[1] ^ key[0], c[1] = b, c[2] = high_a ^ c[3] ^ key[1], c[3] = a;
            key[0] += 0x9E3779B97F4A7C15ULL, key[1] += 0xBB67AE8584CAA73BULL;
        }
        for (int k = 0; k < 8; ++k) {  // the low half of a word comes first
            const unsigned half_word = (unsigned)(c[k / 2] >> (k % 2 * 32));
            if (8 * i + k < size) store(y[8 * i + k], (float)(half_word >> 8) * 0x1p-24f);
        }
    }
}
