"""What limits leave of each account, as a prior: where it is wrong or silent, jobs find out."""

from collections.abc import Collection, Iterable, Mapping

from .accounts import Account
from .request import Place, ResourceRequest


class Room:
    """What is free of all limits of all accounts, while jobs take it.

    Parameters
    ----------
    own : mapping
        By name of a limit, what jobs of this run held when its use was asked: ``held`` counts it.
    held : iterable of (Place, ResourceRequest)
        What jobs of this run hold or wait for now.
    cpu_share : float
        Share of an account's CPUs that CPU jobs may fill.
    for_gpus : ResourceRequest or None
        What a GPU job asks for, while there are some: CPU jobs leave that to each free GPU.
    wrong : collection of Place
        Places where what is known was wrong.
    """

    def __init__(
        self,
        accounts: Iterable[Account],
        own: Iterable[tuple[Place, ResourceRequest]],
        held: Iterable[tuple[Place, ResourceRequest]],
        cpu_share: float,
        for_gpus: ResourceRequest | None,
        wrong: Collection[Place] = (),
    ) -> None:
        self.accounts = {(one.name, one.qos): one for one in accounts}
        self.cpu_share, self.for_gpus, self.wrong = cpu_share, for_gpus, wrong
        scopes = {scope.name: scope for a in self.accounts.values() for scope in a.scopes}
        self.limit = {name: scope.limit for name, scope in scopes.items()}
        self.free = {
            name: {t: n - scope.used[t] for t, n in scope.limit.items() if t in scope.used}
            for name, scope in scopes.items()
            if scope.used is not None
        }
        for times, uses in ((-1, own), (1, held)):
            for place, request in uses:
                self.take(place, request, times)

    def is_known(self, place: Place) -> bool:
        """Return whether something limits a place, and the use of all that is known."""
        account = self.accounts.get((place.account, place.qos))
        return (
            bool(account and account.scopes)
            and place not in self.wrong
            and all(
                self.free.get(scope.name, {}).keys() >= scope.limit.keys() & _COUNTED
                for scope in account.scopes
            )
        )

    def too_large(self, place: Place, request: ResourceRequest) -> str:
        """Return which limit of a place is smaller than one job; empty where none is known."""
        account = self.accounts.get((place.account, place.qos))
        wanted = request.tres
        limits = [(one.name, one.limit) for one in account.scopes] if account else []
        limits += [(f"one job of {account.label}", account.per_job)] if account else []
        for name, limit in limits:
            for tres, most in limit.items():
                if wanted.get(tres, 0) > most:
                    return f"{name} allows {most} of {tres}, and it asks for {wanted[tres]}"
        return ""

    def jobs(self, place: Place, request: ResourceRequest, most: int = 10**6) -> int:
        """Return how many jobs the known limits of a place leave room for, ``most`` at most."""
        account = self.accounts.get((place.account, place.qos))
        for scope in account.scopes if account else ():
            free = self.free.get(scope.name, {})
            kept = self._kept(scope.name) if place.kind == "cpu" else {}
            for tres, wanted in request.tres.items():
                if tres in free and wanted:
                    rest = free[tres] - kept.get(tres, 0)
                    most = min(most, rest // wanted)
        return max(0, most)

    def take(self, place: Place, request: ResourceRequest, times: int = 1) -> None:
        """Take what a job holds, or give it back."""
        account = self.accounts.get((place.account, place.qos))
        for scope in account.scopes if account else ():
            if free := self.free.get(scope.name):
                for tres, wanted in request.tres.items():
                    if tres in free:
                        free[tres] -= times * wanted

    def _kept(self, name: str) -> Mapping[str, int]:
        """Return what CPU jobs leave of a limit: to GPU jobs, and a share of the CPUs."""
        limit, free = self.limit[name], self.free[name]
        kept = {"cpu": round((1 - self.cpu_share) * limit["cpu"])} if "cpu" in limit else {}
        gpus = free.get("gres/gpu", 0)
        if self.for_gpus and gpus > 0:
            for tres, n in (("cpu", self.for_gpus.cpus), ("mem", self.for_gpus.mem_mb)):
                kept[tres] = max(kept.get(tres, 0), gpus * n)
        return kept


#: What limits of accounts are looked at; of other TRES, Slurm tells when one is reached.
_COUNTED = {"cpu", "mem", "gres/gpu", "jobs", "submit", "node"}
