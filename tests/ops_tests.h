/* The ops under test, by file. A new op: one struct here, in its file, and in ops_list.c. */
#ifndef MT_OPS_TESTS_H
#define MT_OPS_TESTS_H
#include "ops_harness.h"

extern const struct ops_test ops_linear, ops_linear_dx, ops_linear_dw;                     /* ops_linear.c */
extern const struct ops_test ops_norm, ops_norm_back, ops_embed, ops_embed_back, ops_rope; /* ops_rows.c */
extern const struct ops_test ops_swiglu, ops_swiglu_back, ops_gelu, ops_gelu_back;         /* ops_rows.c */
extern const struct ops_test ops_attention, ops_attention_back;                    /* ops_attention.c */
extern const struct ops_test ops_gate_logits, ops_gate_logits_back, ops_gate_topk; /* ops_router.c */
extern const struct ops_test ops_gate_topk_back, ops_gate_sums;                    /* ops_router.c */
extern const struct ops_test ops_gather, ops_combine, ops_combine_back;            /* ops_router.c */
extern const struct ops_test ops_cross_entropy, ops_cross_entropy_back;            /* ops_vector.c */
extern const struct ops_test ops_vector_add, ops_add_act, ops_convert, ops_sum_squares,
    ops_adamw; /* ops_vector.c */

/* All of them: an entry of the table each, but cross_entropy has two and attention_work none. */
enum { OPS_COUNT = sizeof(struct mt_kernels) / sizeof(void (*)(void)) };
extern const struct ops_test *const ops_list[OPS_COUNT]; /* ops_list.c */

/* ref against values worked out by hand: what a comparison of backends cannot see. */
void ops_known_values(void);
/* Rows of logits with NaNs and infinities on a device: K different experts each. */
void ops_nan_routing(struct mt_device *); /* ops_known.c */
/* A device's table has no empty entry, and its name is this one; its memory, copies between all spaces, and workspace. */
void ops_table(const char *name);  /* ops_known.c */
void ops_memory(const char *name); /* ops_known.c */

#endif
