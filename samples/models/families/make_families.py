#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny models with random weights, one per family, with their loss, as torch exports them: NAME.onnx by
TorchScript (opset 17, training form), NAME.dynamo.onnx by dynamo (opset 20); and torch.json: the loss, gradients and
running means of one step that torch computes in double precision, each as its norm and its products with cos(0), cos(1),
.. and cos(0), cos(2), ..

usage: PYTHONPATH=build/python make_families.py FOLDER [NAME ..]

Needs torch, torchvision, transformers and onnx (2.15, 0.29, 5.23 and 1.23 were used).
"""
import json
import pathlib
import sys

import numpy as np
import onnx
import torch
import torchvision.models as vision
import transformers
from torch import nn
from torchvision.models.efficientnet import FusedMBConvConfig, MBConvConfig
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.mobilenetv3 import InvertedResidualConfig
from torchvision.models.swin_transformer import SwinTransformer

import weft.export

BATCH, SIZE, CLASSES, WORDS, LENGTH = 4, 16, 5, 48, 8


def floats(*shape):
    """The formula of tests/python/test_families.py."""
    at = np.arange(np.prod(shape))
    return torch.tensor(np.cos(at * 0.7 + at // 97).astype(np.float32).reshape(shape))


def integers(high, *shape):
    """From 1 to high - 1."""
    at = np.arange(np.prod(shape))
    return torch.tensor((1 + (7 * at + at * at // 3) % (high - 1)).reshape(shape))


def images(size=SIZE, channels=3):
    return [floats(BATCH, channels, size, size)], integers(CLASSES, BATCH)


def words():
    """Word 0 is the padding of BERT, whose gradient torch leaves out: there is none."""
    return integers(WORDS, BATCH, LENGTH)


def all_words():
    """A mask of ones. The exporter of TorchScript cannot do without a mask where attention is causal."""
    return integers(2, BATCH, LENGTH)


def conv(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions beside a shortcut, as in ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = conv(inputs, outputs, stride), conv(outputs, outputs)
        self.shortcut = nn.Sequential() if stride == 1 else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                                                          nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions; a class for every pixel."""

    def __init__(self):
        super().__init__()
        self.down, self.pool = nn.ModuleList([conv(3, 8), conv(8, 12), conv(12, 16)]), nn.MaxPool2d(2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 12, 2, 2), nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1)])
        self.merge, self.out = nn.ModuleList([conv(24, 12), conv(16, 8)]), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = torch.relu(layer(self.pool(x) if kept else x))
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1]):
            x = torch.relu(merge(torch.cat([up(x), skip], 1)))
        return self.out(x)


class Dlrm(nn.Module):
    """Sums of embeddings of categories, products of all pairs of features, two MLPs. torch exports nn.EmbeddingBag as a
    Loop."""

    def __init__(self, tables=3, width=8):
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(WORDS, width, mode="sum") for _ in range(tables)])
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + (tables + 1) * tables // 2, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, categories):
        bottom = self.bottom(dense)
        features = torch.stack([bottom] + [bag(ids) for bag, ids in zip(self.bags, categories.unbind(1))], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], 1))


class ByName(nn.Module):
    """A model of transformers: its inputs are passed by name, in this order."""

    def __init__(self, model, *names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors):
        return self.model(**dict(zip(self.names, tensors))).logits


class LanguageModel(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(WORDS, width), nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, WORDS)

    def forward(self, words):
        return self.head(self.lstm(self.embed(words))[0])


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, CLASSES)), *images(8, 1)


def lenet():
    return nn.Sequential(nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 8, 5), nn.Tanh(), nn.AvgPool2d(2),
                         nn.Flatten(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, CLASSES)), *images(SIZE, 1)


