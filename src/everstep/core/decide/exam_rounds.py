"""The next examination round, and what its answers mean. Pure, over the rounds of one `Examination`.

Checks run from cheap to expensive and stop at the first that identifies a node: a machine that fails its own test needs
no all-gather. A missing answer means unknown: never a pass, and never enough to evict on its own.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from everstep.analyzer.observations.words import names_text
from everstep.analyzer.slowness import replay, singling
from everstep.analyzer.slowness.replay import Layout, Outcome
from everstep.core.state.course import Answer, Examination, ExamRound, FlowStage
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.model.facts import ExamKind
from everstep.model.verdict import Refusal

Groups = tuple[tuple[str, ...], ...]
Axes = tuple[tuple[str, int], ...]

_TENSOR, _PIPELINE = ("tp", "tensor"), ("pp", "pipeline")

_FIGURE = re.compile(r"\d[\d.]*")

NO_VOTE = "no majority computed the same, so no node can be named"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    failed: dict[str, str] = {}  # node -> what it failed
    unclear: tuple[Refusal, ...] = ()


def next_round(examination: Examination, num_ranks: int) -> tuple[ExamKind, Groups] | None:
    """Return the kind and groups of the next round; None if all rounds are done."""
    if examination.stage is FlowStage.REPLAY:
        return _next_replay(examination)
    agenda = _agenda(examination.nodes, num_ranks)
    done = len(examination.rounds)
    if done == len(agenda):
        return None
    is_same_check = done > 0 and agenda[done - 1][0] is agenda[done][0]
    if not is_same_check and judge(examination).failed:
        return None
    return agenda[done]


def judge(examination: Examination) -> Judged:
    """Judge all rounds so far together."""
    if examination.stage is FlowStage.REPLAY:
        return _judge_replay(examination)
    found = [
        _judge_check(kind, tuple(rounds))
        for kind, rounds in groupby(examination.rounds, key=lambda round_: round_.kind)
    ]
    failed = {node: says for each in reversed(found) for node, says in each.failed.items()}
    unclear = tuple(refusal for each in found for refusal in each.unclear)
    return Judged(failed=failed, unclear=(*unclear, *_silent(examination.rounds)))


def says(examination: Examination, policy: Policy, took_s: float) -> str:
    """The outcome in a sentence."""
    judged, num = judge(examination), len(examination.nodes)
    kinds = ", ".join(dict.fromkeys(str(round_.kind) for round_ in examination.rounds))
    if judged.failed:
        return f"{names_text(tuple(judged.failed))} of {num} machines failed ({kinds}, {took_s:.1f} s)"
    if judged.unclear:
        return f"no machine is named, and not all of {num} passed ({kinds}, {took_s:.1f} s)"
    unseen = ""
    if examination.stage is FlowStage.REPLAY:
        unseen = f"; {replay.none_text(policy.replay_detection, num_replays(policy))}"
    return f"all {num} machines passed ({kinds}, {took_s:.1f} s){unseen}"


def job_shape(state: State) -> Axes:
    """The job's layout, outermost first, from the groups that its ranks declared; what is not declared is taken as
    1."""
    tensor, pipeline = _size_of(state, _TENSOR), _size_of(state, _PIPELINE)
    world = state.spec.world_size if state.spec is not None else 1
    if world % (tensor * pipeline):
        tensor = pipeline = 1
    return (("pp", pipeline), ("dp", world // (tensor * pipeline)), ("tp", tensor))


def replay_layout(state: State, nodes: Sequence[str]) -> Layout | str:
    """Groups of machines for dual-phase replay, or why there are none."""
    if state.spec is None:
        return "the run has not started"
    return replay.layout(len(nodes), pipeline_machines(state)) if nodes else "no machine is left"


def pipeline_machines(state: State) -> int:
    """Machines that one pipeline of the job spans."""
    shape, per_node = dict(job_shape(state)), state.spec.nproc_per_node if state.spec is not None else 1
    return max(1, shape["tp"] * shape["pp"] // per_node)


def num_replays(policy: Policy) -> int:
    return replay.rounds_for(policy.replay_detection, policy.replay_confidence)


def _agenda(nodes: tuple[str, ...], num_ranks: int) -> list[tuple[ExamKind, Groups]]:
    alone: Groups = tuple((node,) for node in nodes)
    agenda: list[tuple[ExamKind, Groups]] = [(ExamKind.SELF, alone)]
    if num_ranks > 1:
        agenda.append((ExamKind.ALL_TO_ALL, alone))
    agenda += [(ExamKind.ALL_GATHER, pairs) for pairs in singling.ring_rounds(nodes)]
    agenda.append((ExamKind.ALIGNMENT, alone))
    return agenda


def _judge_check(kind: ExamKind, rounds: tuple[ExamRound, ...]) -> Judged:
    if kind is ExamKind.ALL_GATHER:
        return _judge_pairs(rounds)
    answers = rounds[0].answers
    failed = {node: f"{kind}: {a.why}" for node, a in answers.items() if a.passed is False}
    if kind is not ExamKind.ALIGNMENT:
        return _judge_common(kind, answers, failed)
    nodes = [node for (node,) in rounds[0].groups]
    odd = replay.odd_digests([_digest(answers.get(node)) for node in nodes])
    num_same = sum(outcome is False for outcome in odd)
    for node, outcome in zip(nodes, odd, strict=True):
        if outcome:
            others = f"{num_same} others, which are equal bit by bit"
            failed.setdefault(node, f"{kind}: it computed something else than {others}")
    different = {_digest(answers.get(node)) for node in nodes} - {""}
    if len(different) > len({replay.kind_of(digest) for digest in different}) and not failed:
        no_vote = Refusal(what="name a machine that computes wrongly", why=f"{kind}: {NO_VOTE}")
        return Judged(unclear=(no_vote,))
    return Judged(failed=failed)


def _judge_common(kind: ExamKind, answers: Mapping[str, Answer], failed: dict[str, str]) -> Judged:
    """Blame no machine if every machine that answered fails alike. The cause then lies in what they share: a file
    system, an image, a setting."""
    num_answered = sum(answer.passed is not None for answer in answers.values())
    alike = {_FIGURE.sub("#", answers[node].why) for node in failed}
    if len(failed) < 2 or len(failed) < num_answered or len(alike) > 1:
        return Judged(failed=failed)
    why = f"{kind}: all of them fail alike, so the cause lies in what they share: {answers[next(iter(failed))].why}"
    return Judged(unclear=(Refusal(what=f"name one of {names_text(tuple(failed))}", why=why),))


def _judge_pairs(rounds: tuple[ExamRound, ...]) -> Judged:
    outcomes = {(pair[0], pair[1]): _outcome(pair, round_) for round_ in rounds for pair in round_.groups}
    singled = singling.single_out(outcomes)
    kind = ExamKind.ALL_GATHER
    failed = {
        node: f"{kind}: it fails with {names_text(singled.partners[node])}, which passes with another machine"
        if len(singled.partners[node]) == 1
        else f"{kind}: it fails with {names_text(singled.partners[node])}, which pass with other machines"
        for node in singled.bad
    }
    why = f"{kind}: they fail, and never with a machine that is known to be good"
    doubt = Refusal(what=f"name one of {names_text(singled.unclear)}", why=why)
    return Judged(failed=failed, unclear=(doubt,) if singled.unclear else ())


def _next_replay(examination: Examination) -> tuple[ExamKind, Groups] | None:
    groups = _layout(examination)
    done = len(examination.rounds)
    if done < 2:
        chosen = groups.vertical() if done else groups.horizontal()
        return ExamKind.REPLAY, _names(examination, chosen)
    found = _solve(examination, groups)
    confirming = replay.confirmations(groups, found.candidates, found.clean) if found.candidates else ()
    if isinstance(confirming, str) or done - 2 >= len(confirming):
        return None
    return ExamKind.REPLAY, _names(examination, confirming[done - 2])


def _judge_replay(examination: Examination) -> Judged:
    if len(examination.rounds) < 2:
        return Judged()
    groups = _layout(examination)
    found = _solve(examination, groups)
    silent = _silent(examination.rounds)
    if found.kind == "none":
        return Judged(unclear=silent)
    confirming = replay.confirmations(groups, found.candidates, found.clean)
    if isinstance(confirming, str):
        return _unconfirmed(examination, found, confirming, silent)
    return _confirmed(examination, found, silent)


def _unconfirmed(examination: Examination, found: replay.Found, why: str, silent: tuple[Refusal, ...]) -> Judged:
    """One candidate is what two rounds find, and they find an innocent one only if two others were each missed once."""
    nodes = tuple(examination.nodes[x] for x in found.candidates)
    doubt = Refusal(what=f"confirm {names_text(nodes)}", why=why)
    if found.kind == "one":
        said = f"replay: {found.why}; not confirmed, so two machines that fail now and then would look the same"
        return Judged(failed={nodes[0]: said}, unclear=(*silent, doubt))
    unnamed = Refusal(what=f"name one of {names_text(nodes)}", why=f"replay: {found.why}")
    return Judged(unclear=(*silent, doubt, unnamed))


def _confirmed(examination: Examination, found: replay.Found, silent: tuple[Refusal, ...]) -> Judged:
    usual = _usual_digests(examination)
    candidates = iter(found.candidates)
    failed: dict[str, str] = {}
    cleared: list[str] = []
    for round_ in examination.rounds[2:]:
        for group in round_.groups:
            node = examination.nodes[next(candidates)]
            if _replayed(group, round_, usual):
                failed[node] = f"replay: {found.why}; and among machines that never failed it failed again"
            else:
                cleared.append(node)
    if not cleared:
        return Judged(failed=failed, unclear=silent)
    why = f"replay: {found.why}; among machines that never failed nothing differed with them"
    return Judged(failed=failed, unclear=(*silent, Refusal(what=f"name {names_text(cleared)}", why=why)))


def _solve(examination: Examination, groups: Layout) -> replay.Found:
    usual = _usual_digests(examination)
    outcomes = [[_replayed(group, round_, usual) for group in round_.groups] for round_ in examination.rounds[:2]]
    return replay.solve(groups, outcomes[0], outcomes[1])


def _layout(examination: Examination) -> Layout:
    groups = replay.layout(len(examination.nodes), examination.pipeline)
    assert isinstance(groups, Layout), "looked at before the examination began"
    return groups


def _usual_digests(examination: Examination) -> dict[str, str]:
    """Return the digest that the majority of all groups computed in the first two rounds, by its kind; kinds without a
    majority are left out."""
    digests = [_group_digest(group, round_) for round_ in examination.rounds[:2] for group in round_.groups]
    odd = replay.odd_digests(digests)
    return {replay.kind_of(digest): digest for digest, outcome in zip(digests, odd, strict=True) if outcome is False}


def _replayed(group: Sequence[str], round_: ExamRound, usual: dict[str, str]) -> Outcome:
    """Whether a group's replay differed: from itself, as its nodes say, or from what the other groups computed."""
    outcome, digest = _outcome(group, round_), _group_digest(group, round_)
    if outcome or (digest and digest != usual.get(replay.kind_of(digest), digest)):
        return True
    return outcome


