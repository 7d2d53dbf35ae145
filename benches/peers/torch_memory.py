#!/usr/bin/env python3
"""Peak memory of a training step of the GPT in PyTorch eager, by PyTorch's own tracker over tensors that hold nothing.

It needs neither a GPU nor time, and tells what tensors take, not what an allocator adds. `step` prints wgrad's peak.
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (y.view(b, t, self.heads, width // self.heads).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, tokens, vocabulary):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.words(words) + self.places))).flatten(0, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"layers": 12, "width": 768, "heads": 12, "tokens": 1024, "vocabulary": 32000, "batch": 8}
    for name, size in sizes.items():
        parser.add_argument("--" + name, type=int, default=size)
    args = parser.parse_args()
    with FakeTensorMode():
        model = Gpt(args.layers, args.width, args.heads, args.tokens, args.vocabulary)
        optim = torch.optim.AdamW(model.parameters(), foreach=False)
        words = torch.randint(0, args.vocabulary, (args.batch, args.tokens))
        targets = torch.randint(0, args.vocabulary, (args.batch * args.tokens,))
        tracker = MemTracker()
        tracker.track_external(model, optim, words, targets)
        with tracker:
            for _ in range(2):
                optim.zero_grad(set_to_none=True)
                F.cross_entropy(model(words), targets).backward()
                optim.step()
                tracker.reset_mod_stats()
        tracker.display_snapshot("peak", units="MiB", tabulate=False)


if __name__ == "__main__":
    main()
