"""Makes the device write where no memory is: the driver reports an Xid, and the process gets CUDA's error. Once: the
next life ends well.

everstep run ... wild_program.py DEVICE
"""

import os
import sys
import time

import torch

from gpu_running.kernels import write_where_no_memory_is


def main() -> None:
    torch.cuda.set_device(sys.argv[1])
    torch.ones(8, device=sys.argv[1]).sum().item()
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        return
    time.sleep(3.0)  # senses have begun
    write_where_no_memory_is()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
