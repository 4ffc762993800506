"""Keeps PyTorch's own oneDNN from using AMX tiles that a hypervisor hides: call limit_onednn() before `import torch`.

oneDNN lays out tile registers by CPUID leaf 1DH. If a virtual machine announces AMX but that leaf reads as zero, oneDNN's
first tile instruction kills the process. `tessera doctor` says whether this is such a machine. `tessera-bench` sets
ONEDNN_MAX_CPU_ISA for the programs that it compares with, also for other instruction sets that fail.
"""

import ctypes
import mmap
import os


def cpuid(leaf, subleaf=0):
    """EAX, EBX, ECX and EDX. Python cannot query them, so this runs machine code: void f(leaf, subleaf, *registers)."""
    code = bytes.fromhex(
        "53"  # push rbx
        "4989d0"  # mov r8, rdx
        "89f8"  # mov eax, edi
        "89f1"  # mov ecx, esi
        "0fa2"  # cpuid
        "418900"  # mov [r8], eax
        "41895804"  # mov [r8 + 4], ebx
        "41894808"  # mov [r8 + 8], ecx
        "4189500c"  # mov [r8 + 12], edx
        "5b"  # pop rbx
        "c3"  # ret
    )
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    place = ctypes.c_char.from_buffer(page)
    registers = (ctypes.c_uint32 * 4)()
    ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(ctypes.addressof(place))(
        leaf, subleaf, ctypes.addressof(registers)
    )
    return tuple(registers)


def max_cpu_isa(announces_amx, max_palette):
    """The value for ONEDNN_MAX_CPU_ISA, or None if oneDNN may use what it finds."""
    return "AVX512_CORE_BF16" if announces_amx and max_palette == 0 else None


def limit_onednn():
    """Sets ONEDNN_MAX_CPU_ISA if it must be set and is not."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        announces_amx = " amx_tile" in file.read()
    tile_leaf = 0x1D
    max_palette = cpuid(tile_leaf)[0] if announces_amx and cpuid(0)[0] >= tile_leaf else 0
    value = max_cpu_isa(announces_amx, max_palette)
    if value is not None:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", value)


def describe(name):
    """The name of the program we compare with, and the limit on its oneDNN if there is one, for the report."""
    value = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return name if value is None else f"{name} (oneDNN up to {value})"
