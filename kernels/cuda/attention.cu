/* Attention, forward and backward, in tiles.
 *
 * The idea: a block holds a tile of rows and goes over tiles of columns; scores live in registers, with a running
 * maximum and sum per row (Dao et al., FlashAttention, 2022). Backward computes the probabilities again from lse, in
 * two kernels: one with keys as rows, which owns dk and dv of its keys, summed over the group's query heads in order;
 * one with queries as rows, which owns dq. That is two products more than one kernel with atomics would do, and the
 * same bits in every run. Shared memory holds the tiles, and of each warp the probabilities on their way from the first
 * product's registers to the second's operand (rounded to T there). A head wider than 128 is written in chunks of 128
 * columns by blocks of their own, each of which computes the scores again: registers allow no more.
 * The trap: masks. What is not seen has probability 0 and is never computed with; rows of padding are loaded as zeros,
 * since they may hold anything. A query that sees nothing gives zeros. */
#include "cuda.cuh"
#include "mma.cuh"

template <typename T, int DPAD> struct tile {
  enum {
    PAD = 16 / sizeof(T), /* against bank conflicts; keeps rows aligned to 16 bytes */
    LD = DPAD + PAD,      /* of tiles */
    BYTES = DPAD * sizeof(T), /* the wider a row, the fewer: BACK must fit into the 99 KiB of the smaller GPUs */
    WARPS = BYTES > 512 ? 1 : BYTES > 256 ? 2 : 4,
    ROWS = 16 * WARPS,
    COLUMNS = BYTES > 512 ? 16 : 32,
    LDP = COLUMNS + PAD,             /* of probabilities */
    CHUNK = DPAD > 128 ? 128 : DPAD, /* columns of a result that a block writes */
    CHUNKS = DPAD / CHUNK,
    THREADS = WARPS * MT_WARP,
    BLOCKS = sizeof(T) == 4 ? 2 : 0, /* on a multiprocessor at least; 0: nvcc's guess, which in f32 spills registers */
    FORWARD = ((ROWS + 2 * COLUMNS) * LD + ROWS * LDP) * sizeof(T),
    BACK = ((2 * ROWS + 2 * COLUMNS) * LD + ROWS * LDP) * sizeof(T),
  };
};

__device__ __forceinline__ static int sees(const struct mt_attention &a, const int32_t *segment, int64_t i, int64_t j)
{
  if (i >= a.T || j >= a.T || (a.causal && j > i) || (a.window > 0 && j <= i - a.window))
    return 0;
  return !segment || (segment[i] >= 0 && segment[i] == segment[j]);
}

/* Rows [first, first + rows) of one head to shared memory, zeros where there is nothing. `wide`: 16 bytes at a time. */
template <typename T, int DPAD>
__device__ __forceinline__ static void load(T *to, int rows, const T *from, int64_t stride, int64_t first,
                                            const struct mt_attention &a, const int32_t *segment, int wide)
{
  const int LD = tile<T, DPAD>::LD, STEP = 16 / sizeof(T);
  if (wide) {
    for (int at = threadIdx.x; at < rows * (DPAD / STEP); at += blockDim.x) {
      int r = at / (DPAD / STEP), d = at % (DPAD / STEP) * STEP;
      int64_t t = first + r;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (t < a.T && d < a.D && (!segment || segment[t] >= 0))
        value = *(const uint4 *)(from + t * stride + d);
      *(uint4 *)(to + r * LD + d) = value;
    }
    return;
  }
  for (int at = threadIdx.x; at < rows * DPAD; at += blockDim.x) {
    int r = at / DPAD, d = at % DPAD;
    int64_t t = first + r;
    int there = t < a.T && d < a.D && (!segment || segment[t] >= 0);
    mt_put(to, r * LD + d, there ? mt_get(from, t * stride + d) : 0.0f);
  }
}

