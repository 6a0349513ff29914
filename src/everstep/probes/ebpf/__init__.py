"""The kernel's view of the run: eBPF programs and the process that holds them (docs/adr/0026-ebpf.md)."""
