"""The signatures that Everstep comes with, as a process has them: once, with automata that grow by what is read."""

from everstep.knowledge.live import built_in

BASE, ENGINE = built_in()
