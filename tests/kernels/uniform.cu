// --- stage 1: call (6, 7): rand ---
// y: rand of stage 1 (6, 7) float32
// A thread makes a block of Philox4x64-10: four words, a function of the block's number and (seed, stream).
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
extern "C" __global__ void stage_1(float* y, long long n, long long size, long long seed, long long stream,
                                  long long c0, long long c1, long long c2, long long c3,
                                  const unsigned long long* from)
{
    typedef unsigned long long Word;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        Word c[4] = {(Word)c0, (Word)c1, (Word)c2, (Word)c3}, key[2] = {(Word)seed, (Word)stream}, carry = i;
        for (int k = 0; k < 4; ++k) {  // c + from + i: in a graph, from is where the stream stood when it was launched
            const Word start = from ? from[k] : 0, sum = c[k] + start;
            c[k] = sum + carry, carry = (sum < start) + (c[k] < sum);
        }
        for (int round = 0; round < 10; ++round) {
            const Word a = 0xD2E7470EE14C6C93ULL * c[0], high_a = __umul64hi(0xD2E7470EE14C6C93ULL, c[0]);
            const Word b = 0xCA5A826395121157ULL * c[2], high_b = __umul64hi(0xCA5A826395121157ULL, c[2]);
            c[0] = high_b ^ c[1] ^ key[0], c[1] = b, c[2] = high_a ^ c[3] ^ key[1], c[3] = a;
            key[0] += 0x9E3779B97F4A7C15ULL, key[1] += 0xBB67AE8584CAA73BULL;
        }
        for (int k = 0; k < 8; ++k) {  // the low half of a word comes first
            const unsigned lane = (unsigned)(c[k / 2] >> (k % 2 * 32));
            if (8 * i + k < size) put(y[8 * i + k], (float)(lane >> 8) * 0x1p-24f);
        }
    }
}
