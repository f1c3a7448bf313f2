#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes torch_bert.onnx, a tiny BERT with random weights as torch exports it, and torch_bert.json: the loss and
the gradients that torch computes in double precision, each as its norm and its product with cos(0), cos(1), ...

usage: make_torch_bert.py FOLDER

Needs torch and transformers (torch 2.15 and transformers 5.23 were used).
"""
import json
import sys

import numpy as np
import torch
import transformers

BATCH, LENGTH, WORDS, CLASSES = 2, 12, 64, 5


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        logits = self.model(input_ids).logits
        return torch.nn.functional.cross_entropy(logits, labels), logits


torch.manual_seed(1)
config = transformers.BertConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                 intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0,
                                 attention_probs_dropout_prob=0, num_labels=CLASSES, attn_implementation="sdpa")
model = WithLoss(transformers.BertForSequenceClassification(config)).train()
# Word 0 is the padding, whose gradient torch leaves out; ONNX has no word for that.
words = torch.tensor([[1 + (7 * i + 3 * j * j) % (WORDS - 1) for j in range(LENGTH)] for i in range(BATCH)])
labels = torch.tensor([1, 4])
torch.onnx.export(model, (words, labels), f"{sys.argv[1]}/torch_bert.onnx", dynamo=False, opset_version=17,
                  training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                  input_names=["input_ids", "labels"], output_names=["loss", "logits"],
                  dynamic_axes={"input_ids": {0: "batch"}, "labels": {0: "batch"}})
loss = model.double()(words, labels)[0]
loss.backward()
gradients = {name: p.grad.numpy().ravel() for name, p in model.named_parameters() if p.grad is not None}
with open(f"{sys.argv[1]}/torch_bert.json", "w", encoding="utf-8") as file:
    json.dump({"words": words.tolist(), "labels": labels.tolist(), "loss": loss.item(),
               "gradients": {name: [float(np.linalg.norm(g)), float(g @ np.cos(np.arange(len(g))))]
                             for name, g in gradients.items()}}, file, indent=1)
    file.write("\n")
