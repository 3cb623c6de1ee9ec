/* Rows by index: embedding, rotary embedding, rows to and from experts. A block for a row.
 *
 * The trap: several rows may add to one. No atomics are needed: combine gathers what belongs to a token, and in
 * embed_back the first row that has a token adds for all of them, in ascending order, so that the bits are those of
 * every other device. */
#include "cuda.cuh"

/* ---- embedding ---- */

template <typename T>
__global__ static void embed_kernel(T *x, const int32_t *token, const int32_t *position, const T *wte, const T *wpe,
                                    int64_t c)
{
  int64_t r = blockIdx.x;
  wte += token[r] * c;
  if (wpe)
    wpe += position[r] * c;
  for (int64_t i = threadIdx.x; i < c; i += blockDim.x)
    mt_put(x, r * c + i, mt_get(wte, i) + (wpe ? mt_get(wpe, i) : 0.0f));
}

/* dw[index[r]] += dx[r]. Blocks of MT_BLOCK threads. */
template <typename T>
__global__ static void embed_back_kernel(float *dw, const T *dx, const int32_t *index, int64_t n, int64_t c)
{
  MT_SHARED(int, match, MT_BLOCK);
  MT_SHARED(int, before, MT_BLOCK / MT_WARP + 1);
  int64_t first = blockIdx.x;
  int32_t mine = index[first];
  int warp = threadIdx.x / MT_WARP, lane = threadIdx.x % MT_WARP;
  for (int64_t r0 = 0; r0 < first; r0 += MT_BLOCK) {
    int64_t r = r0 + threadIdx.x;
    if (__syncthreads_or(r < first && index[r] == mine))
      return; /* an earlier row adds this one too */
  }
  dw += mine * c;
  for (int64_t r0 = first; r0 < n; r0 += MT_BLOCK) {
    int64_t r = r0 + threadIdx.x;
    int is = r < n && index[r] == mine;
    unsigned lanes = __ballot_sync(MT_ALL_LANES, is);
    if (lane == 0)
      before[warp + 1] = __popc(lanes);
    __syncthreads();
    if (threadIdx.x == 0) {
      before[0] = 0;
      for (int w = 0; w < MT_BLOCK / MT_WARP; w++)
        before[w + 1] += before[w];
    }
    __syncthreads();
    if (is)
      match[before[warp] + __popc(lanes & ((1u << lane) - 1))] = (int)threadIdx.x;
    __syncthreads();
    int matches = before[MT_BLOCK / MT_WARP];
    for (int64_t i = threadIdx.x; i < c && matches > 0; i += MT_BLOCK) {
      float sum = dw[i];
      for (int m = 0; m < matches; m++)
        sum += mt_get(dx, (r0 + match[m]) * c + i);
      dw[i] = sum;
    }
    __syncthreads();
  }
}

template <typename T>
static void embed_of(struct mt_device *device, void *x, const int32_t *token, const int32_t *position, const void *wte,
                     const void *wpe, int64_t n, int64_t c)
{
  if (n > 0 && c > 0)
    MT_LAUNCH(embed_kernel<T>, (unsigned)n, mt_row_threads(c), 0, mt_math(device), (T *)x, token, position,
              (const T *)wte, (const T *)wpe, c);
}

static void embed(struct mt_device *device, void *x, const int32_t *token, const int32_t *position, const void *wte,
                  const void *wpe, int64_t n, int64_t c)
{
  MT_BY_TYPE(device->ctype, embed_of, device, x, token, position, wte, wpe, n, c);
}

template <typename T>
static void embed_back_of(struct mt_device *device, float *dwte, float *dwpe, const void *dx, const int32_t *token,
                          const int32_t *position, int64_t n, int64_t c)
{
  if (n == 0 || c == 0)
    return;
  MT_LAUNCH(embed_back_kernel<T>, (unsigned)n, MT_BLOCK, 0, mt_math(device), dwte, (const T *)dx, token, n, c);
  if (dwpe)
    MT_LAUNCH(embed_back_kernel<T>, (unsigned)n, MT_BLOCK, 0, mt_math(device), dwpe, (const T *)dx, position, n, c);
}

static void embed_back(struct mt_device *device, float *dwte, float *dwpe, const void *dx, const int32_t *token,
                       const int32_t *position, int64_t n, int64_t c)
{
  MT_BY_TYPE(device->ctype, embed_back_of, device, dwte, dwpe, dx, token, position, n, c);
}

/* ---- rotary embedding ---- */

template <typename T>
__global__ static void rope_kernel(T *x, int64_t stride, int64_t heads, int half, const int32_t *position,
                                   const float *table, int inverse)
{
  int64_t r = blockIdx.x;
  x += r * stride;
  table += (int64_t)position[r] * half * 2;
  for (int64_t k = threadIdx.x; k < heads * half; k += blockDim.x) {
    int64_t h = k / half, i = k % half, low = h * 2 * half + i;
    float c = table[2 * i], s = inverse ? -table[2 * i + 1] : table[2 * i + 1];
    float a = mt_get(x, low), b = mt_get(x, low + half);
    mt_put(x, low, a * c - b * s);
    mt_put(x, low + half, b * c + a * s);
  }
}

