/* All ops under test. */
#include "ops_tests.h"

const struct ops_test *const ops_list[OPS_COUNT] = {
    &ops_linear,     &ops_linear_dx,      &ops_linear_dw,     &ops_norm,
    &ops_norm_back,  &ops_embed,          &ops_embed_back,    &ops_rope,
    &ops_attention,  &ops_attention_back, &ops_swiglu,        &ops_swiglu_back,
    &ops_gelu,       &ops_gelu_back,      &ops_gate_logits,   &ops_gate_logits_back,
    &ops_gate_topk,  &ops_gate_topk_back, &ops_gate_sums,     &ops_gather,
    &ops_combine,    &ops_combine_back,   &ops_cross_entropy, &ops_cross_entropy_back,
    &ops_vector_add, &ops_add_act,        &ops_convert,       &ops_sum_squares,
    &ops_adamw,
};
