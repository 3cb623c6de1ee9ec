#!/usr/bin/env python3
"""Makes tests/vectors/*.h5: logits, losses, gradients and loss curves of small MoE models from an independent
implementation (PyTorch and transformers, in double); see README.md here and ../vectors/README.md for the layout.

Traps that the asserts below guard against: a float32 cast inside (directional derivative), a top-k that rounding can turn
(margins), a curve on which single precision leaves double (the same curve in float32), a curve that would not notice a
wrong optimizer (curves with one mistake each), gradients too small to be compared."""

import argparse
import math
import os

import h5py
import numpy as np
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from models import Model, decays, in_double

MIXTRAL = dict(
    family="mixtral",
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    intermediate_size=20,
    num_local_experts=4,
    num_experts_per_tok=2,
    vocab_size=40,
    max_position_embeddings=16,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    decoder_sparse_step=1,
    router_aux_loss_coef=0.05,
)
MIXTRAL_ODD = dict(
    MIXTRAL,
    hidden_size=15,
    num_hidden_layers=4,
    num_attention_heads=3,
    num_key_value_heads=1,
    intermediate_size=11,
    num_local_experts=5,
    num_experts_per_tok=3,
    vocab_size=37,
    decoder_sparse_step=2,
    rope_theta=1000.0,
    rms_norm_eps=1e-3,
)
# Smaller, so that a window and a capacity are hit often: a position sees 4, an expert takes 4 of the 9 of a sequence.
MIXTRAL_DROP = dict(
    MIXTRAL,
    hidden_size=16,
    head_dim=4,
    intermediate_size=12,
    vocab_size=24,
    sliding_window=4,
    capacity_factor=0.8,
)
QWEN_ODD = dict(
    MIXTRAL_ODD,
    family="qwen",
    intermediate_size=9,
    vocab_size=29,
    rope_theta=500.0,
    rms_norm_eps=1e-6,
    sliding_window=3,
)
GPT2 = dict(
    family="gpt2",
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=20,
    num_local_experts=4,
    num_experts_per_tok=2,
    vocab_size=40,
    max_position_embeddings=16,
    layer_norm_epsilon=1e-5,
    decoder_sparse_step=1,
    router_aux_loss_coef=0.05,
)
GPT2_ODD = dict(
    GPT2,
    hidden_size=15,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=11,
    num_local_experts=5,
    num_experts_per_tok=3,
    vocab_size=37,
    max_position_embeddings=7,
    decoder_sparse_step=2,
    layer_norm_epsilon=1e-3,
)
TRAIN = dict(
    steps=50,
    global_batch=3,
    lr=0.004,
    warmup=5,
    schedule="cosine",
    decay_steps=40,
    min_lr=0.0004,
    weight_decay=0.5,
    betas="0.9,0.95",
    eps=1e-8,
    clip=2.5,
)
# file: model, B, T, z-loss coefficient, seed (found by --search), training or None
CASES = {
    "mixtral": (MIXTRAL, 3, 9, 0.01, 14, TRAIN),
    "mixtral-odd": (MIXTRAL_ODD, 2, 7, 0.01, 1, None),
    "mixtral-drop": (MIXTRAL_DROP, 3, 9, 0.01, 0, None),
    "qwen-odd": (QWEN_ODD, 2, 7, 0.01, 2, None),
    "gpt2": (GPT2, 3, 9, 0.01, 3, TRAIN),
    "gpt2-odd": (GPT2_ODD, 2, 7, 0.01, 0, None),
}
MARGIN = 1e-2  # smallest gap between the K-th and the next router logit of a vector
CURVE_MARGIN = 1e-3  # the same over a whole curve
ROUNDING = 3e-5  # largest distance of the float32 curve from the double one
NOTICED = 1e-3  # smallest distance of a curve with one mistake


def draw(config, b, t, seed, batches):
    """Parameters (float32) and tokens (batches, B, T + 1), from numpy's generator: independent of torch's version."""
    rng = np.random.default_rng(seed)
    values = {}
    for name, shape in sorted(Model(config, None).shapes().items()):
        x = rng.standard_normal(shape)
        if not name.endswith(".weight"):
            x = 0.2 * x
        elif not decays(name):
            x = 1 + 0.1 * x
        elif ".gate.weight" in name:
            x = 0.4 * x
        elif "wpe" in name:
            x = 0.2 * x
        else:
            x = 0.3 * x
        values[name] = x.astype(np.float32)
    tokens = rng.integers(0, config["vocab_size"], (batches, b, t + 1))
    return values, tokens


