"""The llama forward pass in torch: RMS norms, half-split rotation, grouped query attention, gated feed-forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F

NORMS = ("input_layernorm", "post_attention_layernorm")
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
           "mlp.down_proj")


def norm_names(layer: int) -> list[str]:
    return [f"model.layers.{layer}.{name}.weight" for name in NORMS]


def linear_names(layer: int) -> list[str]:
    return [f"model.layers.{layer}.{name}.weight" for name in LINEARS]


def rotation_table(config, length: int, device, dtype):
    """cos and sin, [length, head_dim / 2]."""
    i = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float64)
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * config.rope_theta ** (-i / config.head_dim)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, cos, sin):
    """x [B, heads, T, head_dim]; the partner of an element is half a head behind it."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rms_norm(x, weight, eps: float):
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def attention(q, k, v, causal: bool):
    """q [B, heads, T, d], k and v [B, kv heads, S, d] -> [B, T, heads * d]."""
    if q.device.type == "cuda":
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    else:
        repeat = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).flatten(2)


def heads_of(x, weight, head_dim: int):
    return F.linear(x, weight).unflatten(-1, (-1, head_dim)).transpose(1, 2)


def block(x, norms, linears, cos, sin, head_dim: int, eps: float):
    """One transformer block on x [B, T, hidden]; norms: 2 vectors, linears: 7 matrices in the order of LINEARS."""
    wq, wk, wv, wo, gate, up, down = linears
    h = rms_norm(x, norms[0], eps)
    q, k = rotate(heads_of(h, wq, head_dim), cos, sin), rotate(heads_of(h, wk, head_dim), cos, sin)
    x = x + F.linear(attention(q, k, heads_of(h, wv, head_dim), True), wo)
    h = rms_norm(x, norms[1], eps)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


class Lookup(torch.autograd.Function):
    """apply(tokens, table): rows of a table that is trained; its gradient is summed in f32, by operations that a CUDA
    graph can hold."""

    @staticmethod
    def forward(ctx, tokens, table):
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return F.embedding(tokens, table)

    @staticmethod
    def backward(ctx, gradient):
        total = torch.zeros(ctx.shape, dtype=torch.float32, device=gradient.device)
        total.index_add_(0, ctx.saved_tensors[0].flatten(), gradient.flatten(0, -2).float())
        return None, total.to(gradient.dtype)


def hidden_states(tokens, config, weight, dtype, run_block=block):
    """Outputs of the last norm, [B, T, hidden] in `dtype`. weight(name) gives a tensor; `run_block` may be a compiled
    `block`."""
    cos, sin = rotation_table(config, tokens.shape[1], tokens.device, dtype)
    table = weight("model.embed_tokens.weight")
    x = (Lookup.apply(tokens, table) if table.requires_grad else F.embedding(tokens, table)).to(dtype)
    if torch.is_grad_enabled():
        x.requires_grad_()  # all blocks alike: one compiled form serves them
    for layer in range(config.layers):
        x = run_block(x, [weight(n) for n in norm_names(layer)], [weight(n) for n in linear_names(layer)], cos, sin, config.head_dim,
                      config.eps)
    return rms_norm(x, weight("model.norm.weight"), config.eps)
