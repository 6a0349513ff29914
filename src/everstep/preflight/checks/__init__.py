"""One module per category. Each has functions that yield results one by one; `registry` names them.

A check measures and says how; it does not judge by limits (that is `judge`), except where it compares with itself
(repeats, processes). What cannot be measured is yielded as unsupported with the reason, never left out and never zero.
"""
