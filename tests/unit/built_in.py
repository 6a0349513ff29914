"""The signatures that Everstep comes with, compiled once for all tests of a process: it takes most of a second."""

from everstep.knowledge.engine import Engine
from everstep.knowledge.loading import load_base

BASE = load_base()
ENGINE = Engine(BASE.signatures)