def margin(routers, k):
    """Smallest gap between the K-th and the (K+1)-th router logit."""
    gaps = [torch.sort(r.detach(), dim=-1, descending=True).values for r in routers]
    return min((s[..., k - 1] - s[..., k]).min().item() for s in gaps)


def losses(model, tokens, z_coef, scope):
    """Logits, router logits and {ce, aux, z, loss}; scope as motley's moe.aux_scope."""
    c = model.config
    k, experts = c["num_experts_per_tok"], c["num_local_experts"]
    logits, routers, theirs = model.forward(tokens)
    ce = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    z = torch.stack([torch.logsumexp(r, -1).square().mean() for r in routers]).mean()
    if scope == "micro_batch":
        with in_double(model.double):
            aux = load_balancing_loss_func(tuple(r.flatten(0, 1) for r in routers), experts, k)
    else:  # E sum_e f_e P_e of each sequence and layer; f counts picks over T, so its sum is K
        parts = []
        for r in routers:
            picks = torch.topk(r, k, -1).indices
            f = torch.nn.functional.one_hot(picks, experts).sum(2).to(r.dtype).mean(1)  # (B, E), no gradient
            p = torch.softmax(r, -1).mean(1)
            parts.append(experts * (f * p).sum(-1))
        aux = torch.stack(parts).mean()
        with torch.no_grad(), in_double(model.double):  # transformers' form of one sequence and one layer is the same
            singles = [load_balancing_loss_func((s,), experts, k) for r in routers for s in r]
        assert abs(aux - sum(singles) / len(singles)) < (1e-13 if model.double else 1e-5)
    loss = ce + c["router_aux_loss_coef"] * aux + z_coef * z
    if c["family"] != "gpt2" and scope == "micro_batch" and model.double:
        assert abs((loss - z_coef * z - theirs).item()) < 1e-13, "not transformers' loss"
    if c["family"] == "gpt2":
        assert abs((ce - theirs).item()) < (1e-13 if model.double else 1e-5), "not transformers' loss"
    return logits, routers, dict(ce=ce, aux=aux, z=z, loss=loss)


def check_derivative(config, values, tokens, z_coef, scope, grads):
    """The gradient along a random direction against a central difference of the loss: any rounding to float32 inside
    would leave errors of about 1e-3."""
    rng = np.random.default_rng(7)
    direction = {n: rng.standard_normal(v.shape) for n, v in values.items()}
    h, ends = 1e-6, []
    for sign in (1, -1):
        moved = {n: v.astype(np.float64) + sign * h * direction[n] for n, v in values.items()}
        ends.append(losses(Model(config, moved), tokens, z_coef, scope)[2]["loss"].item())
    along = sum((grads[n] * direction[n]).sum() for n in grads)
    error = abs((ends[0] - ends[1]) / (2 * h) - along) / abs(along)
    assert error < 1e-6, f"directional derivative off by {error:.1e}"


def check_noticed(config, values, tokens, z_coef, loss):
    """A window or a capacity that is off by one must change the loss by more than what is compared."""
    row = config["num_local_experts"] / config["num_experts_per_tok"] / (tokens.shape[1] - 1)
    for key, step in (("sliding_window", 1), ("capacity_factor", row)):
        for change in (-step, step) if key in config else ():
            wrong = Model(dict(config, **{key: config[key] + change}), values)
            distance = abs(losses(wrong, tokens, z_coef, "sequence")[2]["loss"].item() - loss)
            assert distance > NOTICED, f"{key} off by {change:.3g} changes the loss by {distance:.1e} only"


def learning_rate(train, step):
    if step <= train["warmup"]:
        return train["lr"] * step / train["warmup"]
    ratio = min(1.0, (step - train["warmup"]) / (train["decay_steps"] - train["warmup"]))
    return train["min_lr"] + (train["lr"] - train["min_lr"]) * 0.5 * (1 + math.cos(math.pi * ratio))


