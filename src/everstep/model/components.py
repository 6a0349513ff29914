"""Components about which only the kernel and its drivers are believed: a program can at most repeat their words."""

KERNEL = frozenset(
    {"cpu", "disk", "fs", "gpu", "gpu_amd", "host", "host_memory", "kernel", "network", "nic", "nvlink", "nvswitch"}
    | {"pcie", "power", "rdma", "thermal", "time"}
)
"""A line about one of these counts from the kernel log and the node's own senses. In a rank's output it says what a
program printed: `dmesg`, a sample of its data, or a lie."""

NODE_ACTIONS = frozenset({"REPLACE_NODE", "RESET_GPU", "DRAIN_AND_RESTART_NODE", "REBOOT_NODE"})
"""What takes a machine out of the fleet."""
