"""The two oracle models: transformers' own modules, computed in double, under motley's parameter names.

Idea: nothing of the mathematics is written again where transformers has it. Mixtral is MixtralForCausalLM as it is;
where a layer is dense, its block is replaced by MistralMLP. Qwen is Qwen2MoeForCausalLM with a shared expert of width 0. GPT-2
is GPT2LMHeadModel with the MLP of its MoE layers replaced by Mixtral's sparse block, whose SwiGLU experts are replaced by
two-matrix GELU experts with biases. Written here are only these experts and the dropping of picks beyond a capacity.

Trap: transformers rounds to float32 inside (RMSNorm, softmax, RoPE, router), whatever the dtype of the weights. in_double()
makes those casts go to double; a directional derivative in make_vectors.py fails if one escapes."""

import contextlib
import math

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
from transformers.activations import ACT2FN
from transformers.models.mistral.modeling_mistral import MistralMLP
from transformers.models.mixtral import modeling_mixtral
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, MixtralTopKRouter
from transformers.models.qwen2_moe import modeling_qwen2_moe
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter


class _Wide:
    """torch, except that its float32 is float64."""

    float32 = torch.float64
    float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def in_double(on=True):
    """Inside, transformers' internal casts to float32 are casts to float64."""
    narrow = torch.Tensor.float
    if on:
        modeling_mixtral.torch = modeling_qwen2_moe.torch = _Wide()
        torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        modeling_mixtral.torch = modeling_qwen2_moe.torch = torch
        torch.Tensor.float = narrow


class GeluExperts(nn.Module):
    """Mixtral's loop over experts around y = c_proj(gelu(c_fc x)); same interface as MixtralExperts."""

    def __init__(self, experts, width, inner, activation):
        super().__init__()
        self.c_fc_weight = nn.Parameter(torch.zeros(experts, inner, width))
        self.c_fc_bias = nn.Parameter(torch.zeros(experts, inner))
        self.c_proj_weight = nn.Parameter(torch.zeros(experts, width, inner))
        self.c_proj_bias = nn.Parameter(torch.zeros(experts, width))
        self.act = ACT2FN[activation]

    def forward(self, x, index, weight):  # x (N, C), index and weight (N, K)
        out = torch.zeros_like(x)
        for e in range(self.c_fc_weight.shape[0]):
            token, k = torch.where(index == e)
            h = self.act(nn.functional.linear(x[token], self.c_fc_weight[e], self.c_fc_bias[e]))
            y = nn.functional.linear(h, self.c_proj_weight[e], self.c_proj_bias[e])
            out = out.index_add(0, token, y * weight[token, k, None])
        return out


def is_moe(layer, config):
    return (layer + 1) % config["decoder_sparse_step"] == 0


def _mixtral(c):
    hf = MixtralConfig(
        vocab_size=c["vocab_size"],
        hidden_size=c["hidden_size"],
        intermediate_size=c["intermediate_size"],
        num_hidden_layers=c["num_hidden_layers"],
        num_attention_heads=c["num_attention_heads"],
        num_key_value_heads=c["num_key_value_heads"],
        head_dim=c["head_dim"],
        max_position_embeddings=c["max_position_embeddings"],
        rms_norm_eps=c["rms_norm_eps"],
        num_experts_per_tok=c["num_experts_per_tok"],
        num_local_experts=c["num_local_experts"],
        router_aux_loss_coef=c["router_aux_loss_coef"],
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]},
        sliding_window=c.get("sliding_window"),
        tie_word_embeddings=False,
        output_router_logits=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    hf._attn_implementation = "eager"
    hf._experts_implementation = "eager"
    net = MixtralForCausalLM(hf)
    for i, layer in enumerate(net.model.layers):
        if not is_moe(i, c):
            layer.mlp = MistralMLP(hf)
    return net


def _qwen(c):
    window = c.get("sliding_window")
    hf = Qwen2MoeConfig(
        vocab_size=c["vocab_size"],
        hidden_size=c["hidden_size"],
        intermediate_size=c["intermediate_size"],
        moe_intermediate_size=c["intermediate_size"],
        shared_expert_intermediate_size=0,
        num_hidden_layers=c["num_hidden_layers"],
        num_attention_heads=c["num_attention_heads"],
        num_key_value_heads=c["num_key_value_heads"],
        head_dim=c["head_dim"],
        max_position_embeddings=c["max_position_embeddings"],
        rms_norm_eps=c["rms_norm_eps"],
        num_experts_per_tok=c["num_experts_per_tok"],
        num_experts=c["num_local_experts"],
        norm_topk_prob=True,
        decoder_sparse_step=c["decoder_sparse_step"],
        router_aux_loss_coef=c["router_aux_loss_coef"],
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]},
        use_sliding_window=window is not None,
        sliding_window=window,
        layer_types=["sliding_attention" if window else "full_attention"] * c["num_hidden_layers"],
        tie_word_embeddings=False,
        output_router_logits=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    hf._attn_implementation = "eager"
    hf._experts_implementation = "eager"
    return Qwen2MoeForCausalLM(hf)


