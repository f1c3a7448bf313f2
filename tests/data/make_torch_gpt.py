#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes torch_gpt.onnx: a language model in the shape of GPT-2 with random weights, exported by weft.export.

usage: PYTHONPATH=build/python make_torch_gpt.py OUT.onnx

Two layers, two heads, width 16, 64 tokens, sequences of 8. Needs torch (2.15 was used; 1.13 writes the same).
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import weft.export

VOCAB, LENGTH, WIDTH, HEADS, LAYERS = 64, 8, 16, 2, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), -1e9), 1))

    def forward(self, x):
        q, k, v = (part.reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)
                   for part in self.c_attn(x).split(WIDTH, dim=2))
        weights = F.softmax(q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5 + self.mask, dim=3)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(-1, LENGTH, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.h = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        return self.lm_head(self.ln_f(self.h(self.wte(tokens) + self.wpe)))


torch.manual_seed(17)
example = torch.arange(2 * LENGTH).reshape(2, LENGTH)
weft.export.export(Gpt(), example, example + 1, sys.argv[1])