def _group_digest(group: Sequence[str], round_: ExamRound) -> str:
    return next((digest for node in group if (digest := _digest(round_.answers.get(node)))), "")


def _outcome(group: Sequence[str], round_: ExamRound) -> Outcome:
    """A group fails when one of its nodes says so, passes when all say that, and is unknown otherwise."""
    said = [answer.passed if (answer := round_.answers.get(node)) is not None else None for node in group]
    if False in said:
        return True
    return None if None in said else False


def _silent(rounds: tuple[ExamRound, ...]) -> tuple[Refusal, ...]:
    """Nodes of which something is not known, with what and why."""
    kinds_of: dict[tuple[str, str], list[str]] = {}  # (node, why) -> checks
    for round_ in rounds:
        for node in dict.fromkeys(node for group in round_.groups for node in group):
            answer = round_.answers.get(node)
            if answer is None or answer.passed is None:
                why = "no answer came in time" if answer is None else answer.why
                kinds_of.setdefault((node, why), []).append(str(round_.kind))
    nodes_of: dict[str, list[str]] = {}
    for (node, why), kinds in kinds_of.items():
        nodes_of.setdefault(f"{', '.join(dict.fromkeys(kinds))}: {why}", []).append(node)
    return tuple(
        Refusal(what=f"pass or fail {names_text(nodes)}", why=f"{why}; that is unknown, and neither")
        for why, nodes in nodes_of.items()
    )


def _names(examination: Examination, groups: Sequence[Sequence[int]]) -> Groups:
    return tuple(tuple(examination.nodes[x] for x in group) for group in groups)


def _digest(answer: Answer | None) -> str:
    return answer.digest if answer is not None else ""


def _size_of(state: State, words: tuple[str, ...]) -> int:
    """The size of the parallel groups with such a name, if all are of one size."""
    sizes = {len(group.ranks) for group in state.groups if any(w in group.title.lower() for w in words)}
    return sizes.pop() if len(sizes) == 1 else 1
