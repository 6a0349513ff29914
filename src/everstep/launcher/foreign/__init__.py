"""Command lines of other launchers: `everstep run accelerate launch ...`, `deepspeed ...`, `torchrun ...`."""
