"""What a run found of the cluster, in a few lines at its start."""

from collections.abc import Collection, Mapping, Sequence

from ..slurm.accounts import Account
from ..slurm.records import Partition
from ..words import count
from .limits import largest, remaining, use_is_known
from .request import KINDS, DeviceKind
from .state import ClusterState

#: Accounts with words of their own, and names of those left out for one reason.
_ACCOUNTS, _LEFT_OUT = 3, 4
_SHOWN = {"cpu": "CPU", "mem": "GB", "gres/gpu": "GPU", "jobs": "job"}


def cluster_summary(state: ClusterState, kinds: Collection[DeviceKind] = KINDS) -> list[str]:
    """Return the accounts and their limits, what is left out and why, and the partitions.

    Parameters
    ----------
    kinds : collection of {"gpu", "cpu"}
        Where jobs of the run may go: nothing is shown of the other.
    """
    first = {kind: next(iter(state.partitions.get(kind, ())), None) for kind in KINDS}
    where = dict.fromkeys(_SHOWN, first["cpu"]) | {"gres/gpu": first["gpu"]}
    if "gpu" not in kinds:
        del where["gres/gpu"]
    qos: dict[str, list[Account]] = {}
    for account in state.accounts:
        qos.setdefault(account.name, []).append(account)
    names = list(qos)
    lines = [f"  {name}: {_limits(qos[name], where)}" for name in names[:_ACCOUNTS] if name]
    head = f"jobs go to {count(len(names), 'account')} of {state.user}"
    if not lines:
        head = "jobs name no account, and go where nodes have room"
    hint = "; see `tilewright-placement accounts`" if lines else ""
    if others := names[_ACCOUNTS:]:
        lines.append(f"  and {_names(others)}")
    why: dict[str, list[str]] = {}
    for one in state.left_out:
        why.setdefault(one.reason, []).append(one.account)
    lines += [f"  left out: {_names(names)}: {reason}" for reason, names in why.items()]
    targets = state.leaving_gpus(state.targets())
    found = {k.upper(): list(dict.fromkeys(t.partition for t in targets if t.device == k))
             for k in KINDS if k in kinds}  # fmt: skip
    places = [
        f"{k} jobs to {_names([p or 'the default one' for p in own])}"
        if own and own != [None]
        else f"none for {k} jobs"
        for k, own in found.items()
    ]
    lines.append(f"  partitions: {'; '.join(places)}")
    notes = dict.fromkeys(f"  note: {note.text}" for note in state.notes)
    return [head + hint, *lines, *notes]


def _limits(qos: Sequence[Account], where: Mapping[str, Partition | None]) -> str:
    """Return what an account may use of each TRES, on its first QOS, and what is free now."""
    account = qos[0]
    most = {tres: largest(account, place, tres) for tres, place in where.items()}
    limits = [_amount(tres, n) for tres, n in most.items() if n is not None]
    own = f"QOS {account.qos}, " if account.qos else ""
    if more := _names([one.qos for one in qos[1:]]):
        own = f"QOS {account.qos}, and {more}; "
    if not limits:
        return f"{own}no limit of its own"
    known = [
        _amount(tres, n)
        for tres, place in where.items()
        if use_is_known(account, place, tres) and (n := remaining(account, place, tres)) is not None
    ]
    now = f"{', '.join(known)} free now" if known else "what is free now is not known"
    return f"{own}{', '.join(limits)}; {now}"


def _names(names: list[str]) -> str:
    rest = len(names) - _LEFT_OUT
    return ", ".join(names[:_LEFT_OUT]) + (f" and {rest} more" if rest > 0 else "")


def _amount(tres: str, number: int) -> str:
    return f"{number / 1024:.0f} GB" if tres == "mem" else count(number, _SHOWN[tres])
