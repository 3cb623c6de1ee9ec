/* CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected): the checksum of checkpoints and batches. */
#ifndef MT_CRC32C_H
#define MT_CRC32C_H
#include <stdint.h>

/* The checksum of bytes appended to data whose checksum is crc; 0 starts. crc32c("123456789") = 0xe3069283. Local. */
uint32_t mt_crc32c(uint32_t crc, const void *data, int64_t bytes);
/* The checksum of A followed by B from those of A and of B and the length of B: pieces that ranks hold apart combine to
 * the whole's checksum without moving the data. (By powers of x modulo the polynomial, as in M. Adler's zlib.) Local. */
uint32_t mt_crc32c_combine(uint32_t a, uint32_t b, int64_t bytes_b);
/* mt_crc32c without the CPU's instruction for it; for tests. */
uint32_t mt_crc32c_portable(uint32_t crc, const void *data, int64_t bytes);

#endif
