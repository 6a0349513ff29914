"""What the actions of the knowledge base mean for a person. The closed list is `knowledge.signature.Action`; pure."""

ACTIONS = {
    "RESTART_IN_PLACE": "Nothing: a restart cures it. If it recurs, inspect the node.",
    "RESET_GPU": "Drain the node, reset its accelerator, run `everstep check`, and readmit it.",
    "DRAIN_AND_RESTART_NODE": "Drain the node, restart its services, run `everstep check`, and readmit it.",
    "REBOOT_NODE": "Drain and reboot the node, run `everstep check`, and readmit it.",
    "REPLACE_NODE": "Take the node out and have its hardware looked at: it does not come back by itself.",
    "CHECK_NODE": "Run `everstep check` on the node: a program says that it is at fault, its own sensors do not.",
    "CHECK_USER_CODE": "Look at the program: no machine is to blame.",
    "CHECK_ENVIRONMENT": "Look at versions, limits and settings of the job and the node.",
    "CHECK_NETWORK": "Look at the link that the evidence names: cable, port, switch, counters.",
    "CHECK_STORAGE": "Look at the storage that the evidence names.",
    "CHECK_SCHEDULER": "Ask the scheduler why it ended or moved the job.",
    "FIND_ROOT": "This is a consequence: what came before it is the cause.",
    "REVIEW": "This line is not classified yet: `everstep kb unknown`.",
    "MONITOR": "Nothing yet: watch whether it grows.",
    "IGNORE": "Nothing.",
}
