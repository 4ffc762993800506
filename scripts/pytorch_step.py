#!/usr/bin/env python3
"""The decoder layers of Llama 3 8B in PyTorch, for `tessera-bench train-step --against`. Only for comparison, not part of
the product. Reads 'forward_backward' or 'optimizer' from each line of standard input and prints the seconds that it took
(src/bench/step/other_program.h).

The strongest form that PyTorch has on CPUs: weights, gradients and activations in bfloat16, F.rms_norm, rotary embedding on
halves as in Hugging Face transformers, F.scaled_dot_product_attention with grouped heads, and with --compile the layer through
torch.compile. The fused torch.optim.AdamW updates bfloat16 weights with bfloat16 moments, which is less work and less exact
than float32 master weights.
"""

import argparse
import sys
import time

import onednn_limit

onednn_limit.limit_onednn()  # oneDNN reads the limit once, when it is loaded

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class DecoderLayer(nn.Module):
    def __init__(self, hidden, intermediate, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        kv_width = kv_heads * self.head_dim
        self.input_layernorm = nn.RMSNorm(hidden, eps=1e-5)
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=1e-5)
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def attention(self, x, cos, sin):
        rows, length, _ = x.shape
        split = lambda y, heads: y.view(rows, length, heads, self.head_dim).transpose(1, 2)
        q = rotate(split(self.q_proj(x), self.heads), cos, sin)
        k = rotate(split(self.k_proj(x), self.kv_heads), cos, sin)
        v = split(self.v_proj(x), self.kv_heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_layernorm(x), cos, sin)
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Step:
    def __init__(self, arguments):
        hidden, intermediate, heads, kv_heads = 4096, 14336, 32, 8
        torch.manual_seed(1)
        torch.set_default_dtype(torch.bfloat16)
        self.layers = nn.ModuleList(DecoderLayer(hidden, intermediate, heads, kv_heads) for _ in range(arguments.layers))
        for parameter in self.layers.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        shape = (arguments.rows, arguments.max_length, hidden)
        # x needs a gradient, like the output of an embedding.
        self.x, self.dy = torch.randn(shape).requires_grad_(), torch.randn(shape) * 1e-3
        head_dim = hidden // heads
        frequencies = 1.0 / 500000 ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.outer(torch.arange(arguments.max_length, dtype=torch.float32), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.cos, self.sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.layers.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
        if arguments.compile:
            for layer in self.layers:
                layer.compile()
            self.forward_backward()  # compiles

    def forward_backward(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None
        begin = time.perf_counter()
        y = self.x
        for layer in self.layers:
            y = layer(y, self.cos, self.sin)
        y.backward(self.dy)
        seconds = time.perf_counter() - begin
        if not torch.isfinite(y).all():
            sys.exit("error: the output is not finite")
        return seconds

    def update(self):
        begin = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.layers.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--num_threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="run each layer through torch.compile")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.num_threads)
    step = Step(arguments)
    actions = {"forward_backward": step.forward_backward, "optimizer": step.update}
    how = "torch.compile" if arguments.compile else "eager"
    print("ready", onednn_limit.describe(f"PyTorch {torch.__version__} ({how})"), flush=True)
    for line in sys.stdin:
        print(actions[line.strip()](), flush=True)


if __name__ == "__main__":
    main()
