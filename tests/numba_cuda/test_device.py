# SPDX-License-Identifier: Apache-2.0
"""Device properties: the table, names of architectures, and what the driver says."""

from __future__ import annotations

import pytest
import torch

from fusedsl.numba_cuda.device import A100, H100, H200, UnknownArchitecture, arch_of, properties, resolve


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("A100", A100),
        ("a100", A100),
        ("sm_80", A100),
        ("H100", H100),
        ("H200", H200),
        ("sm_90a", H200),
        ("sm_90", H200),
    ],
)
def test_resolve(name: str, entry: object) -> None:
    assert resolve(name) is entry


@pytest.mark.parametrize("name", ["V100", "sm_70", "", "90a", None, 90])
def test_resolve_of_an_unknown_name(name: str) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        resolve(name)
    assert str(caught.value) == (
        f"UnknownArchitecture: arch={name!r} is not a GPU that fusedsl can plan for without one\n"
        '  expected: "A100", "H200", "H100", "sm_80" or "sm_90a"'
    )


def test_arch_of() -> None:
    assert [arch_of(8, 0), arch_of(8, 9), arch_of(9, 0), arch_of(10, 0)] == ["sm_80", "sm_89", "sm_90a", "sm_100a"]
    with pytest.raises(UnknownArchitecture, match=r"compute capability 7\.5"):
        arch_of(7, 5)


@pytest.mark.gpu
def test_properties_agree_with_torch() -> None:
    ours, theirs = properties(0), torch.cuda.get_device_properties(0)
    assert ours.name == theirs.name
    assert ours.arch.startswith(f"sm_{theirs.major}{theirs.minor}")
    assert ours.multiprocessors == theirs.multi_processor_count
    assert ours.max_threads_per_sm == theirs.max_threads_per_multi_processor
    assert ours.l2_bytes == theirs.L2_cache_size
    assert ours.smem_per_block_optin == theirs.shared_memory_per_block_optin
    assert ours.registers_per_sm == theirs.regs_per_multiprocessor
    assert 0.5e12 < ours.copy_bandwidth < 20e12
