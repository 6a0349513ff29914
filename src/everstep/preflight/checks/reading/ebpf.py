"""eBPF: which probes of the kernel could observe a run here, and what is missing for those that could not.

Where nothing is known to be missing, the programs are loaded for a moment: only the kernel's verifier knows the rest.
"""

from collections.abc import Iterator
from pathlib import Path

from everstep.preflight.result import Better, Doing, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.probes.ebpf import support
from everstep.probes.ebpf.libbpf import BpfError, Library, Loaded
from everstep.probes.ebpf.programs import path_of

_USABLE = f"usable; `{support.SWITCH}=on everstep run ...` switches it on"


def measure(settings: Settings) -> Iterator[Yielded]:
    why = support.why_not(Path(settings.root))
    how = "BTF, capabilities, PID namespace, libbpf"
    for name, object_ in support.CLASSES.items():
        refused = why
        if not why and settings.root == "/":
            yield Doing(what=f"loading the eBPF programs of {object_}")
            refused, how = _trial(object_), "loaded, attached and detached"
        if refused:
            yield unsupported(f"ebpf.{name}", refused, how=how)
        else:
            yield measured(f"ebpf.{name}", _USABLE, how=how, better=Better.SAME)


def _trial(name: str) -> str:
    """Why not; empty: it works. They end with this check's process at the latest."""
    try:
        Loaded(Library(), path_of(name)).close()
    except (BpfError, OSError) as error:
        return f"the kernel refuses: {error}"
    return ""
