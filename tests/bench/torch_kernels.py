# SPDX-License-Identifier: Apache-2.0
"""The shared-memory kernels of DeepSpeed and vLLM for tensor parallelism on CPUs, built from checkouts of theirs."""
import os
import pathlib
import re

# What vLLM's own binding of all its kernels would declare, for the few that are wanted.
_VLLM = """
#include <torch/all.h>
#include <torch/library.h>
int64_t init_shm_manager(const std::string&, const int64_t, const int64_t%(threads)s);
std::string join_shm_manager(int64_t, const std::string&);
void shm_allreduce(int64_t, torch::Tensor&);
void shm_all_gather(int64_t, const torch::Tensor&, torch::Tensor&);
TORCH_LIBRARY(vllm_shm, m)
{
    m.def("init_shm_manager(str name, int group_size, int rank%(argument)s) -> int", &init_shm_manager);
    m.def("join_shm_manager(int handle, str name) -> str", &join_shm_manager);
    m.def("shm_allreduce(int handle, Tensor(a!) data) -> ()");
    m.impl("shm_allreduce", torch::kCPU, &shm_allreduce);
    m.def("shm_all_gather(int handle, Tensor data, Tensor(a!) output) -> ()");
    m.impl("shm_all_gather", torch::kCPU, &shm_all_gather);
}
"""
_ISA = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"]


def _needs(checkout, *paths):
    for path in paths:
        if not (checkout / path).exists():
            raise FileNotFoundError(f"{checkout} has no {path}")


def build_deepspeed(checkout, folder):
    """Its shared library's path, or an exception that tells why not."""
    from torch.utils import cpp_extension
    sources = [f"csrc/cpu/comm/{name}" for name in ("shm_interface.cpp", "shm.cpp")]
    _needs(checkout, *sources)
    cpp_extension.load("deepspeed_shm", [str(checkout / source) for source in sources], build_directory=str(folder),
                       extra_cflags=["-O2", "-fopenmp", "-march=native"], is_python_module=True)
    return folder / "deepspeed_shm.so"


def build_vllm(checkout, folder):
    """As build_deepspeed."""
    from torch.utils import cpp_extension
    _needs(checkout, "csrc/cpu/shm.cpp")
    source = checkout / "csrc/cpu/shm.cpp"
    threads = "thread_num" in re.search(r"int64_t init_shm_manager\((.*?)\)", source.read_text(), re.S).group(1)
    binding = folder / "vllm_binding.cpp"
    binding.write_text(_VLLM % {"threads": ", const int64_t" if threads else "",
                                "argument": ", int thread_num" if threads else ""})
    cpp_extension.load("vllm_shm", [str(source), str(binding)], build_directory=str(folder),
                       extra_cflags=["-O3", "-fopenmp", *_ISA], extra_include_paths=[str(checkout / "csrc")],
                       is_python_module=False)
    return folder / "vllm_shm.so"


class DeepSpeed:
    """all_reduce(x): in place. Ranks of one host only."""

    def __init__(self, library, rank, size):
        import importlib.util
        import torch
        os.environ["LOCAL_SIZE"] = str(size)
        spec = importlib.util.spec_from_file_location("deepspeed_shm", library)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.initialize(size, rank)
        self.all_reduce = torch.ops.deepspeed.inference_all_reduce_


class VLLM:
    """all_reduce(x): in place; all_gather(out, x)."""

    def __init__(self, library, rank, size, meet):
        import torch
        torch.ops.load_library(library)
        ops = torch.ops.vllm_shm
        name = f"/weft_compare_torch_{os.environ['MASTER_PORT']}"
        words = [name, size, rank] + [1] * (len(ops.init_shm_manager.default._schema.arguments) - 3)
        handle = ops.init_shm_manager(*words)
        meet()
        ops.join_shm_manager(handle, name)
        meet()
        self.all_reduce = lambda x: ops.shm_allreduce(handle, x)
        self.all_gather = lambda out, x: ops.shm_all_gather(handle, x, out)


def clean(port):
    """Removes the shared memory of a run at that port: the kernels leave it."""
    for file in pathlib.Path("/dev/shm").glob("*"):
        if re.search(rf"(weft_compare_torch|deepspeed_allreduce_buffer).*_{port}(_|$)", file.name):
            file.unlink(missing_ok=True)
