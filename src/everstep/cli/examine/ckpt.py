"""List what can be restored, verify that it is whole, and take it elsewhere.

everstep ckpt ls [RUN] [--dir DIR]             snapshots in memory, checkpoints on disk, what a fault would cost now
everstep ckpt verify [RUN] [--dir DIR]         reads every byte of a checkpoint: exit code 1 if something is wrong
everstep ckpt export OUT [--dir DIR]           for those without everstep: safetensors, torch, dcp

DIR is a persistent tier (--checkpoint-dir of a run), or one checkpoint in it. See docs/checkpoints.md.
"""

import argparse
import sys
import time
from typing import Any

import msgspec

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store.scanning import Scanned, scan_all
from everstep.cli.reading import Opened, add_run_arguments, open_run, show, show_json, style
from everstep.cli.waiting import BYTES, waiting
from everstep.errors import ConfigError
from everstep.report.checkpoints import Copies, loss_text, racks_text, view
from everstep.report.parts.ansi import Paint, Style, printable
from everstep.report.parts.layout import field, fields, table, text_of
from everstep.report.parts.units import NOT_MEASURED, ago, count, plural, size

EXIT_DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    ls = verbs.add_parser("ls", help="what can be restored, and what a fault would cost now")
    verify = verbs.add_parser("verify", help="is every byte what was written")
    export = verbs.add_parser("export", help="for those without everstep")
    export.add_argument("out", metavar="OUT", help="file to write; with --format dcp a directory")
    for verb in (ls, verify, export):
        add_run_arguments(verb)
        verb.add_argument("--dir", metavar="DIR", help="instead of the run's tier; or one checkpoint in it")
    for verb in (verify, export):
        verb.add_argument("--step", type=int, metavar="N", help="default: the newest")
    verify.add_argument("--all", action="store_true", help="every checkpoint, not only the newest")
    verify.add_argument("--quick", action="store_true", help="lengths and small files only")
    export.add_argument(
        "--format", choices=form.EXPORTED_AS, default="safetensors", help="default: safetensors, the weights only"
    )


def run(given: argparse.Namespace) -> int:
    opened = None if given.dir and given.run is None and given.run_dir is None else open_run(given.run, given.run_dir)
    root, step = _tier(given.dir, opened)
    if given.what == "ls":
        return _ls(root, opened, as_json=given.json)
    if not root:
        raise ConfigError("this run has no persistent tier (it was started without --checkpoint-dir); say --dir DIR")
    asked = step if given.step is None else given.step
    if given.what == "verify":
        return _verify(root, asked, given)
    return _export(root, asked, given)


def _tier(folder: str | None, opened: Opened | None) -> tuple[str, int | None]:
    """(root, step); the step only if DIR was one checkpoint."""
    if folder is None:
        spec = opened.view.spec if opened is not None else None
        return (spec.checkpoint_dir if spec is not None else ""), None
    root, _, name = folder.rstrip("/").rpartition("/")
    step = form.step_of(name)
    return (folder, None) if step is None else (root or ".", step)


def _ls(root: str, opened: Opened | None, *, as_json: bool) -> int:
    found = scan_all(root) if root else None
    copies = None if opened is None else view(opened.view)
    if as_json:
        show_json(_as_json(root, found, copies))
        return 0
    now, paint = time.time(), style()
    rows = [] if copies is None or opened is None or opened.view.is_over else _memory_rows(copies)
    if found is not None:
        rows += _disk_rows(found, now, paint)
    lines = table(("step", "tier", "age", "size", "where", "state"), rows, paint) if rows else []
    if found is None:
        lines += field("disk", "none: a run that is started with --checkpoint-dir DIR has one")
    elif not found.checkpoints:
        lines += field("disk", f"no checkpoint that can be restored is in {root}")
    if found is not None and found.num_writing:
        lines += field("writing", f"{plural(found.num_writing, 'checkpoint')} begun, not committed")
    if copies is not None and opened is not None and not opened.view.is_over and copies.last_step is not None:
        lines += ["", f"if a node dies now: {loss_text(copies.if_node_dies)}"]
        lines += [f"if a rack dies: {loss_text(copies.if_rack_dies)}"]
        if copies.racks:
            lines += field("racks", racks_text(copies))
    show(text_of(lines))
    return 0


