"""How long ranks have before they are ended by force."""

from everstep.core.restore.trust import is_corrupted
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State


def of(state: State, policy: Policy) -> float:
    """What ranks get between SIGTERM and SIGKILL: torchrun's time where the run ends, or where a rank may save itself;
    less where a snapshot holds what every rank has, and least for those that hang."""
    if state.ending is not None:
        return policy.shutdown_s
    if state.incident is not None and state.incident.facts.hang is not None:
        return min(policy.hang_grace_s, policy.stop_grace_s)
    accounts = [worker.account for worker in state.workers.values()]
    is_saved = all(account is not None and account.published_step is not None for account in accounts)
    return policy.stop_grace_s if is_saved else max(policy.shutdown_s, policy.stop_grace_s)


def to_save_s(state: State, policy: Policy) -> float:
    """What ranks that live get to complete the snapshot of their last step. Nobody waits for what is complete."""
    incident = state.incident
    if is_corrupted(incident):
        return 0.0  # what they hold now is what must not be restored
    accounts = [worker.account for worker in state.workers.values()]
    has_all = all(account is not None and account.published_step == account.last_step for account in accounts)
    is_hang = incident is not None and incident.facts.hang is not None
    return 0.0 if is_hang and has_all else policy.save_s
