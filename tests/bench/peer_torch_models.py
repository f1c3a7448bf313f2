#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of their real size, for compare_models.py: exports one for Weft, or trains it as one rank of torch's DDP.

    peer_torch_models.py gpt2 --batch 4 --export gpt2.onnx
    WEFT_BIND=none weft run -n 2 -- python3 peer_torch_models.py gpt2 --batch 4 --backend gloo --store FILE

Needs torch, torchvision and transformers, and weft in PYTHONPATH. Weights are random, nothing is downloaded. Dropout of
transformers is off. Rank 0 prints the times of its steps, and the peak memory of all ranks, as JSON.
"""
import argparse
import json
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist

import peak_memory

LENGTH, CLASSES = 128, 1000


class ByName(torch.nn.Module):
    """A model of transformers: its inputs are passed by name, in this order."""

    def __init__(self, model, *names):
        super().__init__()
        self.model, self.names = model, names or ("input_ids",)

    def forward(self, *tensors):
        return self.model(**dict(zip(self.names, tensors))).logits


def transformer(make, config, inputs=("input_ids",), **settings):
    import transformers  # pylint: disable=import-outside-toplevel

    config = getattr(transformers, config)(**settings)
    return ByName(getattr(transformers, make)(config), *inputs), len(inputs), config.vocab_size


def vision(name):
    import torchvision  # pylint: disable=import-outside-toplevel

    return getattr(torchvision.models, name)(), 0, CLASSES


def llama():  # of 100 million parameters
    return transformer("LlamaForCausalLM", "LlamaConfig", vocab_size=32000, hidden_size=640, intermediate_size=1792, num_hidden_layers=12,
                       num_attention_heads=10, num_key_value_heads=5, use_cache=False)


def t5():
    return transformer("T5ForConditionalGeneration", "T5Config", ("input_ids", "decoder_input_ids"), dropout_rate=0, use_cache=False,
                       attn_implementation="eager")


# Name: what makes (model, inputs of words or 0, classes), and the exporter.
MODELS = {
    "resnet50": (lambda: vision("resnet50"), "torchscript"),
    "bert": (lambda: transformer("BertForMaskedLM", "BertConfig", hidden_dropout_prob=0, attention_probs_dropout_prob=0), "dynamo"),
    "gpt2": (lambda: transformer("GPT2LMHeadModel", "GPT2Config", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False), "dynamo"),
    "vgg16": (lambda: vision("vgg16"), "torchscript"),
    "vit_b_16": (lambda: vision("vit_b_16"), "dynamo"),
    "t5": (t5, "dynamo"),
    "llama": (llama, "dynamo"),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, default=4, help="samples per rank and micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=3, help="measured steps, after one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--export", metavar="OUT.onnx", help="write the model with its loss, and do not train")
    parser.add_argument("--backend", choices=("gloo", "weft"), default="gloo")
    parser.add_argument("--store", help="a file that torch's ranks meet by; it must not exist")
    return parser.parse_args()


def make_batch(word_inputs, classes, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    if word_inputs == 0:
        return [torch.randn(batch, 3, 224, 224, generator=generator)], torch.randint(0, classes, (batch,), generator=generator)
    *inputs, labels = (torch.randint(0, classes, (batch, LENGTH), generator=generator) for _ in range(word_inputs + 1))
    return inputs, labels


def train(args, model, word_inputs, classes):
    import weft.export  # pylint: disable=import-outside-toplevel
    import weft.torch  # pylint: disable=import-outside-toplevel

    rank, world = int(os.environ["WEFT_RANK"]), int(os.environ["WEFT_WORLD_SIZE"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(args.threads)
    if args.backend == "weft":
        dist.init_process_group("weft")
    else:
        dist.init_process_group("gloo", store=dist.FileStore(args.store, world), rank=rank, world_size=world)
    parallel = torch.nn.parallel.DistributedDataParallel(weft.export.with_loss(model).train(), gradient_as_bucket_view=True)
    if args.backend == "weft":
        parallel.register_comm_hook(None, weft.torch.ddp_hook)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01, momentum=0.9)
    times, processor, loss = [], [], None
    for step in range(args.steps + 1):
        batches = [make_batch(word_inputs, classes, args.batch, 1000 * step + 10 * k + rank) for k in range(args.accumulate)]
        dist.barrier()
        begin, used = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=False)
        for k, (inputs, labels) in enumerate(batches):
            parallel.require_backward_grad_sync = k + 1 == args.accumulate
            loss = parallel(*inputs, labels)[0]
            (loss / args.accumulate).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        processor.append(time.process_time() - used)
    peaks = [None] * world
    dist.all_gather_object(peaks, peak_memory.peak_memory())
    if rank == 0:
        print(json.dumps({"times_s": times[1:], "processor_s": processor[1:], "peak_bytes": peaks, "loss": float(loss.detach()),
                          "torch": torch.__version__}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    args = parse_arguments()
    torch.manual_seed(1)
    make, exporter = MODELS[args.model]
    model, word_inputs, classes = make()
    if args.export:
        import weft.export  # pylint: disable=import-outside-toplevel

        warnings.simplefilter("ignore")
        inputs, labels = make_batch(word_inputs, classes, 2, 1)
        weft.export.export(model, tuple(inputs), labels, args.export, exporter=exporter)
    else:
        train(args, model, word_inputs, classes)


if __name__ == "__main__":
    sys.exit(main())
