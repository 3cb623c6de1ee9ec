/* Which of a router's picks count where an expert takes only so many rows of a sequence.
 *
 * The problem: capacities of other programs are those of a micro-batch on a rank, so that the same model
 * drops other tokens when it is cut in another way. The idea: capacity is per sequence and expert, and within
 * a sequence the picks of an expert count in token order, so that no split changes what is dropped, and no
 * token depends on a later one. A pick that does not count is a triple less in the routing; the weights of
 * those that count stay as the router gave them (as in Megatron-LM and Tutel; DeepSpeed divides by their
 * sum): what was dropped is then missing from the residual stream, and a token that lost one expert does not
 * lean on the other with a strength that it never learned. */
#ifndef MT_CAPACITY_H
#define MT_CAPACITY_H
#include <stdint.h>

/* Rows that an expert takes of a sequence of T tokens: ceil(factor K T / E), T at most. factor > 0. Pure. */
int64_t mt_capacity(double factor, int64_t T, int64_t K, int64_t E);

/* From the picks expert[B T, K] of B sequences (each token's K are different) to triples of those that count,
 * in token order, in the order of picks within a token. Writes first[B T + 1] (triples of token t: [first[t],
 * first[t + 1]) less `base`), kept[R] the experts, pick[R] the number t K + k of a triple's pick, triple[B T K] the
 * triple of a pick, R where it does not count; kept and pick must have room for B T K. Returns R. Local;
 * cannot fail. */
int64_t mt_capacity_keep(int64_t capacity, const int32_t *expert, int64_t B, int64_t T, int64_t K, int64_t E,
                         int64_t base, int32_t *first, int32_t *kept, int32_t *pick, int32_t *triple);

#endif
