/* CRC-32C; see crc32c.h.
 *
 * Where the CPU has an instruction for it (SSE4.2) it is used, chosen at run time; else tables for eight
 * bytes at a time
 * ("slicing by 8": Kounavis and Berry, "A systematic approach to building high performance software-based CRC
 * generators", ISCC 2005). */
#include "crc32c.h"
#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected: bit 31 is x^0 */

static uint32_t table[8][256]; /* table[k][b]: byte b followed by k zero bytes */
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; bit++)
      crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
    table[0][b] = crc;
  }
  for (int k = 1; k < 8; k++)
    for (int b = 0; b < 256; b++)
      table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t mt_crc32c_portable(uint32_t crc, const void *data, int64_t bytes)
{
  pthread_once(&table_once, make_table);
  const unsigned char *p = data;
  crc = ~crc;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint32_t low = crc ^ (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
          table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
  }
  for (; bytes > 0; p++, bytes--)
    crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
  return ~crc;
}

#if defined __x86_64__ && defined __GNUC__
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *data,
                                                                 int64_t bytes)
{
  const unsigned char *p = data;
  uint64_t wide = ~crc;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    memcpy(&word, p, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  uint32_t narrow = (uint32_t)wide;
  for (; bytes > 0; p++, bytes--)
    narrow = __builtin_ia32_crc32qi(narrow, *p);
  return ~narrow;
}

uint32_t mt_crc32c(uint32_t crc, const void *data, int64_t bytes)
{
  return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, data, bytes)
                                          : mt_crc32c_portable(crc, data, bytes);
}
#else
uint32_t mt_crc32c(uint32_t crc, const void *data, int64_t bytes)
{
  return mt_crc32c_portable(crc, data, bytes);
}
#endif

/* The product of two polynomials modulo the generator, in the reflected form (bit 31 is x^0). */
static uint32_t multiply(uint32_t a, uint32_t b)
{
  uint32_t product = 0;
  for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
    if (a & bit)
      product ^= b;
    b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
  }
  return product;
}

uint32_t mt_crc32c_combine(uint32_t a, uint32_t b, int64_t bytes_b)
{
  /* Appending n zero bytes multiplies by x^(8n); the inversions before and after cancel between a and b. */
  uint32_t shift = UINT32_C(1) << 31, square = UINT32_C(1) << 23; /* x^0, x^8 */
  for (uint64_t n = (uint64_t)bytes_b; n; n >>= 1) {
    if (n & 1)
      shift = multiply(shift, square);
    square = multiply(square, square);
  }
  return multiply(shift, a) ^ b;
}