/* This lane's element e of columns n * 8 ...: its row in the warp's 16 and its column. */
__device__ __forceinline__ static int row_of(int e)
{
  return threadIdx.x % MT_WARP / 4 + e / 2 * 8;
}
__device__ __forceinline__ static int column_of(int n, int e)
{
  return n * 8 + 2 * (threadIdx.x % 4) + e % 2;
}

/* This lane's elements of 16 rows and so many columns. */
#define FOR_ELEMENTS(n, e, columns)                                                                                    \
  MT_UNROLL                                                                                                            \
  for (int n = 0; n < (columns) / 8; n++)                                                                              \
    MT_UNROLL                                                                                                          \
    for (int e = 0; e < 4; e++)

template <typename T, int DPAD>
__global__ static void __launch_bounds__(tile<T, DPAD>::THREADS, tile<T, DPAD>::BLOCKS)
    forward_kernel(struct mt_attention a, int wide, T *out, float *lse, const T *qkv)
{
  typedef tile<T, DPAD> X;
  const int N = X::COLUMNS / 8;
  int warp = threadIdx.x / MT_WARP, c0 = blockIdx.y * X::CHUNK;
  int64_t tiles = (a.T + X::ROWS - 1) / X::ROWS, which = tiles - 1 - blockIdx.x % tiles, bh = blockIdx.x / tiles;
  int64_t b = bh / a.H, h = bh % a.H, kv = h / (a.H / a.KV), q0 = which * X::ROWS;
  int64_t stride = (a.H + 2 * a.KV) * a.D;
  const int32_t *segment = a.segment ? a.segment + b * a.T : NULL;
  T *q = (T *)MT_SHARED_DYNAMIC(), *k = q + X::ROWS * X::LD, *v = k + X::COLUMNS * X::LD;
  T *p = v + X::COLUMNS * X::LD + warp * 16 * X::LDP;
  qkv += b * a.T * stride;
  load<T, DPAD>(q, X::ROWS, qkv + h * a.D, stride, q0, a, segment, wide);

  float sum[X::CHUNK / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  int64_t lo = a.window > 0 && q0 >= a.window ? q0 - a.window + 1 : 0;
  int64_t hi = a.causal && q0 + X::ROWS < a.T ? q0 + X::ROWS : a.T;
  for (int64_t k0 = lo; k0 < hi; k0 += X::COLUMNS) {
    __syncthreads();
    load<T, DPAD>(k, X::COLUMNS, qkv + (a.H + kv) * a.D, stride, k0, a, segment, wide);
    load<T, DPAD>(v, X::COLUMNS, qkv + (a.H + a.KV + kv) * a.D, stride, k0, a, segment, wide);
    __syncthreads();
    float s[N][4] = {}, most[2] = {-INFINITY, -INFINITY}, base[2], shrink[2];
    mt_tile<X::COLUMNS, DPAD, MT_NK>(s, q + warp * 16 * X::LD, X::LD, k, X::LD);
    FOR_ELEMENTS (n, e, X::COLUMNS) {
      int seen = sees(a, segment, q0 + warp * 16 + row_of(e), k0 + column_of(n, e));
      s[n][e] = seen ? s[n][e] * a.scale : -INFINITY;
      most[e / 2] = fmaxf(most[e / 2], s[n][e]);
    }
    MT_UNROLL
    for (int i = 0; i < 2; i++) {
      for (int bits = 1; bits < 4; bits *= 2) /* the four lanes of a row */
        most[i] = fmaxf(most[i], __shfl_xor_sync(MT_ALL_LANES, most[i], bits));
      float next = fmaxf(top[i], most[i]);
      base[i] = next == -INFINITY ? 0.0f : next;
      shrink[i] = expf(top[i] - base[i]);
      top[i] = next;
      total[i] *= shrink[i];
    }
    FOR_ELEMENTS (n, e, X::COLUMNS) {
      float value = expf(s[n][e] - base[e / 2]);
      total[e / 2] += value;
      mt_put(p, row_of(e) * X::LDP + column_of(n, e), value);
    }
    FOR_ELEMENTS (n, e, X::CHUNK)
      sum[n][e] *= shrink[e / 2];
    __syncwarp();
    mt_tile<X::CHUNK, X::COLUMNS, MT_KN>(sum, p, X::LDP, v + c0, X::LD);
    __syncwarp();
  }

  MT_UNROLL
  for (int i = 0; i < 2; i++) {
    for (int bits = 1; bits < 4; bits *= 2)
      total[i] += __shfl_xor_sync(MT_ALL_LANES, total[i], bits);
    int64_t row = q0 + warp * 16 + row_of(2 * i);
    if (row >= a.T)
      continue;
    if (threadIdx.x % 4 == 0 && c0 == 0)
      lse[bh * a.T + row] = total[i] > 0 ? top[i] + logf(total[i]) : 0.0f;
    float scale = total[i] > 0 ? 1.0f / total[i] : 0.0f;
    MT_UNROLL
    for (int n = 0; n < X::CHUNK / 8; n++)
      MT_UNROLL
      for (int e = 2 * i; e < 2 * i + 2; e++)
        if (c0 + column_of(n, e) < a.D)
          mt_put(out, ((b * a.T + row) * a.H + h) * a.D + c0 + column_of(n, e),
                 total[i] > 0 ? sum[n][e] * scale : 0.0f);
  }
}

/* delta[B,H,T] = <dout, out> of a row: the sum over keys of p dp. A warp for a row. */
template <typename T>
__global__ static void delta_kernel(struct mt_attention a, float *delta, const T *dout, const T *out)
{
  int64_t row = (int64_t)blockIdx.x * (MT_BLOCK / MT_WARP) + threadIdx.x / MT_WARP;
  if (row >= a.B * a.T * a.H)
    return;
  float sum = 0;
  for (int64_t d = threadIdx.x % MT_WARP; d < a.D; d += MT_WARP)
    sum += mt_get(dout, row * a.D + d) * mt_get(out, row * a.D + d);
  sum = mt_warp_fold(sum, mt_plus{});
  int64_t h = row % a.H, t = row / a.H % a.T, b = row / a.H / a.T;
  if (threadIdx.x % MT_WARP == 0)
    delta[(b * a.H + h) * a.T + t] = sum;
}

template <typename T, int DPAD>
__global__ static void __launch_bounds__(tile<T, DPAD>::THREADS, tile<T, DPAD>::BLOCKS)
    dq_kernel(struct mt_attention a, int wide, T *dqkv, const T *dout, const T *qkv, const float *lse,
              const float *delta)
{
  typedef tile<T, DPAD> X;
  const int N = X::COLUMNS / 8;
  int warp = threadIdx.x / MT_WARP, c0 = blockIdx.y * X::CHUNK;
  int64_t tiles = (a.T + X::ROWS - 1) / X::ROWS, which = tiles - 1 - blockIdx.x % tiles, bh = blockIdx.x / tiles;
  int64_t b = bh / a.H, h = bh % a.H, kv = h / (a.H / a.KV), q0 = which * X::ROWS;
  int64_t stride = (a.H + 2 * a.KV) * a.D;
  const int32_t *segment = a.segment ? a.segment + b * a.T : NULL;
  T *q = (T *)MT_SHARED_DYNAMIC(), *o = q + X::ROWS * X::LD, *k = o + X::ROWS * X::LD, *v = k + X::COLUMNS * X::LD;
  T *p = v + X::COLUMNS * X::LD + warp * 16 * X::LDP;
  qkv += b * a.T * stride;
  lse += bh * a.T;
  delta += bh * a.T;
  load<T, DPAD>(q, X::ROWS, qkv + h * a.D, stride, q0, a, segment, wide);
  load<T, DPAD>(o, X::ROWS, dout + (b * a.T * a.H + h) * a.D, a.H * a.D, q0, a, segment, wide);

  float sum[X::CHUNK / 8][4] = {}, row_lse[2], row_delta[2];
  MT_UNROLL
  for (int i = 0; i < 2; i++) {
    int64_t row = q0 + warp * 16 + row_of(2 * i);
    row_lse[i] = row < a.T ? lse[row] : 0.0f;
    row_delta[i] = row < a.T ? delta[row] : 0.0f;
  }
  int64_t lo = a.window > 0 && q0 >= a.window ? q0 - a.window + 1 : 0;
  int64_t hi = a.causal && q0 + X::ROWS < a.T ? q0 + X::ROWS : a.T;
  for (int64_t k0 = lo; k0 < hi; k0 += X::COLUMNS) {
    __syncthreads();
    load<T, DPAD>(k, X::COLUMNS, qkv + (a.H + kv) * a.D, stride, k0, a, segment, wide);
    load<T, DPAD>(v, X::COLUMNS, qkv + (a.H + a.KV + kv) * a.D, stride, k0, a, segment, wide);
    __syncthreads();
    float s[N][4] = {}, dp[N][4] = {};
    mt_tile<X::COLUMNS, DPAD, MT_NK>(s, q + warp * 16 * X::LD, X::LD, k, X::LD);
    mt_tile<X::COLUMNS, DPAD, MT_NK>(dp, o + warp * 16 * X::LD, X::LD, v, X::LD);
    FOR_ELEMENTS (n, e, X::COLUMNS) {
      int seen = sees(a, segment, q0 + warp * 16 + row_of(e), k0 + column_of(n, e));
      float value = seen ? expf(s[n][e] * a.scale - row_lse[e / 2]) * (dp[n][e] - row_delta[e / 2]) * a.scale : 0.0f;
      mt_put(p, row_of(e) * X::LDP + column_of(n, e), value);
    }
    __syncwarp();
    mt_tile<X::CHUNK, X::COLUMNS, MT_KN>(sum, p, X::LDP, k + c0, X::LD);
    __syncwarp();
  }
  FOR_ELEMENTS (n, e, X::CHUNK) {
    int64_t row = q0 + warp * 16 + row_of(e), d = c0 + column_of(n, e);
    if (row < a.T && d < a.D)
      mt_put(dqkv, (b * a.T + row) * stride + h * a.D + d, sum[n][e]);
  }
}

/* Rows are keys, columns are queries of all heads that read this key/value head. */
template <typename T, int DPAD>
__global__ static void __launch_bounds__(tile<T, DPAD>::THREADS, tile<T, DPAD>::BLOCKS)
    dkv_kernel(struct mt_attention a, int wide, T *dqkv, const T *dout, const T *qkv, const float *lse,
               const float *delta)
{
  typedef tile<T, DPAD> X;
  const int N = X::COLUMNS / 8;
  int warp = threadIdx.x / MT_WARP, c0 = blockIdx.y * X::CHUNK;
  int64_t tiles = (a.T + X::ROWS - 1) / X::ROWS, which = blockIdx.x % tiles, bk = blockIdx.x / tiles;
  int64_t b = bk / a.KV, kv = bk % a.KV, group = a.H / a.KV, k0 = which * X::ROWS;
  int64_t stride = (a.H + 2 * a.KV) * a.D;
  const int32_t *segment = a.segment ? a.segment + b * a.T : NULL;
  T *k = (T *)MT_SHARED_DYNAMIC(), *v = k + X::ROWS * X::LD, *q = v + X::ROWS * X::LD, *o = q + X::COLUMNS * X::LD;
  T *p = o + X::COLUMNS * X::LD + warp * 16 * X::LDP;
  qkv += b * a.T * stride;
  load<T, DPAD>(k, X::ROWS, qkv + (a.H + kv) * a.D, stride, k0, a, segment, wide);
  load<T, DPAD>(v, X::ROWS, qkv + (a.H + a.KV + kv) * a.D, stride, k0, a, segment, wide);

  float dk[X::CHUNK / 8][4] = {}, dv[X::CHUNK / 8][4] = {};
  int64_t lo = a.causal ? k0 : 0,
          hi = a.window > 0 && k0 + X::ROWS - 1 + a.window < a.T ? k0 + X::ROWS - 1 + a.window : a.T;
  for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
    const float *row_lse = lse + (b * a.H + h) * a.T, *row_delta = delta + (b * a.H + h) * a.T;
    for (int64_t q0 = lo; q0 < hi; q0 += X::COLUMNS) {
      __syncthreads();
      load<T, DPAD>(q, X::COLUMNS, qkv + h * a.D, stride, q0, a, segment, wide);
      load<T, DPAD>(o, X::COLUMNS, dout + (b * a.T * a.H + h) * a.D, a.H * a.D, q0, a, segment, wide);
      __syncthreads();
      float s[N][4] = {}, dp[N][4] = {};
      mt_tile<X::COLUMNS, DPAD, MT_NK>(s, k + warp * 16 * X::LD, X::LD, q, X::LD);
      FOR_ELEMENTS (n, e, X::COLUMNS) {
        int64_t i = q0 + column_of(n, e);
        int seen = sees(a, segment, i, k0 + warp * 16 + row_of(e));
        s[n][e] = seen ? expf(s[n][e] * a.scale - row_lse[i]) : 0.0f;
        mt_put(p, row_of(e) * X::LDP + column_of(n, e), s[n][e]);
      }
      __syncwarp();
      mt_tile<X::CHUNK, X::COLUMNS, MT_KN>(dv, p, X::LDP, o + c0, X::LD);
      mt_tile<X::COLUMNS, DPAD, MT_NK>(dp, v + warp * 16 * X::LD, X::LD, o, X::LD);
      __syncwarp();
      FOR_ELEMENTS (n, e, X::COLUMNS) {
        int64_t i = q0 + column_of(n, e);
        float value = s[n][e] != 0 ? s[n][e] * (dp[n][e] - row_delta[i]) * a.scale : 0.0f; /* what is seen is below T */
        mt_put(p, row_of(e) * X::LDP + column_of(n, e), value);
      }
      __syncwarp();
      mt_tile<X::CHUNK, X::COLUMNS, MT_KN>(dk, p, X::LDP, q + c0, X::LD);
      __syncwarp();
    }
  }
  FOR_ELEMENTS (n, e, X::CHUNK) {
    int64_t row = k0 + warp * 16 + row_of(e), d = c0 + column_of(n, e);
    if (row < a.T && d < a.D) {
      T *to = dqkv + (b * a.T + row) * stride + (a.H + kv) * a.D + d;
      mt_put(to, 0, dk[n][e]);
      mt_put(to, a.KV * a.D, dv[n][e]);
    }
  }
}

