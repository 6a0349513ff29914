"""The buckets: every second of every rank is in exactly one. The texts are the glossary of docs/goodput.md."""

import enum


class Bucket(enum.StrEnum):
    PRODUCTIVE = "productive"
    REDONE = "redone"
    DETECT = "detect"
    DIAGNOSE = "diagnose"
    SCHEDULE = "schedule"
    INITIALISE = "initialise"
    RESTORE = "restore"
    CHECKPOINT_STALL = "checkpoint_stall"
    IDLE = "idle"
    NOT_MEASURED = "not_measured"


GLOSSARY: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "steps whose result was kept",
    Bucket.REDONE: "steps, or the begun part of one, whose result was lost and which had to be done again",
    Bucket.DETECT: "from the fault until it was on record",
    Bucket.DIAGNOSE: "from then until the first decision about it",
    Bucket.SCHEDULE: "waiting for a start: ending the old ranks, finding nodes, waiting for an approval",
    Bucket.INITIALISE: "from the decision to start (imports, processes, rendezvous, model) to the first step, "
    "without restoring",
    Bucket.RESTORE: "loading state from a snapshot",
    Bucket.CHECKPOINT_STALL: "training stood still while a snapshot was taken",
    Bucket.IDLE: "nothing to do: the rank was done, or the run was ending",
    Bucket.NOT_MEASURED: "unknown: no reports, a program that reports no steps, or clocks that disagree",
}
