// Convolution of float32 images (C, H, W, N) and its gradients as a matrix product, one of whose operands is gathered.
//
//          rows   columns     terms of a sum   a: filters (C, R, S, K) or errors   b, gathered
//   FPROP   k     (p, q, n)   (r, s, c)        filters, adjacent along rows        images, adjacent along columns
//   DGRAD   c     (h, w, n)   (r, s, k)        filters, adjacent along terms       errors, adjacent along columns
//   WGRAD   k     (c, r, s)   (p, q, n)        errors, adjacent along terms        images, adjacent along terms
//
// Before this text are defined: PASS; ROWS and COLUMNS of a block, TM and TN of a thread; the TERMS of a step, and
// whether all steps have so many (WHOLE); how many adjacent elements of a (VA), of b (VB) and of the result (VO) a
// thread copies at once, 4 or 1; and BLOCKS of a multiprocessor. Pixels are numbered by groups of images, in a group by
// place, so that neighbors, whose taps overlap, meet in the L1 cache. If there are several parts, a block sums the
// terms of one, and a second kernel adds the parts in order.
enum { FPROP, DGRAD, WGRAD };
enum { THREADS = ROWS / TM * (COLUMNS / TN) };

// A tile of SIZE lines (rows or columns) and TERMS terms, and the elements of it that a thread copies to shared memory:
// of one term, or of V adjacent ones, several lines.
template <int SIZE, int V, bool ALONG_TERMS> struct Tile
{
    enum { LANES = ALONG_TERMS ? TERMS / V : THREADS / TERMS, STEP = ALONG_TERMS ? THREADS / LANES : LANES * V };
    enum { PIECES = (SIZE + STEP - 1) / STEP };
    typedef Pack<float, 4> Lines[TERMS][SIZE / 4 + 1];  // the pad avoids bank conflicts of elements along terms
    Pack<float, V> values[PIECES];

    __device__ static int term() { return ALONG_TERMS ? threadIdx.x % LANES * V : threadIdx.x / LANES; }
    __device__ static int line(int i)
    {
        return (ALONG_TERMS ? threadIdx.x / LANES : threadIdx.x % LANES * V) + i * STEP;
    }
    // A line of a tile that begins at first. For one that does not exist, whose sums are not stored, it is the last.
    __device__ static int existing(int first, int i, int count)
    {
        const int last = count - (ALONG_TERMS ? 1 : V);
        return first + line(i) < last ? first + line(i) : last;
    }
    __device__ void read(int i, const float* from, bool inside, bool is_term)
    {
        if (!WHOLE) values[i] = {};
        if (inside && (WHOLE || is_term)) values[i] = load<V>(from);
    }
    __device__ void write(Lines& to) const
    {
        #pragma unroll
        for (int i = 0; i < PIECES; ++i)
            #pragma unroll
            for (int v = 0; v < V; v += ALONG_TERMS ? 1 : V)
                if (SIZE % STEP == 0 || line(i) < SIZE) {
                    float* at = (float*)to[term() + v] + line(i);
                    if (ALONG_TERMS) *at = values[i].at[v];
                    else store(at, values[i]);
                }
    }
};

// Along an axis, the taps that meet an image, and where: at start + output * per_output + tap * per_tap. In DGRAD,
// outputs are the pixels phase, phase + stride ... of the result, and taps every step-th from first.
struct Axis { int taps, first, step, start, per_output, per_tap; };
__device__ inline Axis make_axis(int taps, int pad, int stride, int dilation, int phase)
{
    if (PASS != DGRAD) return {taps, 0, 1, -pad, stride, dilation};
    int first = 0, step = 1;
    while (first < taps && (phase + pad - first * dilation) % stride) ++first;
    while (step * dilation % stride) ++step;
    const int start = (phase + pad - first * dilation) / stride;
    return {(taps - first + step - 1) / step, first, step, start, 1, -(step * dilation / stride)};
}

