"""Kernels that no library offers, as PTX that the driver compiles: one that writes where no memory is.

Through the driver's own calls, so that no compiler has to be there. The process must have a context on its thread.
"""

import ctypes

_WILD = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry wild()
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    mov.u64 %rd1, 64;
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def write_where_no_memory_is() -> None:
    """Launches it; what comes of that is seen at the next call. Raises OSError."""
    library = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _checked(library.cuModuleLoadData(ctypes.byref(module), _WILD), "cuModuleLoadData")
    _checked(library.cuModuleGetFunction(ctypes.byref(function), module, b"wild"), "cuModuleGetFunction")
    sizes = [ctypes.c_uint(1)] * 6
    none = ctypes.c_void_p()
    _checked(library.cuLaunchKernel(function, *sizes, ctypes.c_uint(0), none, none, none), "cuLaunchKernel")


def _checked(code: int, call: str) -> None:
    if code != 0:
        raise OSError(f"{call}: CUDA error {code}")
