#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny models with random weights as torch exports them, torch_NAME.onnx, and torch_NAME.json: the loss and the
gradients that torch computes in double precision, each as its norm and its product with cos(0), cos(1), ...

usage: make_torch_models.py FOLDER [NAME ..]

Names: bert (exported by TorchScript), llama (by dynamo), llama_script (by TorchScript, with an attention mask).
Needs onnx, torch and transformers (torch 2.15 and transformers 5.23 were used).
"""
import json
import sys

import numpy as np
import onnx
import torch
import transformers

BATCH, LENGTH, WORDS, CLASSES = 2, 12, 64, 5


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *tensors):
        logits = self.model(*tensors[:-1]).logits
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tensors[-1].reshape(-1)), logits


def word_ids(words):
    # Word 0 is the padding of BERT, whose gradient torch leaves out; ONNX has no word for that.
    return torch.tensor([[1 + (7 * i + 3 * j * j) % (words - 1) for j in range(LENGTH)] for i in range(BATCH)])


def bert():
    config = transformers.BertConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0,
                                     attention_probs_dropout_prob=0, num_labels=CLASSES, attn_implementation="sdpa")
    return transformers.BertForSequenceClassification(config), [word_ids(WORDS)], torch.tensor([1, 4])


def llama():
    """Grouped queries: 4 heads share 2 keys."""
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                                      use_cache=False, attn_implementation="sdpa")
    words = word_ids(32)
    return transformers.LlamaForCausalLM(config), [words], words.roll(-1, 1)


def llama_script():
    model, inputs, labels = llama()
    return model, inputs + [torch.ones(BATCH, LENGTH, dtype=torch.int64)], labels


def strip(path):
    """Without the notes of the exporter, which are eight ninths of the file."""
    model = onnx.load(path)
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph):
        del part.metadata_props[:]
        part.doc_string = ""
    del model.graph.value_info[:]
    onnx.save(model, path)


def export(name, model, tensors):
    path = f"{sys.argv[1]}/torch_{name}.onnx"
    names = ["input_ids", "mask"][:len(tensors) - 1] + ["labels"]
    if name == "llama":
        batch = torch.export.Dim("batch")
        torch.onnx.export(model, tensors, path, dynamo=True, optimize=False, verbose=False, opset_version=20,
                          external_data=False, input_names=names, output_names=["loss", "logits"],
                          dynamic_shapes=(tuple({0: batch} for _ in tensors),))
        strip(path)
        return
    torch.onnx.export(model, tensors, path, dynamo=False, opset_version=17,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=names,
                      output_names=["loss", "logits"], dynamic_axes={name: {0: "batch"} for name in names})


MODELS = {"bert": bert, "llama": llama, "llama_script": llama_script}
for chosen in sys.argv[2:] or MODELS:
    torch.manual_seed(1)
    model, inputs, labels = MODELS[chosen]()
    model = WithLoss(model).train()
    for parameter in model.parameters() if chosen != "bert" else ():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1 if parameter.dim() == 1 else 0.3)
    export(chosen, model, (*inputs, labels))
    loss = model.double()(*inputs, labels)[0]
    loss.backward()
    gradients = {name: p.grad.numpy().ravel() for name, p in model.named_parameters() if p.grad is not None}
    with open(f"{sys.argv[1]}/torch_{chosen}.json", "w", encoding="utf-8") as file:
        json.dump({"inputs": [tensor.tolist() for tensor in inputs], "labels": labels.tolist(), "loss": loss.item(),
                   "gradients": {name: [float(np.linalg.norm(g)), float(g @ np.cos(np.arange(len(g))))]
                                 for name, g in gradients.items()}}, file, indent=1)
        file.write("\n")
