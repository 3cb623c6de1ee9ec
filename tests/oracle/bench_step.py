#!/usr/bin/env python3
"""The step of tests/bench/step.ini in PyTorch, on the CPU or a GPU: a peer for `motley bench step`.

The same model (RMSNorm, rotary positions, grouped-query attention, 8 SwiGLU experts top-2, dropless, untied head), the same batch
of 4 x 512 random tokens, forward, backward, clipping and AdamW, written as one would for speed: one q/k/v product, fused attention,
rows sorted by expert, fused AdamW. Prints tokens/s as the median of some steps.

    python3 tests/oracle/bench_step.py [--threads 2] [--steps 7] [--compile] [--device cuda --bf16] [--sizes C=4096,L=1,...]

Needs torch from PyPI; neither the build nor the tests need this script.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

C, L, H, KV, E, K, WIDTH, V, T, B = 512, 8, 8, 4, 8, 2, 1792, 32000, 512, 4
D = C // H


def rope(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(C, eps=1e-5), nn.RMSNorm(C, eps=1e-5)
        self.qkv = nn.Linear(C, (H + 2 * KV) * D, bias=False)
        self.out = nn.Linear(H * D, C, bias=False)
        self.gate = nn.Linear(C, E, bias=False)
        self.w13 = nn.ParameterList(nn.Parameter(torch.randn(2 * WIDTH, C) * 0.02) for _ in range(E))
        self.w2 = nn.ParameterList(nn.Parameter(torch.randn(C, WIDTH) * 0.02) for _ in range(E))

    def attention(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).split((H * D, KV * D, KV * D), dim=-1)
        q, k, v = (t.view(B, T, -1, D).transpose(1, 2) for t in (q, k, v))
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(B, T, H * D))

    def experts(self, x):
        x = x.reshape(-1, C)
        logits = self.gate(x)
        p = logits.float().softmax(-1)
        weight, expert = p.topk(K, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        order = expert.flatten().argsort(stable=True)
        token = order // K
        rows = x[token].split(torch.bincount(expert.flatten(), minlength=E).tolist())
        done = []
        for e, r in enumerate(rows):
            a, b = F.linear(r, self.w13[e]).chunk(2, dim=-1)
            done.append(F.linear(F.silu(a) * b, self.w2[e]))
        y = torch.cat(done) * weight.flatten()[order, None]
        picks = F.one_hot(expert, E).sum(1).view(B, T, E).float().mean(1)
        aux = E * (picks * p.view(B, T, E).mean(1)).sum(-1).mean()
        return torch.zeros_like(x).index_add_(0, token, y).view(B, T, C), aux

    def forward(self, x, cos, sin):
        x = x + self.attention(x, cos, sin)
        y, aux = self.experts(self.norm2(x))
        return x + y, aux


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.RMSNorm(C, eps=1e-5)
        self.head = nn.Linear(C, V, bias=False)
        angle = torch.arange(T)[:, None] * 1e6 ** (-torch.arange(0, D, 2) / D)
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos())
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x, aux = self.embed(tokens[:, :-1]), 0
        for block in self.blocks:
            x, a = block(x, self.cos, self.sin)
            aux = aux + a
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, V), tokens[:, 1:].reshape(-1)) + 0.001 * aux / L


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=7)
    arguments.add_argument("--compile", action="store_true")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--bf16", action="store_true", help="autocast")
    arguments.add_argument("--sizes", default="", help="of C, L, H, KV, E, K, WIDTH, V, T, B: NAME=NUMBER,...")
    options = arguments.parse_args()
    for size in filter(None, options.sizes.split(",")):
        name, number = size.split("=")
        globals()[name] = int(number)
    globals()["D"] = C // H
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    with torch.device(options.device):  # large weights are not made on the CPU first
        model = Model()
    forward = torch.compile(model) if options.compile else model
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    adamw = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                              lr=3e-4, betas=(0.9, 0.95), fused=True)
    seconds = []
    for step in range(options.steps + 2):
        tokens = torch.randint(V, (B, T + 1), device=options.device)
        begin = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.bf16):
            loss = forward(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        adamw.step()
        adamw.zero_grad(set_to_none=False)
        if options.device != "cpu":
            torch.cuda.synchronize()
        if step >= 2:
            seconds.append(time.perf_counter() - begin)
            print(f"  {step - 1} of {options.steps}: {seconds[-1]:.3f} s, loss {loss.item():.3f}", flush=True)
    middle = statistics.median(seconds)
    print(f"PyTorch {torch.__version__}, {options.device}, {options.threads} threads: {middle:.4f} s a step ({min(seconds):.4f} to "
          f"{max(seconds):.4f}), {B * T / middle:.0f} tokens/s")


if __name__ == "__main__":
    main()
