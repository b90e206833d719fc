"""GPUs as published: memory, bandwidth, and the dense peak of their matrix units.

Memory is what the driver reports (`nvidia-smi`, total): less than the name says where ECC takes its part, as read in
github.com/modal-labs/modal-client/pull/2797 unless noted. Peaks are without sparsity (data sheets print twice that
where they say "with sparsity"). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_lab.sizing.errors import RequestError

GIB: Final = 2**30
MIB: Final = 2**20
#: Of each GPU's memory: CUDA's context, libraries, the collectives' buffers, captured graphs. vLLM has reported 0.2 to
#: 1.8 GiB beside weights and activations (github.com/vllm-project/vllm/pull/10511, /12126).
GPU_RESERVE_BYTES: Final = GIB


@dataclass(frozen=True, kw_only=True)
class Compute:
    """`bandwidth` of the memory in bytes/s; `half` and `fp8` in FLOP/s, `fp8` None where it is not multiplied."""

    bandwidth: float
    half: float
    fp8: float | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device. `reserve` bytes are neither weights nor activations nor cache; `compute` None where unknown."""

    name: str
    memory: int
    reserve: int
    compute: Compute | None = None

    @property
    def option(self) -> str:
        """What it is asked for by: a GPU by name, or memory alone."""
        return "memory" if self.compute is None else "gpu"


def plain(memory: int) -> Device:
    """Memory of which all is the engine's, on a device whose speed is not known."""
    if memory < 1:
        raise RequestError("memory", f"is {memory} bytes", "an amount such as 80GiB")
    return Device(name="memory", memory=memory, reserve=0)


def _gpu(name: str, memory: int, terabytes: float, half: float, fp8: float | None) -> Device:
    """`terabytes` (10¹²) per second; `half`, `fp8` in teraFLOP/s."""
    rates = Compute(bandwidth=terabytes * 1e12, half=half * 1e12, fp8=None if fp8 is None else fp8 * 1e12)
    return Device(name=name, memory=memory, reserve=GPU_RESERVE_BYTES, compute=rates)


_ALL: Final = (
    # https://www.nvidia.com/en-us/data-center/products/a10-gpu/
    _gpu("A10", 23028 * MIB, 0.600, 125.0, None),
    # https://www.nvidia.com/en-us/data-center/a100/ (SXM)
    _gpu("A100-40GB", 40960 * MIB, 1.555, 312.0, None),
    _gpu("A100-80GB", 81920 * MIB, 2.039, 312.0, None),
    # https://www.nvidia.com/en-us/data-center/l4/
    _gpu("L4", 23034 * MIB, 0.300, 121.0, 242.5),
    # https://www.nvidia.com/en-us/data-center/l40s/
    _gpu("L40S", 46068 * MIB, 0.864, 362.0, 733.0),
    # https://www.nvidia.com/en-us/data-center/h100/
    _gpu("H100-PCIe", 81559 * MIB, 2.0, 756.0, 1513.0),
    _gpu("H100-SXM", 81559 * MIB, 3.35, 989.5, 1979.0),
    # https://www.nvidia.com/en-us/data-center/h200/ ; 141 GB, of which the driver shows 143771 MiB
    _gpu("H200", 143771 * MIB, 4.8, 989.5, 1979.0),
    # https://www.nvidia.com/en-us/data-center/hgx/ ; memory, bus and clock as the driver shows them in
    # github.com/pytorch/ao/pull/4002: 178.35 GiB, 7.67 TB/s
    _gpu("B200", int(178.35 * GIB), 7.67, 2250.0, 4500.0),
    # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html ; eight stacks of 24 GiB
    _gpu("MI300X", 192 * GIB, 5.3, 1307.4, 2614.9),
)
#: By lower-case name.
GPUS: Final[Mapping[str, Device]] = {device.name.lower(): device for device in _ALL}


def gpu(name: str) -> Device:
    """The GPU of that name, in any case.

    Raises `RequestError` listing the names.
    """
    if name.lower() not in GPUS:
        accepted = ", ".join(device.name for device in _ALL) + "; or --memory"
        raise RequestError("gpu", f"is {name!r:.60}", accepted)
    return GPUS[name.lower()]