// a pass of a convolution, implicit GEMM
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(
    float* out, const float* a, const float* b, const float* bias, int C, int H, int W, int K, int P, int Q, int N,
    int R, int S, int pad_y, int pad_x, int stride_y, int stride_x, int dilation_y, int dilation_x,
    int group_size, int parts, int relu)
{
    typedef Tile<ROWS, VA, PASS != FPROP> TileA;
    typedef Tile<COLUMNS, VB, PASS == WGRAD> TileB;
    struct Buffer { typename TileA::Lines a; typename TileB::Lines b; };
    __shared__ Buffer buffers[2];

    const int part = blockIdx.y % parts, phase = blockIdx.y / parts;
    const int phase_y = phase / stride_x, phase_x = phase % stride_x;
    const Axis Y = make_axis(R, pad_y, stride_y, dilation_y, phase_y);
    const Axis X = make_axis(S, pad_x, stride_x, dilation_x, phase_x);
    const int height = PASS == DGRAD ? P : H, width = PASS == DGRAD ? Q : W;  // of the images that are gathered
    const int outputs_y = PASS == DGRAD ? (H + stride_y - 1) / stride_y : P;
    const int outputs_x = PASS == DGRAD ? (W + stride_x - 1) / stride_x : Q;
    const int rows = PASS == DGRAD ? C : K, columns = PASS == WGRAD ? C * R * S : outputs_y * outputs_x * N;
    const int row_tiles = (rows + ROWS - 1) / ROWS;  // blocks of the same columns are neighbors, and share the L2 cache
    const int first_row = blockIdx.x % row_tiles * ROWS, first_column = blockIdx.x / row_tiles * COLUMNS;

    // --- terms (high, middle, low), of which a step has TERMS of low; in WGRAD, a part has a group of images ---

    const int groups = PASS == WGRAD ? N / group_size : 1, first_image = part % groups * group_size;
    const int low_size = PASS == FPROP ? C : PASS == DGRAD ? K : group_size, low_steps = (low_size + TERMS - 1) / TERMS;
    const int middle_size = PASS == WGRAD ? Q : X.taps, steps = (PASS == WGRAD ? P : Y.taps) * middle_size * low_steps;
    const int share = (steps + parts / groups - 1) / (parts / groups), begin = part / groups * share;
    int left = share < steps - begin ? share : steps - begin, low = begin % low_steps * TERMS;
    const int divisor = middle_size ? middle_size : 1;
    int middle = begin / low_steps % divisor, high = begin / low_steps / divisor;
    const int a_stride = PASS == FPROP ? R * S * K : 1, b_stride = PASS == WGRAD ? 1 : height * width * N;  // of low

    // --- lines ---

    struct Pixel { int y, x, n; };
    auto pixel_of = [&](int column) -> Pixel {
        const int pixel = column / group_size, image = pixel / outputs_x / outputs_y * group_size + column % group_size;
        return {pixel / outputs_x % outputs_y, pixel % outputs_x, image};
    };
    int a_offsets[TileA::PIECES], b_offsets[TileB::PIECES], yx[TileB::PIECES];
    #pragma unroll
    for (int i = 0; i < TileA::PIECES; ++i) {
        const int row = TileA::existing(first_row, i, rows);
        const int offset = PASS == FPROP ? row : PASS == DGRAD ? row * (R * S * K) : row * (P * Q * N) + first_image;
        a_offsets[i] = offset + TileA::term() * a_stride;
    }
    #pragma unroll
    for (int i = 0; i < TileB::PIECES; ++i) {
        const int column = TileB::existing(first_column, i, columns), tap = column % (R * S);
        const Pixel pixel = pixel_of(column);
        const int y = Y.start + (PASS == WGRAD ? tap / S * Y.per_tap : pixel.y * Y.per_output);
        const int x = X.start + (PASS == WGRAD ? tap % S * X.per_tap : pixel.x * X.per_output);
        const int offset = PASS == WGRAD ? column / (R * S) * (H * W * N) + first_image : pixel.n;
        yx[i] = y << 16 | (x & 0xffff);
        b_offsets[i] = offset + (y * width + x) * N + TileB::term() * b_stride;
    }
    TileA a_tile;
    TileB b_tile;
    unsigned inside = 0;  // bit i: of piece i of b
    auto enter = [&](int sign) {  // the tap or pixel (high, middle), or with sign -1 leave it
        inside = 0;
        const int tap = (Y.first + high * Y.step) * S + X.first + middle * X.step;
        const int y = high * (PASS == WGRAD ? Y.per_output : Y.per_tap);
        const int x = middle * (PASS == WGRAD ? X.per_output : X.per_tap);
        #pragma unroll
        for (int i = 0; i < TileA::PIECES; ++i)
            a_offsets[i] += sign * ((PASS == WGRAD ? (high * Q + middle) * N : tap * K) + low * a_stride);
        #pragma unroll
        for (int i = 0; i < TileB::PIECES; ++i) {
            b_offsets[i] += sign * ((y * width + x) * N + low * b_stride);
            const int at_y = (yx[i] >> 16) + y, at_x = (short)yx[i] + x;
            inside |= (unsigned)((unsigned)at_y < (unsigned)height && (unsigned)at_x < (unsigned)width) << i;
            b_tile.values[i] = {};
        }
    };
    auto read = [&] {
        #pragma unroll
        for (int i = 0; i < TileA::PIECES; ++i)
            a_tile.read(i, a + a_offsets[i], true, low + TileA::term() < low_size);
        #pragma unroll
        for (int i = 0; i < TileB::PIECES; ++i)
            b_tile.read(i, b + b_offsets[i], inside >> i & 1, low + TileB::term() < low_size);
    };

    // --- sums: while a tile is multiplied, the next one is read ---

    // 4 x 8 threads of a warp; this order of lanes reads shared memory with the fewest transactions
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps_x = COLUMNS / (8 * TN);
    const int row = warp / warps_x * (4 * TM) + (lane % 2 + lane / 16 * 2) * 4;
    const int column = warp % warps_x * (8 * TN) + lane / 2 % 8 * 4;
    float sums[TM][TN] = {};
    if (left > 0) enter(1), read();
    for (int buffer = 0; left > 0; buffer ^= 1) {
        Buffer& now = buffers[buffer];
        a_tile.write(now.a);
        b_tile.write(now.b);
        __syncthreads();
        if (--left > 0) {
            if (low + TERMS < low_size) {
                low += TERMS;
                #pragma unroll
                for (int i = 0; i < TileA::PIECES; ++i) a_offsets[i] += TERMS * a_stride;
                #pragma unroll
                for (int i = 0; i < TileB::PIECES; ++i) b_offsets[i] += TERMS * b_stride;
            } else {
                enter(-1);
                low = 0;
                if (++middle == middle_size) middle = 0, ++high;
                enter(1);
            }
            read();
        }
        #pragma unroll
        for (int k = 0; k < TERMS; ++k) {
            Pack<float, 4> x[TM / 4], y[TN / 4];
            #pragma unroll
            for (int m = 0; m < TM / 4; ++m) x[m] = now.a[k][row / 4 + m * 4];
            #pragma unroll
            for (int n = 0; n < TN / 4; ++n) y[n] = now.b[k][column / 4 + n * 8];
            #pragma unroll
            for (int m = 0; m < TM; ++m)
                #pragma unroll
                for (int n = 0; n < TN; ++n) sums[m][n] = fmaf(x[m / 4].at[m % 4], y[n / 4].at[n % 4], sums[m][n]);
        }
    }

    // --- results ---

    out += (size_t)part * (PASS == FPROP ? K * P * Q * N : PASS == DGRAD ? C * H * W * N : C * R * S * K);
    #pragma unroll
    for (int n = 0; n < TN; n += PASS == WGRAD ? 1 : VO) {
        const int at_column = first_column + column + n / 4 * 32 + n % 4;
        const Pixel pixel = pixel_of(at_column);
        const int y = PASS == DGRAD ? phase_y + pixel.y * stride_y : pixel.y;
        const int x = PASS == DGRAD ? phase_x + pixel.x * stride_x : pixel.x;
        const int offset = PASS == WGRAD ? at_column * K : (y * (PASS == DGRAD ? W : Q) + x) * N + pixel.n;
        const int row_stride = PASS == FPROP ? P * Q * N : PASS == DGRAD ? H * W * N : 1;
        #pragma unroll
        for (int m = 0; m < TM; m += PASS == WGRAD ? VO : 1) {
            const int at_row = first_row + row + m / 4 * 16 + m % 4;
            if (at_row >= rows || at_column >= columns || (PASS == DGRAD && (y >= H || x >= W))) continue;
            Pack<float, VO> values;
            #pragma unroll
            for (int v = 0; v < VO; ++v) {
                float& value = values.at[v] = PASS == WGRAD ? sums[(m + v) % TM][n] : sums[m][(n + v) % TN];
                if (PASS == FPROP && bias) value += bias[at_row];
                if (PASS == FPROP && relu) value = max_nan(value, 0.0f);
            }
            store(out + (at_row * row_stride + offset), values);
        }
    }
}
