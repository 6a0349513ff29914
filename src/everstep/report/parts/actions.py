"""Meaning of the knowledge base's actions for a person. The closed list is `knowledge.signature.Action`; pure."""

ACTIONS = {
    "RESTART_IN_PLACE": "Restart. If it recurs on one machine only, inspect that machine; if at the same place of the "
    "program, inspect the program.",
    "RESET_GPU": "Drain the node, reset its accelerator, run `everstep check`, and readmit it.",
    "DRAIN_AND_RESTART_NODE": "Drain the node, restart its services, run `everstep check`, and readmit it.",
    "REBOOT_NODE": "Drain and reboot the node, run `everstep check`, and readmit it.",
    "REPLACE_NODE": "Take the node out and have its hardware looked at: it does not come back by itself.",
    "CHECK_NODE": "Run `everstep check` on the node: a program says that it is at fault, its own sensors do not.",
    "CHECK_USER_CODE": "Look at the program and its settings.",
    "CHECK_ENVIRONMENT": "Check what the evidence names: a version, a limit or a setting of the job or the node.",
    "CHECK_NETWORK": "Check the connection that the evidence names: address and interface first, then port, cable and "
    "counters.",
    "CHECK_STORAGE": "Check the file or mount that the evidence names, from that node and from another one.",
    "CHECK_SCHEDULER": "Read why the scheduler ended or moved the job: sacct, or the events of the pod.",
    "FIND_ROOT": "Look for what came before it: this is a consequence.",
    "REVIEW": "This line is not classified yet: `everstep kb unknown`.",
    "MONITOR": "Nothing yet. If it recurs or grows, inspect what the evidence names.",
    "IGNORE": "Nothing.",
}
