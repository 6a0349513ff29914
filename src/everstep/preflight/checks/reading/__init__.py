"""Checks that read files of the kernel and ask drivers: they may run beside a job."""
