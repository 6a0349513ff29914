"""PCI: which devices there are, and whether the links of GPUs, network cards and disks run at full width and speed."""

from collections.abc import Iterator

from everstep.preflight.result import Better, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import Place, names_in, not_negative, parts, read_place, text_of, whole

_BASE = "/sys/bus/pci/devices"
_CLASSES = {
    "0x0106": "sata", "0x0108": "nvme", "0x0200": "ethernet", "0x0207": "infiniband", "0x0300": "vga",
    "0x0302": "gpu", "0x1200": "accelerator", "0x0680": "bridge",
}  # fmt: skip
_NVIDIA = "0x10de"


def gpus_on_bus(root: str) -> list[str]:
    """Addresses of NVIDIA GPUs, whether or not their driver works."""
    found = []
    for address in names_in(root, _BASE):
        kind = (text_of(root, f"{_BASE}/{address}/class") or "")[:6]
        if kind in ("0x0300", "0x0302") and text_of(root, f"{_BASE}/{address}/vendor") == _NVIDIA:
            found.append(address)
    return found


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    addresses = names_in(root, _BASE)
    if not addresses:
        yield unsupported("pci.count", f"{_BASE} is empty or not there", "devices")
        return
    yield measured("pci.count", len(addresses), "devices", how=f"list {_BASE}", better=Better.SAME)
    yield measured(
        "pci.nvidia_gpus", len(gpus_on_bus(root)), "devices", how=f"vendor and class in {_BASE}", better=Better.SAME,
        tolerance=0.0,
    )  # fmt: skip
    yield from parts("pci", *(_device(root, address) for address in addresses))


def _device(root: str, address: str) -> Iterator[Result]:
    base = f"{_BASE}/{address}"
    identity = [text_of(root, f"{base}/{file}") or "?" for file in ("vendor", "device")]
    kind = (text_of(root, f"{base}/class") or "")[:6]
    how = f"list {_BASE}"
    prefix = f"pci.{address}"
    yield measured(f"{prefix}.present", True, how=how, better=Better.SAME, tolerance=0.0, device=address)
    title = f"{':'.join(identity)} {_CLASSES.get(kind, kind)}"
    how = f"read {base}/vendor, device, class"
    yield measured(f"{prefix}.identity", title, how=how, better=Better.SAME, device=address)
    if kind not in _CLASSES:
        return
    yield read_place(
        root, Place(name=f"{prefix}.numa_node", path=f"{base}/numa_node", parse=not_negative), device=address
    )
    yield read_place(root, Place(name=f"{prefix}.power_state", path=f"{base}/power_state", parse=whole), device=address)
    yield from _link(root, prefix, base, address)
    yield from _errors(root, prefix, base, address)


def _link(root: str, prefix: str, base: str, address: str) -> Iterator[Result]:
    for what, unit in (("width", "lanes"), ("speed", "GT/s")):
        now = text_of(root, f"{base}/current_link_{what}")
        most = text_of(root, f"{base}/max_link_{what}")
        name = f"{prefix}.link_{what}"
        have, top = _leading(now), _leading(most)
        if have is None or top is None or have == 0:
            yield unsupported(name, "the device has no PCIe link that the kernel knows of", unit, device=address)
            continue
        how = f"read {base}/current_link_{what}; the device can do {most}"
        yield measured(name, have, unit, how=how, better=Better.HIGHER, tolerance=0.0, device=address)
        full = f"{prefix}.link_at_full_{what}"
        yield measured(full, have >= top, how=how, better=Better.SAME, tolerance=0.0, device=address)


def _leading(text: str | None) -> float | None:
    """32.0 of "32.0 GT/s PCIe"; None for "Unknown" and 255 lanes, which mean a device that does not answer."""
    try:
        number = float((text or "").split()[0])
    except (ValueError, IndexError):
        return None
    return None if number == 255 else number


def _errors(root: str, prefix: str, base: str, address: str) -> Iterator[Result]:
    for kind in ("correctable", "nonfatal", "fatal"):
        text = text_of(root, f"{base}/aer_dev_{kind}")
        name = f"{prefix}.aer_{kind}"
        totals = [line.split()[-1] for line in (text or "").splitlines() if line.startswith("TOTAL_ERR")]
        if totals and totals[0].isdigit():
            yield measured(
                name, int(totals[0]), "errors", how=f"read {base}/aer_dev_{kind}", better=Better.LOWER, device=address
            )  # fmt: skip
        else:
            yield unsupported(name, "the kernel counts no AER errors of this device", "errors", device=address)