/* ---- launching ---- */

static int64_t attention_work(const struct mt_device *device, const struct mt_attention *a)
{
  (void)device;
  return a->B * a->H * a->T * (int64_t)sizeof(float); /* delta */
}

template <typename T, int DPAD>
static void forward_of(struct mt_device *device, const struct mt_attention *a, int wide, void *out, float *lse,
                       const void *qkv)
{
  typedef tile<T, DPAD> X;
  MT_CUDA(cudaFuncSetAttribute(forward_kernel<T, DPAD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)X::FORWARD));
  MT_LAUNCH((forward_kernel<T, DPAD>), dim3((unsigned)(a->B * a->H * mt_divide_up(a->T, X::ROWS)), X::CHUNKS),
            X::THREADS, X::FORWARD, mt_math(device), *a, wide, (T *)out, lse, (const T *)qkv);
}

template <typename T, int DPAD>
static void back_of(struct mt_device *device, const struct mt_attention *a, int wide, void *dqkv, const void *dout,
                    const void *qkv, const void *out, const float *lse)
{
  typedef tile<T, DPAD> X;
  float *delta = (float *)device->work;
  int64_t tiles = mt_divide_up(a->T, X::ROWS);
  MT_CUDA(cudaFuncSetAttribute(dq_kernel<T, DPAD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)X::BACK));
  MT_CUDA(cudaFuncSetAttribute(dkv_kernel<T, DPAD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)X::BACK));
  MT_LAUNCH(delta_kernel<T>, (unsigned)mt_divide_up(a->B * a->T * a->H, MT_BLOCK / MT_WARP), MT_BLOCK, 0,
            mt_math(device), *a, delta, (const T *)dout, (const T *)out);
  MT_LAUNCH((dkv_kernel<T, DPAD>), dim3((unsigned)(a->B * a->KV * tiles), X::CHUNKS), X::THREADS, X::BACK,
            mt_math(device), *a, wide, (T *)dqkv, (const T *)dout, (const T *)qkv, lse, (const float *)delta);
  MT_LAUNCH((dq_kernel<T, DPAD>), dim3((unsigned)(a->B * a->H * tiles), X::CHUNKS), X::THREADS, X::BACK,
            mt_math(device), *a, wide, (T *)dqkv, (const T *)dout, (const T *)qkv, lse, (const float *)delta);
}

