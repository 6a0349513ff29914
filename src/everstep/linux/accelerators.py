"""Whether a process has an accelerator open: if so, a device may compute while its threads sleep."""

import os

_DEVICES = (
    "/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci", "/dev/hisi", "/dev/neuron", "/dev/habanalabs",
    "/dev/hl", "/dev/xpu", "/dev/vfio/", "/dev/dxg", "/dev/mxcd", "/dev/cambricon", "/dev/biren", "/dev/iluvatar",
)  # fmt: skip
"""Prefixes of the device files of NVIDIA, AMD, Intel, Google, Huawei, AWS, Habana and others."""


def has_accelerator(pid: int) -> bool:
    """True also if unknown: an unknown value must not make a device look idle."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only, of hundreds of descriptors
    except OSError:
        return True
    return any(_target(f"{folder}/{name}").startswith(_DEVICES) for name in names)


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - as above
    except OSError:
        return ""  # closed meanwhile
