"""The brain: `step(state, event, policy) -> (state, actions)`. Pure: no clock, no I/O, no randomness, no torch.

What the shell owes it (controller, simulator, replay and tests are such shells):
1. Feed events one at a time, in the order of their arrival; nothing else changes the state.
2. Write event and actions to the journal before the first action is carried out.
3. Carry out every action, in order; those that only put something on record need nothing.
4. After a restart fold the journal through `step`, then carry out `reissue(state, policy)`; again for a peer that
   reconnects.
5. Drop what comes from another run. Older generations may be fed: they are dropped and counted here.
"""