/* Calls f<T, DPAD> for the narrowest tile that holds a head. */
#define BY_WIDTH(f, T, a, ...)                                                                                         \
  do {                                                                                                                 \
    if ((a)->D <= 32)                                                                                                  \
      f<T, 32>(__VA_ARGS__);                                                                                           \
    else if ((a)->D <= 64)                                                                                             \
      f<T, 64>(__VA_ARGS__);                                                                                           \
    else if ((a)->D <= 128)                                                                                            \
      f<T, 128>(__VA_ARGS__);                                                                                          \
    else                                                                                                               \
      f<T, 256>(__VA_ARGS__);                                                                                          \
  } while (0)

static int nothing_to_do(const struct mt_attention *a)
{
  if (a->D > 256)
    mt_cuda_host->die(__FILE__, __LINE__, "attention heads of width %lld on a GPU, at most 256 are possible",
                      (long long)a->D);
  return a->B == 0 || a->T == 0 || a->H == 0 || a->D == 0;
}

/* 1 if rows of heads can be read 16 bytes at a time. */
static int is_wide(const struct mt_device *device, const struct mt_attention *a, const void *x, const void *y)
{
  return ((uintptr_t)x | (uintptr_t)y) % 16 == 0 && a->D * mt_dtype_size(device->ctype) % 16 == 0;
}

static void attention(struct mt_device *device, const struct mt_attention *a, void *out, float *lse, const void *qkv)
{
  if (nothing_to_do(a))
    return;
  int wide = is_wide(device, a, qkv, qkv);
  if (device->ctype == MT_F32)
    BY_WIDTH(forward_of, float, a, device, a, wide, out, lse, qkv);
  else
    BY_WIDTH(forward_of, mt_bf16, a, device, a, wide, out, lse, qkv);
}

static void attention_back(struct mt_device *device, const struct mt_attention *a, void *dqkv, const void *dout,
                           const void *qkv, const void *out, const float *lse)
{
  if (nothing_to_do(a))
    return;
  int wide = is_wide(device, a, qkv, dout);
  if (device->ctype == MT_F32)
    BY_WIDTH(back_of, float, a, device, a, wide, dqkv, dout, qkv, out, lse);
  else
    BY_WIDTH(back_of, mt_bf16, a, device, a, wide, dqkv, dout, qkv, out, lse);
}

void mt_cuda_attention(struct mt_kernels *kernels)
{
  kernels->attention_work = attention_work;
  kernels->attention = attention;
  kernels->attention_back = attention_back;
}
