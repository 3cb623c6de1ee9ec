/* The families as data: which tensors a model has, under which names, and how its blocks compute.
 *
 * Mixtral: RMSNorm, rotary positions, grouped-query attention, SwiGLU experts, untied head, no biases. Qwen: the same with
 * biases of q, k, v, under the names of Hugging Face's Qwen2-MoE (without its shared expert). GPT-2: LayerNorm, learned
 * positions, biases, GELU experts, tied head. q, k, v (and w1, w3) are packed side by side in their vector, so that one GEMM
 * computes them. The trap: GPT-2's published matrices are [in, out]; ours are [out, in] in every family. */
#include "model/model.h"
#include "base/memory.h"
#include <math.h>
#include <stdio.h>

enum { MATRIX = 1, VECTOR = 0 };

static int64_t shared(struct mt_params *params, int layer, int packed, int decay, float deviation, float fill,
                      const char *prefix, const char *name, int64_t rows, int64_t columns)
{
  int64_t dim[2] = {rows, columns};
  return mt_params_add(params, MT_SCOPE_SHARED, layer, -1, packed, decay, deviation, fill, columns ? 2 : 1, dim, "%s%s", prefix,
                       name)
      ->offset;
}

static int64_t expert(struct mt_params *params, int layer, int moe, int packed, int decay, float deviation, const char *prefix,
                   const char *name, int64_t rows, int64_t columns)
{
  int64_t dim[2] = {rows, columns};
  return mt_params_add(params, MT_SCOPE_EXPERT, layer, moe, packed, decay, deviation, 0, columns ? 2 : 1, dim, "%sexperts.%s",
                       prefix, name)
      ->offset;
}

static void mixtral(struct mt_arch *arch, struct mt_params *params, float std, int qwen)
{
  const int64_t C = arch->C, HD = arch->H * arch->D, KD = arch->KV * arch->D, F = arch->F;
  arch->wte = shared(params, -1, 0, MATRIX, std, 0, "model.", "embed_tokens.weight", arch->V, C);
  for (int l = 0; l < arch->L; l++) {
    struct mt_block *block = &arch->block[l];
    char at[64];
    snprintf(at, sizeof at, "model.layers.%d.", l);
    block->norm1_w = shared(params, l, 0, VECTOR, 0, 1, at, "input_layernorm.weight", C, 0);
    block->qkv_w = shared(params, l, 0, MATRIX, std, 0, at, "self_attn.q_proj.weight", HD, C);
    shared(params, l, 1, MATRIX, std, 0, at, "self_attn.k_proj.weight", KD, C);
    shared(params, l, 1, MATRIX, std, 0, at, "self_attn.v_proj.weight", KD, C);
    if (qwen) {
      block->qkv_b = shared(params, l, 0, VECTOR, 0, 0, at, "self_attn.q_proj.bias", HD, 0);
      shared(params, l, 1, VECTOR, 0, 0, at, "self_attn.k_proj.bias", KD, 0);
      shared(params, l, 1, VECTOR, 0, 0, at, "self_attn.v_proj.bias", KD, 0);
    }
    block->o_w = shared(params, l, 0, MATRIX, std, 0, at, "self_attn.o_proj.weight", C, HD);
    block->norm2_w = shared(params, l, 0, VECTOR, 0, 1, at, "post_attention_layernorm.weight", C, 0);
    if (block->moe < 0) {
      block->in_w = shared(params, l, 0, MATRIX, std, 0, at, "mlp.gate_proj.weight", F, C);
      shared(params, l, 1, MATRIX, std, 0, at, "mlp.up_proj.weight", F, C);
      block->out_w = shared(params, l, 0, MATRIX, std, 0, at, "mlp.down_proj.weight", C, F);
      continue;
    }
    snprintf(at, sizeof at, "model.layers.%d.%s.", l, qwen ? "mlp" : "block_sparse_moe");
    block->gate_w = shared(params, l, 0, MATRIX, std, 0, at, "gate.weight", arch->E, C);
    params->in_w = expert(params, l, block->moe, 0, MATRIX, std, at, qwen ? "gate_proj.weight" : "w1.weight", F, C);
    expert(params, l, block->moe, 1, MATRIX, std, at, qwen ? "up_proj.weight" : "w3.weight", F, C);
    params->out_w = expert(params, l, block->moe, 0, MATRIX, std, at, qwen ? "down_proj.weight" : "w2.weight", C, F);
  }
  arch->norm_w = shared(params, -1, 0, VECTOR, 0, 1, "model.", "norm.weight", C, 0);
  arch->head = arch->tied ? arch->wte : shared(params, -1, 0, MATRIX, std, 0, "", "lm_head.weight", arch->V, C);
}