def _gpt2(c):
    hf = GPT2Config(
        vocab_size=c["vocab_size"],
        n_positions=c["max_position_embeddings"],
        n_embd=c["hidden_size"],
        n_layer=c["num_hidden_layers"],
        n_head=c["num_attention_heads"],
        n_inner=c["intermediate_size"],
        activation_function="gelu_new",
        layer_norm_epsilon=c["layer_norm_epsilon"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    hf._attn_implementation = "eager"
    net = GPT2LMHeadModel(hf)
    sparse = MixtralConfig(
        hidden_size=c["hidden_size"],
        intermediate_size=c["intermediate_size"],
        num_local_experts=c["num_local_experts"],
        num_experts_per_tok=c["num_experts_per_tok"],
    )
    for i, block in enumerate(net.transformer.h):
        if is_moe(i, c):
            block.mlp = MixtralSparseMoeBlock(sparse)
            block.mlp.experts = GeluExperts(
                c["num_local_experts"], c["hidden_size"], c["intermediate_size"], hf.activation_function
            )
    return net


def _views(name, tensor, config):
    """(motley name, function tensor -> view of it) for each of motley's parameters that `tensor`, called `name` by the
    torch module, holds."""
    if config["family"] == "qwen":
        if name.endswith("mlp.experts.gate_up_proj"):
            half = tensor.shape[1] // 2
            return [
                (name.replace("gate_up_proj", "gate_proj.weight"), lambda t: t[:, :half]),
                (name.replace("gate_up_proj", "up_proj.weight"), lambda t: t[:, half:]),
            ]
        if name.endswith("mlp.experts.down_proj"):
            return [(name + ".weight", lambda t: t)]
        return [] if ".shared_expert" in name else [(name, lambda t: t)]
    if config["family"] == "mixtral":
        layer = name.split(".mlp.")[0] + ".block_sparse_moe"
        if name.endswith("mlp.experts.gate_up_proj"):
            half = tensor.shape[1] // 2
            return [
                (layer + ".experts.w1.weight", lambda t: t[:, :half]),
                (layer + ".experts.w3.weight", lambda t: t[:, half:]),
            ]
        if name.endswith("mlp.experts.down_proj"):
            return [(layer + ".experts.w2.weight", lambda t: t)]
        if name.endswith("mlp.gate.weight"):
            return [(layer + ".gate.weight", lambda t: t)]
        return [(name, lambda t: t)]
    for c in ("c_fc", "c_proj"):
        for kind in ("weight", "bias"):
            if name.endswith(f"mlp.experts.{c}_{kind}"):
                return [(name.replace(".mlp.", ".moe.").replace(f"{c}_{kind}", f"{c}.{kind}"), lambda t: t)]
    if name.endswith("mlp.gate.weight"):
        return [(name.replace(".mlp.", ".moe."), lambda t: t)]
    if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return [(name, lambda t: t.t())]  # Conv1D keeps [in, out]
    return [(name, lambda t: t)]


def decays(name):
    """Matrices decay; biases and norm weights do not."""
    return name.endswith(".weight") and not any(s in name for s in ("norm", "ln_"))


class Model:
    """A network and its parameters under motley's names.

    tensors: motley name -> (torch parameter, view); routers: the logits of the last forward, one (B, T, E) per MoE layer.
    """

    def __init__(self, config, values, double=True):
        self.config, self.double = config, double
        with in_double(double):
            net = {"mixtral": _mixtral, "qwen": _qwen, "gpt2": _gpt2}[config["family"]](config)
            self.net = net.double() if double else net.float()
        self.tensors = {}
        for name, tensor in self.net.named_parameters():
            for motley, view in _views(name, tensor, config):
                self.tensors[motley] = (tensor, view)
        self.logits_of = {}
        self.dropped = 0
        for name, module in self.net.named_modules():
            if isinstance(module, (MixtralTopKRouter, Qwen2MoeTopKRouter)):
                module.register_forward_hook(self._keep(name))
            if name.endswith("mlp.experts") and config.get("capacity_factor"):
                module.register_forward_pre_hook(self._drop)
        if values is not None:
            assert sorted(values) == sorted(self.tensors)
            with torch.no_grad():
                for name, (tensor, view) in self.tensors.items():
                    assert view(tensor).shape == values[name].shape, name
                    view(tensor).copy_(torch.from_numpy(values[name]))

    def _keep(self, name):
        def hook(module, inputs, outputs):
            self.logits_of[name] = outputs[0]

        return hook

    def _drop(self, module, inputs):
        """Picks beyond the capacity of an expert in a sequence, in token order, get weight 0; the others keep theirs."""
        x, index, weight = inputs
        c = self.config
        experts, k = c["num_local_experts"], c["num_experts_per_tok"]
        capacity = math.ceil(c["capacity_factor"] * k * self.positions / experts)
        chosen = nn.functional.one_hot(index.view(-1, self.positions, k), experts)  # (B, T, K, E)
        before = chosen.sum(2).cumsum(1) - chosen.sum(2)  # picks of the expert by earlier positions
        kept = ((before < capacity).unsqueeze(2) & (chosen > 0)).any(-1).view_as(index)
        self.dropped += int((~kept).sum())
        return x, index, weight * kept

    def shapes(self):
        return {name: tuple(view(tensor).shape) for name, (tensor, view) in self.tensors.items()}

    def forward(self, tokens, **kwargs):
        """tokens (B, T + 1) -> logits (B, T, V), router logits, transformers' own loss."""
        b, t = tokens.shape[0], tokens.shape[1] - 1
        self.logits_of.clear()
        self.positions, self.dropped = t, 0
        with in_double(self.double):
            out = self.net(tokens[:, :-1], labels=tokens[:, 1:], shift_labels=tokens[:, 1:].contiguous(), **kwargs)
        routers = [r.view(b, t, -1) for r in self.logits_of.values()]  # insertion order is layer order
        assert len(routers) == sum(is_moe(i, self.config) for i in range(self.config["num_hidden_layers"]))
        dtype = torch.float64 if self.double else torch.float32
        assert out.logits.dtype == dtype and all(r.dtype == dtype for r in routers)
        return out.logits, routers, out.loss

    def grads(self):
        return {name: view(tensor.grad).detach().numpy().copy() for name, (tensor, view) in self.tensors.items()}