def vgg():
    model = vision.VGG(vision.vgg.make_layers([8, "M", 16, "M", 24, 24, "M"], batch_norm=True), num_classes=CLASSES, dropout=0)
    model.avgpool = nn.AdaptiveAvgPool2d(2)  # 7 x 7 of 512 channels, two layers of 4096
    model.classifier = nn.Sequential(nn.Linear(96, 32), nn.ReLU(True), nn.Dropout(0), nn.Linear(32, CLASSES))
    return model, *images()


def resnet():
    return nn.Sequential(conv(3, 8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 16, 2), Block(16, 24, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, CLASSES)), *images()


def mobilenet_v2():
    model = vision.MobileNetV2(inverted_residual_setting=[[1, 8, 1, 1], [4, 12, 2, 2], [4, 16, 1, 2]], width_mult=0.25, round_nearest=4,
                               dropout=0)
    last = model.features[-1][0].in_channels
    model.features[-1] = vision.mobilenetv2.Conv2dNormActivation(last, 32, kernel_size=1, activation_layer=nn.ReLU6)  # 1280
    model.classifier[1] = nn.Linear(32, CLASSES)
    return model, *images()


def mobilenet_v3():
    settings = [InvertedResidualConfig(8, 3, 16, 8, True, "RE", 2, 1, 1), InvertedResidualConfig(8, 3, 24, 12, False, "RE", 1, 1, 1),
                InvertedResidualConfig(12, 5, 32, 16, True, "HS", 2, 1, 1), InvertedResidualConfig(16, 5, 32, 16, True, "HS", 1, 2, 1)]
    return vision.MobileNetV3(settings, 32, num_classes=CLASSES, dropout=0), *images()


def efficientnet():
    settings = [MBConvConfig(1, 3, 1, 8, 8, 1), FusedMBConvConfig(2, 3, 2, 8, 16, 1), MBConvConfig(4, 3, 2, 16, 16, 2)]
    return vision.EfficientNet(settings, dropout=0, stochastic_depth_prob=0, num_classes=CLASSES, last_channel=32), *images()


def densenet():
    return vision.DenseNet(growth_rate=6, block_config=(2, 2), num_init_features=8, bn_size=2, num_classes=CLASSES), *images()


def convnext():
    return vision.ConvNeXt([CNBlockConfig(12, 24, 1), CNBlockConfig(24, None, 2)], num_classes=CLASSES), *images(32)


def unet():
    return UNet(), [floats(BATCH, 3, SIZE, SIZE)], integers(CLASSES, BATCH, SIZE, SIZE)


def vit():
    return vision.VisionTransformer(image_size=SIZE, patch_size=4, num_layers=2, num_heads=2, hidden_dim=24, mlp_dim=48,
                                    num_classes=CLASSES), *images()


def swin():
    """Two stages; the second block of the first one has shifted windows."""
    return SwinTransformer([2, 2], 12, [2, 1], [2, 2], [4, 4], mlp_ratio=2, stochastic_depth_prob=0, num_classes=CLASSES), *images(32)


def bert():
    config = transformers.BertConfig(vocab_size=WORDS, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=48, max_position_embeddings=LENGTH, hidden_dropout_prob=0,
                                     attention_probs_dropout_prob=0, num_labels=CLASSES)
    return ByName(transformers.BertForSequenceClassification(config), "input_ids"), [words()], integers(CLASSES, BATCH)


def gpt2():
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                     attn_pdrop=0, use_cache=False, bos_token_id=0, eos_token_id=0)
    return ByName(transformers.GPT2LMHeadModel(config), "input_ids", "attention_mask"), [words(), all_words()], words().roll(-1, 1)


def llama():
    """Grouped queries: 4 heads share 2 keys."""
    config = transformers.LlamaConfig(vocab_size=WORDS, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, use_cache=False)
    return ByName(transformers.LlamaForCausalLM(config), "input_ids", "attention_mask"), [words(), all_words()], words().roll(-1, 1)