static void gpt2(struct mt_arch *arch, struct mt_params *params, float std)
{
  const int64_t C = arch->C, HD = arch->H * arch->D, KD = arch->KV * arch->D, F = arch->F;
  /* projections into the residual stream start smaller, as GPT-2's did: 2 L of them add up */
  const float small = std / sqrtf(2.0f * (float)arch->L);
  arch->wte = shared(params, -1, 0, MATRIX, std, 0, "transformer.", "wte.weight", arch->V, C);
  arch->wpe = shared(params, -1, 0, MATRIX, std, 0, "transformer.", "wpe.weight", arch->Tmax, C);
  for (int l = 0; l < arch->L; l++) {
    struct mt_block *block = &arch->block[l];
    char at[64];
    snprintf(at, sizeof at, "transformer.h.%d.", l);
    block->norm1_w = shared(params, l, 0, VECTOR, 0, 1, at, "ln_1.weight", C, 0);
    block->norm1_b = shared(params, l, 0, VECTOR, 0, 0, at, "ln_1.bias", C, 0);
    block->qkv_w = shared(params, l, 0, MATRIX, std, 0, at, "attn.c_attn.weight", HD + 2 * KD, C);
    block->qkv_b = shared(params, l, 0, VECTOR, 0, 0, at, "attn.c_attn.bias", HD + 2 * KD, 0);
    block->o_w = shared(params, l, 0, MATRIX, small, 0, at, "attn.c_proj.weight", C, HD);
    block->o_b = shared(params, l, 0, VECTOR, 0, 0, at, "attn.c_proj.bias", C, 0);
    block->norm2_w = shared(params, l, 0, VECTOR, 0, 1, at, "ln_2.weight", C, 0);
    block->norm2_b = shared(params, l, 0, VECTOR, 0, 0, at, "ln_2.bias", C, 0);
    if (block->moe < 0) {
      block->in_w = shared(params, l, 0, MATRIX, std, 0, at, "mlp.c_fc.weight", F, C);
      block->in_b = shared(params, l, 0, VECTOR, 0, 0, at, "mlp.c_fc.bias", F, 0);
      block->out_w = shared(params, l, 0, MATRIX, small, 0, at, "mlp.c_proj.weight", C, F);
      block->out_b = shared(params, l, 0, VECTOR, 0, 0, at, "mlp.c_proj.bias", C, 0);
      continue;
    }
    snprintf(at, sizeof at, "transformer.h.%d.moe.", l);
    block->gate_w = shared(params, l, 0, MATRIX, std, 0, at, "gate.weight", arch->E, C);
    params->in_w = expert(params, l, block->moe, 0, MATRIX, std, at, "c_fc.weight", F, C);
    params->in_b = expert(params, l, block->moe, 0, VECTOR, 0, at, "c_fc.bias", F, 0);
    params->out_w = expert(params, l, block->moe, 0, MATRIX, small, at, "c_proj.weight", C, F);
    params->out_b = expert(params, l, block->moe, 0, VECTOR, 0, at, "c_proj.bias", C, 0);
  }
  arch->norm_w = shared(params, -1, 0, VECTOR, 0, 1, "transformer.", "ln_f.weight", C, 0);
  arch->norm_b = shared(params, -1, 0, VECTOR, 0, 0, "transformer.", "ln_f.bias", C, 0);
  arch->head = arch->tied ? arch->wte : shared(params, -1, 0, MATRIX, std, 0, "", "lm_head.weight", arch->V, C);
}

void mt_family_build(const struct mt_config *config, struct mt_arch *arch, struct mt_params *params)
{
  const int gpt2_style = config->model.family == MT_FAMILY_GPT2;
  *arch = (struct mt_arch){
      .C = config->model.hidden_size, .L = config->model.num_hidden_layers, .H = config->model.num_attention_heads,
      .KV = config->model.num_key_value_heads, .D = config->model.head_dim, .F = config->model.intermediate_size,
      .E = config->model.num_local_experts, .K = config->model.num_experts_per_tok, .V = config->model.vocab_size,
      .Tmax = config->model.max_position_embeddings, .window = config->model.sliding_window,
      .norm = gpt2_style ? MT_NORM_LAYER : MT_NORM_RMS,
      .eps = (float)config->model.norm_eps, .rope_theta = (float)config->model.rope_theta, .rope = !gpt2_style,
      .gated = !gpt2_style, .tied = config->model.tie_word_embeddings, .wpe = -1, .norm_b = -1};
  arch->block = MT_NEW(MT_TAG_PLAN, struct mt_block, arch->L);
  params->nexpert = (int)arch->E;
  params->in_b = params->out_b = -1;
  for (int l = 0; l < arch->L; l++) {
    arch->block[l] = (struct mt_block){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    if (arch->E > 0 && (l + 1) % config->model.decoder_sparse_step == 0)
      arch->block[l].moe = params->nmoe++;
  }
  if (gpt2_style)
    gpt2(arch, params, (float)config->model.initializer_range);
  else
    mixtral(arch, params, (float)config->model.initializer_range, config->model.family == MT_FAMILY_QWEN);
  /* vectors of one kind lie side by side, each aligned, as are blocks of the shared one */
  const int64_t blocks = 16 * MT_SHARED_BLOCKS;
  params->shared_length = (params->shared_length + blocks - 1) / blocks * blocks;
  params->expert_length = (params->expert_length + 15) & ~(int64_t)15;
}
