"""The frameworks that own their training loop, and the data that a step has read: made to go on at the very next step.
And the trackers that a program logs to.

One module per library, and none is imported before the program imports it. Each builds an `everstep.State` from the
library's own objects and tells it when a step is complete; none keeps anything itself. See docs/integrations.md.
"""