def t5():
    config = transformers.T5Config(vocab_size=WORDS, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3, dropout_rate=0,
                                   relative_attention_num_buckets=8, relative_attention_max_distance=12, use_cache=False,
                                   feed_forward_proj="gated-gelu", attn_implementation="eager")
    targets = words()[:, :-2]
    return ByName(transformers.T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids"), [words(), targets], targets.roll(-1, 1)


def dlrm():
    return Dlrm(), [floats(BATCH, 6), integers(WORDS, BATCH, 3, 4)], integers(3, BATCH, 1) - 1


def lstm():
    return LanguageModel(), [words()], words().roll(-1, 1)


def binary_cross_entropy(logits, label):
    return nn.functional.binary_cross_entropy_with_logits(logits, label.to(logits.dtype))


# How many inputs the model of each exporter has: None is all. TorchScript's files of large graphs are too large.
BOTH, SCRIPT, DYNAMO = {"torchscript": None, "dynamo": None}, {"torchscript": None}, {"dynamo": None}
FAMILIES = {mlp: SCRIPT, lenet: SCRIPT, vgg: SCRIPT, resnet: BOTH, mobilenet_v2: SCRIPT, mobilenet_v3: SCRIPT, efficientnet: SCRIPT,
            densenet: SCRIPT, convnext: SCRIPT, unet: SCRIPT, vit: DYNAMO, swin: DYNAMO, bert: BOTH, gpt2: BOTH,
            llama: {"torchscript": 2, "dynamo": 1}, t5: DYNAMO, dlrm: BOTH, lstm: BOTH}
LOSSES = {dlrm: binary_cross_entropy}


def strip_graph(graph):
    del graph.value_info[:]
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    for body in (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")):
        strip_graph(body)


def strip(path):
    """Without the notes of dynamo, which are eight ninths of the file."""
    model = onnx.load(path)
    strip_graph(model.graph)
    onnx.save(model, path)


def projections(values):
    at = np.arange(len(values))
    return [float(np.linalg.norm(values)), float(values @ np.cos(at)), float(values @ np.cos(2 * at))]


def describe(tensor):
    """Integers, or the shape of floats."""
    return {"floats": list(tensor.shape)} if tensor.is_floating_point() else tensor.tolist()


def gradients(make):
    """In double precision; tied parameters by all their names."""
    torch.manual_seed(1)
    model, inputs, label = make()
    module = weft.export.with_loss(model, LOSSES.get(make)).double()
    loss, _ = module(*[x.double() if x.is_floating_point() else x for x in inputs], label)
    loss.backward()
    values = {key: p.grad for key, p in module.named_parameters(remove_duplicate=False) if p.grad is not None}
    values.update({key: mean for key, mean in module.named_buffers() if key.endswith("running_mean")})
    momentum = next((part.momentum for part in module.modules() if isinstance(part, nn.BatchNorm2d)), None)
    return {"loss": loss.item(), "momentum": momentum, "inputs": [describe(x) for x in [*inputs, label]], "parameters": len(list(module.parameters())),
            "values": {key: projections(value.detach().numpy().ravel()) for key, value in values.items()}}


def export(folder, make):
    files = {}
    for exporter, count in FAMILIES[make].items():
        torch.manual_seed(1)
        model, inputs, label = make()
        path = folder / f"{make.__name__}{'.dynamo' if exporter == 'dynamo' else ''}.onnx"
        weft.export.export(model, tuple(inputs[:count]), label, path, exporter=exporter, loss=LOSSES.get(make))
        if exporter == "dynamo":
            strip(path)
        print(f"{path}: {path.stat().st_size} bytes")
        files[path.name] = len(inputs[:count])
    return files


def main():
    folder = pathlib.Path(sys.argv[1])
    path = folder / "torch.json"
    oracle = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for make in FAMILIES:
        if make.__name__ in sys.argv[2:] or not sys.argv[2:]:
            oracle[make.__name__] = {"files": export(folder, make), **gradients(make)}
    lines = ",\n".join(f"{json.dumps(make.__name__)}: {json.dumps(oracle[make.__name__])}" for make in FAMILIES)
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


main()