def curve(config, values, tokens, z_coef, train, double=True, decay=decays):
    """Trains; returns loss, ce, grad_norm, lr per step (before that step's update) and the smallest margin. decay names
    the parameters that decay."""
    model = Model(config, values, double)
    groups = {True: [], False: []}
    seen = set()
    for name, (tensor, _) in model.tensors.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            groups[bool(decay(name))].append(tensor)
    betas = tuple(float(x) for x in train["betas"].split(","))
    optimizer = torch.optim.AdamW(
        [
            dict(params=groups[True], weight_decay=train["weight_decay"]),
            dict(params=groups[False], weight_decay=0.0),
        ],
        lr=0.0,
        betas=betas,
        eps=train["eps"],
    )
    every = groups[True] + groups[False]
    out = dict(loss=[], ce=[], grad_norm=[], lr=[])
    smallest = math.inf
    for step in range(1, train["steps"] + 1):
        _, routers, parts = losses(model, tokens[(step - 1) % len(tokens)], z_coef, "sequence")
        optimizer.zero_grad()
        parts["loss"].backward()
        for p in every:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in every))
        if train["clip"]:
            scale = min(1.0, train["clip"] / (norm + 1e-6))
            for p in every:
                p.grad *= scale
        lr = learning_rate(train, step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        smallest = min(smallest, margin(routers, config["num_experts_per_tok"]))
        out["loss"].append(parts["loss"].item())
        out["ce"].append(parts["ce"].item())
        out["grad_norm"].append(norm)
        out["lr"].append(lr)
    return {n: np.array(v) for n, v in out.items()}, smallest


def distance(a, b):
    return float(np.abs(a["loss"] - b["loss"]).max())


def check_curve(config, values, tokens, z_coef, train, exact):
    """Mistakes that the curve must notice; returns how far each leads from the exact curve."""
    wrong = {
        "no clipping": dict(train=dict(train, clip=0.0)),
        "no warm-up": dict(train=dict(train, warmup=0)),
        "no decay": dict(decay=lambda n: False),
        "decay of all": dict(decay=lambda n: True),
        "decay of norms": dict(decay=lambda n: decays(n) or n.endswith(".weight")),
        "no decay of embeddings": dict(decay=lambda n: decays(n) and "embed_tokens" not in n and ".wte." not in n),
        "no decay of routers": dict(decay=lambda n: decays(n) and ".gate." not in n),
        "no decay of experts": dict(decay=lambda n: decays(n) and ".experts." not in n),
        "no z-loss": dict(z_coef=0.0),
        "no balance loss": dict(config=dict(config, router_aux_loss_coef=0.0)),
        "schedule to the last step": dict(train=dict(train, decay_steps=train["steps"])),
        "batches in another order": dict(tokens=tokens.flip(0)),
    }
    if config["family"] == "gpt2":
        wrong["decay of expert biases"] = dict(decay=lambda n: decays(n) or (".experts." in n))
        wrong["decay of biases"] = dict(decay=lambda n: decays(n) or n.endswith(".bias"))
    right = dict(config=config, values=values, tokens=tokens, z_coef=z_coef, train=train)
    return {name: distance(exact, curve(**{**right, **change})[0]) for name, change in wrong.items()}


def ini(sections):
    text = ""
    for section, keys in sections.items():
        text += f"[{section}]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items())
    return np.bytes_(text)


def make(name, seed=None, path=None):
    """Computes and checks a case; writes it where path is given."""
    config, b, t, z_coef, own_seed, train = CASES[name]
    seed = own_seed if seed is None else seed
    values, tokens = draw(config, b, t, seed, 1 + (4 if train else 0))
    tokens = torch.from_numpy(tokens)
    first, batches = tokens[0], tokens[1:]
    result = {}
    for scope in ("sequence", "micro_batch"):
        model = Model(config, values)
        logits, routers, parts = losses(model, first, z_coef, scope)
        vector_margin = margin(routers, config["num_experts_per_tok"])
        assert vector_margin > MARGIN, f"margin {vector_margin:.1e}"
        parts["loss"].backward()
        grads = model.grads()
        whole = math.sqrt(sum((g**2).sum() for g in grads.values()))
        for n, g in grads.items():
            assert np.linalg.norm(g) > 1e-3 * whole, f"gradient of {n} is tiny"
        check_derivative(config, values, first, z_coef, scope, grads)
        result[scope] = {n: v.item() for n, v in parts.items()}, grads
        dropped = model.dropped
    check_noticed(config, values, first, z_coef, result["sequence"][0]["loss"])
    print(f"{name}: seed {seed}, margin {vector_margin:.4f},", {s: r[0] for s, r in result.items()})
    picks = [torch.topk(r, config["num_experts_per_tok"]).indices for r in routers]
    npick = sum(r.shape[0] * r.shape[1] for r in routers) * config["num_experts_per_tok"]
    assert 0.05 * npick < dropped < 0.5 * npick or "capacity_factor" not in config, f"{dropped} of {npick} picks dropped"
    print("  picks per layer", [torch.bincount(p.flatten(), minlength=config["num_local_experts"]).tolist() for p in picks])
    print(f"  {dropped} of {npick} picks dropped")

    if train:
        assert train["global_batch"] == b
        exact, gap = curve(config, values, batches, z_coef, train)
        assert gap > CURVE_MARGIN, f"margin on the curve {gap:.1e}"
        rounded, _ = curve(config, values, batches, z_coef, train, double=False)
        error = distance(exact, rounded)
        clipped = int((exact["grad_norm"] > train["clip"]).sum())
        print(f"  curve {exact['loss'][0]:.3f} .. {exact['loss'][-1]:.3f}, margin {gap:.4f}, float32 {error:.1e}", end=", ")
        print(f"clipped in {clipped} steps")
        assert error < ROUNDING, f"float32 leaves the curve by {error:.1e}"
        assert 5 <= clipped <= train["steps"] - 5, f"clipped in {clipped} steps"
        assert exact["loss"][-4:].mean() < 0.7 * exact["loss"][:4].mean(), "the loss does not fall clearly"
        noticed = check_curve(config, values, batches, z_coef, train, exact)
        print("  one mistake:", ", ".join(f"{n} {d:.1e}" for n, d in noticed.items()))
        assert min(noticed.values()) > NOTICED, "a mistake would go unnoticed"

    if path:
        with h5py.File(path, "w") as file:
            file.attrs["format"] = "motley test vectors"
            file.attrs["made_with"] = f"torch {torch.__version__}, transformers {transformers.__version__}, seed {seed}"
            own = {k: v for k, v in config.items() if k != "capacity_factor"}
            moe = dict(aux_scope="sequence", z_loss=z_coef)
            moe.update((k, v) for k, v in config.items() if k not in own)
            file["config"] = ini({"model": own, "moe": moe, "data": dict(seq_length=t)})
            file["tokens"] = first.numpy().astype(np.int32)
            file["logits"] = logits.detach().numpy()
            file["router_logits"] = torch.stack(routers).detach().numpy()
            file["margin"] = np.float64(vector_margin)
            if "capacity_factor" in config:
                file["dropped"] = np.int32(dropped)
            file["ce"] = np.float64(result["sequence"][0]["ce"])
            for n, v in values.items():
                file["params/" + n] = v
            for scope, (parts, grads) in result.items():
                for key in ("aux", "z", "loss"):
                    file[f"{scope}/{key}"] = np.float64(parts[key])
                for n, g in grads.items():
                    file[f"{scope}/grads/{n}"] = g
            if train:
                file["curve/config"] = ini({"train": train})
                file["curve/tokens"] = batches.numpy().astype(np.int32)
                for n, v in exact.items():
                    file["curve/" + n] = v
        print(f"  {path}: {os.path.getsize(path)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="default: all of " + ", ".join(CASES))
    parser.add_argument("--search", type=int, metavar="N", help="try seeds below N instead of writing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in arguments.cases or CASES:
        if arguments.search is None:
            folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors")
            make(name, path=os.path.normpath(os.path.join(folder, name + ".h5")))
            continue
        for seed in range(arguments.search):
            try:
                make(name, seed)
                print(f"{name}: seed {seed} is good")
                break
            except AssertionError as problem:
                print(f"{name}: seed {seed}: {problem}")


if __name__ == "__main__":
    main()
