# SPDX-License-Identifier: Apache-2.0
"""What schedulers know about a GPU: read from the device, or from a table when there is none."""

from __future__ import annotations

import functools
import re

import attrs

from fusedsl.graph.span import FuseError
from fusedsl.numba_cuda import driver

# CUdevice_attribute
_MEMORY_CLOCK_KHZ = 36
_MEMORY_BUS_BITS = 37
_L2_BYTES = 38
_MULTIPROCESSORS = 16
_MAX_THREADS_PER_SM = 39
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_SMEM_PER_SM = 81
_REGISTERS_PER_SM = 82
_SMEM_PER_BLOCK_OPTIN = 97

#: Multiprocessors of a group (GPC) that share clusters, at least: H100 and H200 have eight groups of 16 or 18.
_GROUP = 16

#: A copy reaches about this part of the pins' rate (H200: 4.27 of 4.8 TB/s).
_COPY_EFFICIENCY = 0.89


class UnknownArchitecture(FuseError):
    """``arch=`` names no GPU that fusedsl knows, or one older than sm_80."""


@attrs.frozen
class DeviceProperties:
    """A GPU, as far as schedulers and compiler care.

    Attributes:
        name: ``"NVIDIA H200"``, or the table's short name.
        arch: what the linker is asked for: ``"sm_80"``, ``"sm_90a"``.
        multiprocessors: number of them.
        max_threads_per_sm: resident threads a multiprocessor.
        smem_per_block_optin: most shared memory a block may have, in bytes, static part included.
        smem_per_sm: shared memory a multiprocessor, in bytes.
        l2_bytes: size of the L2 cache.
        registers_per_sm: 32-bit registers a multiprocessor.
        max_cluster: most blocks a cluster may have; 1 where there are no clusters.
        copy_bandwidth: bytes a second that a device-to-device copy reads plus writes (an estimate).
        clusters: sizes of clusters, and how many of each are resident at once with one block a multiprocessor; GPUs of
            one name differ.
    """

    name: str
    arch: str
    multiprocessors: int
    max_threads_per_sm: int
    smem_per_block_optin: int
    smem_per_sm: int
    l2_bytes: int
    registers_per_sm: int
    max_cluster: int
    copy_bandwidth: float
    clusters: tuple[tuple[int, int], ...] = ()

    def resident_clusters(self, size: int, blocks: int = 1) -> int:
        """Clusters of ``size`` blocks that are resident at once, with ``blocks`` blocks a multiprocessor.

        A cluster lies in one group of multiprocessors, so what a group has beyond a multiple stays idle. A grid that
        walks over rows must not have more: a cluster that waits for another one doubles the time.
        """
        known = dict(self.clusters).get(size)
        if known is not None:
            return known * blocks
        if size <= 2 or self.multiprocessors < _GROUP:
            return max(self.multiprocessors * blocks // size, 1)
        return max(self.multiprocessors // _GROUP * (_GROUP * blocks // size), 1)


A100 = DeviceProperties("A100", "sm_80", 108, 2048, 166912, 167936, 40 << 20, 65536, 1, 1.75e12)
#: Of H200s: 16 and 8 with one block a multiprocessor, 4 as half of 62 with two (another card had 30), 2 by the number.
_CLUSTERS = ((2, 66), (4, 31), (8, 15), (16, 7))
H100 = DeviceProperties("H100", "sm_90a", 132, 2048, 232448, 233472, 50 << 20, 65536, 16, 2.95e12, _CLUSTERS)
H200 = DeviceProperties("H200", "sm_90a", 132, 2048, 232448, 233472, 50 << 20, 65536, 16, 4.27e12, _CLUSTERS)

#: GPUs to plan and compile for with none at hand; the first of an architecture stands for it.
TABLE: tuple[DeviceProperties, ...] = (A100, H200, H100)


def resolve(arch: str) -> DeviceProperties:
    """The table's entry for a GPU name or an architecture: ``"H200"``, ``"a100"``, ``"sm_80"``, ``"sm_90a"``.

    Raises:
        UnknownArchitecture: nothing of that name.
    """
    if isinstance(arch, str):
        wanted = arch.strip().lower()
        for entry in TABLE:
            if wanted in (entry.name.lower(), entry.arch, entry.arch.rstrip("a")):
                return entry
    names = ", ".join(f'"{entry.name}"' for entry in TABLE)
    raise UnknownArchitecture(
        f"arch={arch!r} is not a GPU that fusedsl can plan for without one", expected=f'{names}, "sm_80" or "sm_90a"'
    )


def arch_of(major: int, minor: int) -> str:
    """The linker's architecture of a compute capability, with the arch-specific features where there are any (9.0 up).

    Raises:
        UnknownArchitecture: older than 8.0.
    """
    if major < 8:
        raise UnknownArchitecture(
            f"this GPU has compute capability {major}.{minor}", expected="8.0 (A100 generation) or newer"
        )
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@functools.cache
def properties(device_index: int) -> DeviceProperties:
    """The properties of ``cuda:device_index``, read from the driver.

    Raises:
        DriverError: no driver or no such device.
        UnknownArchitecture: older than sm_80.
    """
    read = functools.partial(driver.device_attribute, device_index)
    arch = arch_of(read(_CAPABILITY_MAJOR), read(_CAPABILITY_MINOR))
    pins = 2 * 1e3 * read(_MEMORY_CLOCK_KHZ) * read(_MEMORY_BUS_BITS) / 8
    match = re.match(r"sm_(\d+)", arch)
    assert match is not None
    most, smem = (16 if arch == "sm_90a" else 8) if int(match[1]) >= 90 else 1, read(_SMEM_PER_BLOCK_OPTIN)
    sizes = [size for size in (2, 4, 8, 16) if size <= most]
    return DeviceProperties(
        name=driver.device_name(device_index),
        arch=arch,
        multiprocessors=read(_MULTIPROCESSORS),
        max_threads_per_sm=read(_MAX_THREADS_PER_SM),
        smem_per_block_optin=smem,
        smem_per_sm=read(_SMEM_PER_SM),
        l2_bytes=read(_L2_BYTES),
        registers_per_sm=read(_REGISTERS_PER_SM),
        max_cluster=most,
        copy_bandwidth=_COPY_EFFICIENCY * pins if pins else H200.copy_bandwidth,
        clusters=driver.resident_clusters(device_index, sizes, smem) if sizes else (),
    )