def _memory_rows(copies: Copies) -> list[list[str]]:
    """Newest step that all nodes have, in their own memory and in that of others."""
    known = [node.snapshot_step for node in copies.nodes if node.snapshot_step is not None]
    newest = min(known) if known and len(known) == len(copies.nodes) else None
    rows = []
    for tier, step, where in (("memory", newest, "of its node"), ("backup", copies.backup_step, "of another node")):
        if step is not None:
            is_trusted = copies.trusted_step is not None and step <= copies.trusted_step
            rows.append([count(step), tier, NOT_MEASURED, NOT_MEASURED, where, "trusted" if is_trusted else "whole"])
    return rows


def _disk_rows(found: Scanned, now: float, paint: Style) -> list[list[str]]:
    rows = [
        (one.step, ago(one.at, now), size(one.size_bytes), one.path, "trusted" if one.is_trusted else "whole")
        for one in found.checkpoints
    ]
    for bad in found.refused:
        rows.append((bad.step, NOT_MEASURED, NOT_MEASURED, bad.path, paint(printable(bad.why), Paint.RED)))
    return [[count(row[0]), "disk", *row[1:]] for row in sorted(rows, key=lambda row: -row[0])]


def _as_json(root: str, found: Scanned | None, copies: Copies | None) -> dict[str, Any]:
    return {
        "dir": root or None,
        "disk": None if found is None else msgspec.to_builtins(found),
        "memory": None if copies is None else msgspec.to_builtins(copies),
    }


def _chosen(root: str, step: int | None, *, every: bool = False) -> list[int]:
    """Steps that are there, whole or not, newest first. Raises ConfigError."""
    found = scan_all(root)
    steps = {one.step for one in found.checkpoints} | {one.step for one in found.refused}
    if step is not None:
        if step not in steps:
            raise ConfigError(f"no step {step} in {root}; there are: {', '.join(map(str, sorted(steps))) or 'none'}")
        return [step]
    if not steps:
        raise ConfigError(f"no checkpoint is in {root}")
    usable = [one.step for one in found.checkpoints]
    return sorted(steps, reverse=True) if every else [max(usable or steps)]


def _verify(root: str, step: int | None, given: argparse.Namespace) -> int:
    from everstep.checkpoint.persist.read.verifying import verify

    answers = []
    for chosen in _chosen(root, step, every=given.all):
        began = time.monotonic()
        with waiting(f"reading step {chosen}:", 0, BYTES) as bar:
            problems = verify(root, chosen, deep=not given.quick, on_progress=bar.at)
        answers.append((chosen, problems, time.monotonic() - began))
    if given.json:
        show_json([{"step": s, "problems": msgspec.to_builtins(p), "took_s": t} for s, p, t in answers])
    else:
        how = "files and lengths are" if given.quick else "every byte is"
        for chosen, problems, _ in answers:
            if not problems:
                show(f"step {count(chosen)}  {how} what was written\n")
            else:
                named = (f"{problem.name}: {printable(problem.why)}" for problem in problems)
                show(text_of(fields(f"step {count(chosen)}", named, width=14, indent="")))
    return EXIT_DAMAGED if any(problems for _, problems, _ in answers) else 0


def _export(root: str, step: int | None, given: argparse.Namespace) -> int:
    from everstep.checkpoint.persist.read.exporting import export

    chosen = _chosen(root, step)[0]
    notes: list[str] = []
    try:
        with waiting(f"exporting step {chosen}:", 0, BYTES) as bar:
            num_bytes = export(root, chosen, given.out, format=given.format, on_note=notes.append, on_progress=bar.at)
    finally:
        for note in notes:
            print(printable(note), file=sys.stderr, flush=True)
    if given.json:
        show_json({"step": chosen, "out": given.out, "format": given.format, "size_bytes": num_bytes})
    else:
        show(f"step {count(chosen)} is in {given.out} ({given.format}, {size(num_bytes)})\n")
    return 0