template <typename T>
static void rope_of(struct mt_device *device, void *x, int64_t n, int64_t stride, int64_t heads, int64_t D,
                    const int32_t *position, const float *table, int inverse)
{
  if (n > 0 && heads > 0 && D > 0)
    MT_LAUNCH(rope_kernel<T>, (unsigned)n, mt_row_threads(heads * (D / 2)), 0, mt_math(device), (T *)x, stride, heads,
              (int)(D / 2), position, table, inverse);
}

static void rope(struct mt_device *device, void *x, int64_t n, int64_t stride, int64_t heads, int64_t D,
                 const int32_t *position, const float *table, int inverse)
{
  MT_BY_TYPE(device->ctype, rope_of, device, x, n, stride, heads, D, position, table, inverse);
}

/* ---- rows to and from experts ---- */

template <typename To, typename From>
__global__ static void gather_kernel(To *to, const From *from, const int32_t *index, int64_t width)
{
  int64_t r = blockIdx.x;
  from += index[r] * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    mt_put(to, r * width + i, mt_get(from, i));
}

/* Rows of one element: a thread for a row. */
template <typename To, typename From>
__global__ static void pick_kernel(To *to, const From *from, const int32_t *index, int64_t rows)
{
  MT_FOR_EACH (r, rows)
    mt_put(to, r, mt_get(from, index[r]));
}

template <typename To, typename From>
static void gather_of(struct mt_device *device, void *to, const void *from, const int32_t *index, int64_t rows,
                      int64_t width)
{
  if (rows == 0 || width == 0)
    return;
  if (width == 1)
    MT_LAUNCH((pick_kernel<To, From>), mt_grid(rows), MT_BLOCK, 0, mt_math(device), (To *)to, (const From *)from, index,
              rows);
  else
    MT_LAUNCH((gather_kernel<To, From>), (unsigned)rows, mt_row_threads(width), 0, mt_math(device), (To *)to,
              (const From *)from, index, width);
}

static void gather(struct mt_device *device, void *to, enum mt_dtype to_type, const void *from, enum mt_dtype from_type,
                   const int32_t *index, int64_t rows, int64_t width)
{
  MT_BY_TYPES(to_type, from_type, gather_of, device, to, from, index, rows, width);
}

template <typename T, typename R>
__global__ static void combine_kernel(T *y, int add, const R *row, const int32_t *first, const int32_t *place,
                                      const float *weight, int64_t width)
{
  int64_t t = blockIdx.x;
  int32_t begin = first[t], end = first[t + 1];
  for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
    float sum = 0;
    for (int32_t i = begin; i < end; i++)
      sum += (weight ? weight[i] : 1.0f) * mt_get(row, place[i] * width + j);
    mt_put_add(y, t * width + j, sum, add);
  }
}

template <typename T, typename R>
__global__ static void combine_back_kernel(R *drow, float *dweight, const T *dy, const R *row, const int32_t *first,
                                           const int32_t *place, const float *weight, int64_t width)
{
  int64_t t = blockIdx.x;
  int32_t begin = first[t], end = first[t + 1];
  dy += t * width;
  for (int32_t i = begin; i < end; i++) {
    float dot = 0, w = weight ? weight[i] : 1.0f;
    int64_t at = place[i] * width;
    for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      float d = mt_get(dy, j);
      if (dweight)
        dot += d * mt_get(row, at + j);
      mt_put(drow, at + j, w * d);
    }
    if (dweight) { /* the same for all threads */
      dot = mt_block_fold(dot, mt_plus{});
      if (threadIdx.x == 0)
        dweight[i] = dot;
    }
  }
}

template <typename T, typename R>
static void combine_of(struct mt_device *device, void *y, int add, const void *row, const int32_t *first,
                       const int32_t *place, const float *weight, int64_t n, int64_t width)
{
  if (n > 0 && width > 0)
    MT_LAUNCH((combine_kernel<T, R>), (unsigned)n, mt_row_threads(width), 0, mt_math(device), (T *)y, add,
              (const R *)row, first, place, weight, width);
}

static void combine(struct mt_device *device, void *y, int add, const void *row, enum mt_dtype row_type,
                    const int32_t *first, const int32_t *place, const float *weight, int64_t n, int64_t width)
{
  MT_BY_TYPES(device->ctype, row_type, combine_of, device, y, add, row, first, place, weight, n, width);
}

template <typename T, typename R>
static void combine_back_of(struct mt_device *device, void *drow, float *dweight, const void *dy, const void *row,
                            const int32_t *first, const int32_t *place, const float *weight, int64_t n, int64_t width)
{
  if (n > 0)
    MT_LAUNCH((combine_back_kernel<T, R>), (unsigned)n, mt_row_threads(width), 0, mt_math(device), (R *)drow, dweight,
              (const T *)dy, (const R *)row, first, place, weight, width);
}

static void combine_back(struct mt_device *device, void *drow, float *dweight, const void *dy, const void *row,
                         enum mt_dtype row_type, const int32_t *first, const int32_t *place, const float *weight,
                         int64_t n, int64_t width)
{
  MT_BY_TYPES(device->ctype, row_type, combine_back_of, device, drow, dweight, dy, row, first, place, weight, n, width);
}

void mt_cuda_rows(struct mt_kernels *kernels)
{
  kernels->embed = embed;
  kernels->embed_back = embed_back;
  kernels->rope = rope;
  kernels->gather = gather;
  kernels->combine = combine;
  kernels->combine_back = combine_back;
}
