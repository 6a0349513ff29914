"""Packs what is needed to help with an incident; what is left out or masked is listed.

everstep bundle i3 [RUN]            everstep-RUN-i3.tar.gz: the incident, its journal, evidence, logs, versions
everstep bundle                     the last incident; of a run without one, its status and logs
everstep bundle i3 --no-logs        without what ranks wrote
"""

import argparse
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from everstep.cli.reading import Opened, find_incident, open_run, show
from everstep.cli.share.packing import Bundle
from everstep.errors import ConfigError
from everstep.journal.beside.secrets import secret_values
from everstep.journal.view import IncidentView
from everstep.linux.regular import regular
from everstep.report.asjson import goodput_json, incident_json, status_json
from everstep.report.handing.html import incident_html
from everstep.report.handing.markdown import incident_markdown
from everstep.report.handing.masking import Mask
from everstep.report.parts.units import size
from everstep.report.picture.incidents import incident_page
from everstep.report.picture.schema import IncidentPage
from everstep.version import __version__

MAX_RANKS = 16
AROUND = 200
"""Records of the journal before and after those of the incident."""

MAX_RECORD_BYTES = 256 << 10
_ID = re.compile(r"i\d+|last")
_PACKAGES = ("torch", "numpy", "transformers", "pytorch-lightning", "accelerate", "aiohttp", "msgspec", "py-spy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="ID RUN", help="an incident, a run; default: the last of the latest"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--out", metavar="FILE", help="default: everstep-RUN-ID.tar.gz in this directory")
    parser.add_argument("--no-logs", action="store_true", help="without what ranks wrote")


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError, JournalError."""
    names = [word for word in given.words if _ID.fullmatch(word)]
    runs = [word for word in given.words if not _ID.fullmatch(word)]
    if len(names) > 1 or len(runs) > 1:
        raise ConfigError("everstep bundle [ID] [RUN]: one incident, one run")
    opened = open_run(runs[0] if runs else None, given.run_dir)
    incident = None
    if names or opened.view.incidents:
        incident = find_incident(opened.view, names[0] if names else "last")
    words = ("everstep", opened.view.run, *([incident.id] if incident else []))
    name = re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(words))
    bundle = pack(opened, incident, name, with_logs=not given.no_logs)
    path = Path(given.out) if given.out else Path(f"{name}.tar.gz")
    data = bundle.whole()
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}. Nothing was packed. Choose another --out") from error
    show(bundle.listing())
    show(f"\n{path}   {size(len(data))}\n")
    return 0


def pack(opened: Opened, incident: IncidentView | None, name: str, *, with_logs: bool) -> Bundle:
    view, run_dir = opened.view, opened.run_dir.path
    mask = Mask(secret_values(run_dir, os.environ))
    bundle = Bundle(name, mask)
    bundle.add_json("versions.json", _versions(opened))
    bundle.add_json("status.json", status_json(view, opened.goodput, opened.asked))
    bundle.add_json("goodput.json", goodput_json(view, opened.goodput, opened.asked))
    first, last = max(0, view.last_seq - 2 * AROUND), view.last_seq
    if incident is not None:
        page = incident_page(view, incident, opened.goodput)
        page = msgspec.convert(mask.deep(msgspec.to_builtins(page)), IncidentPage)  # Markdown spells texts otherwise
        bundle.add("incident.md", incident_markdown(page, view.run))
        bundle.add("incident.html", incident_html(page, view.run))
        bundle.add_json("incident.json", incident_json(view, incident))
        seqs = [record.seq for record in incident.records] or [incident.seq]
        first, last = max(0, seqs[0] - AROUND), seqs[-1] + AROUND
        _folder(bundle, run_dir, f"evidence/{incident.id}")
    _journal(bundle, opened.run_dir.journal, first, last)
    _logs(bundle, opened, incident, with_logs=with_logs)
    for what, why in (
        ("secret, token, token-read, tls-*.pem", "keys"),
        ("nodes/*/credentials.json", "keys"),
        ("variables/", "values of variables"),
        ("code/", "your program; `everstep status` names its version"),
        ("checkpoints and snapshots", "your model"),
    ):
        bundle.leave_out(what, why)
    return bundle


def _versions(opened: Opened) -> dict[str, object]:
    installed: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    of_run = {"everstep": opened.view.everstep_version}
    here = {"everstep": __version__, "python": sys.version.split()[0], "platform": platform.platform(), **installed}
    return {"run": of_run, "here": here}


def _journal(bundle: Bundle, path: Path, first: int, last: int) -> None:
    """The header, and the records of the incident with some around them."""
    kept, num_left = [], 0
    with regular(path) as file:
        for number, line in enumerate(file):
            wanted = number == 0 or first <= number <= last
            if wanted and len(line) <= MAX_RECORD_BYTES:
                kept.append(line.decode(errors="replace"))
            else:
                num_left += 1
    bundle.add("journal.jsonl", "".join(kept), f"{num_left:,} other records are left out" if num_left else "")


def _logs(bundle: Bundle, opened: Opened, incident: IncidentView | None, *, with_logs: bool) -> None:
    run_dir, view = opened.run_dir.path, opened.view
    for name in ("controller.log", "launcher.log", "notices.log", "otlp.log"):
        _file(bundle, run_dir, name, only_tail=True)
    for node in list(view.nodes)[:MAX_RANKS]:
        _file(bundle, run_dir, f"nodes/{node}/agent.log", only_tail=True)
        _file(bundle, run_dir, f"nodes/{node}/senses.json")
    if not with_logs:
        bundle.leave_out("logs/", "--no-logs")
        return
    number = incident.generation if incident is not None else view.generation.number if view.generation else 0
    generation = next((g for g in view.generations if g.number == number), None)
    blamed = incident.verdict.ranks if incident is not None and incident.verdict is not None else ()
    ranks = list(dict.fromkeys([*blamed, *sorted(generation.node_of if generation is not None else ())]))
    for rank in ranks[:MAX_RANKS]:
        for stream in ("stdout", "stderr"):
            name = f"logs/gen-{number}/rank-{rank}/{stream}.log"
            _file(bundle, run_dir, name, only_tail=True)
    if len(ranks) > MAX_RANKS:
        bundle.leave_out(f"logs of {len(ranks) - MAX_RANKS} more ranks", f"{MAX_RANKS} are in it, blamed ones first")


def _folder(bundle: Bundle, run_dir: Path, name: str) -> None:
    folder = run_dir / name
    if folder.is_symlink() or not _is_in(run_dir, folder) or not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file() or path.is_symlink():
            _file(bundle, run_dir, f"{name}/{path.relative_to(folder)}")


def _file(bundle: Bundle, run_dir: Path, name: str, *, only_tail: bool = False) -> None:
    if _is_in(run_dir, (run_dir / name).parent):
        bundle.add_file(run_dir / name, name, only_tail=only_tail)
    else:
        bundle.leave_out(name, "it leads out of the run's directory")


def _is_in(run_dir: Path, folder: Path) -> bool:
    """Whether the folder is in the run directory. The names are of a journal that another user may have written, and a
    folder may be a link."""
    try:
        return folder.resolve().is_relative_to(run_dir.resolve())
    except (OSError, RuntimeError, ValueError):  # a link to itself; what cannot be a name
        return False
