"""What jobs use of the limits of QOS and accounts, and which limit keeps one from starting."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from .records import COUNTED, Scenario, Tres

#: Pending reasons by what is limited.
_GROUP = {"jobs": "GrpJobsLimit", "cpu": "GrpCpuLimit", "mem": "GrpMemLimit",
          "node": "GrpNodeLimit", "gres/gpu": "GrpGRES"}  # fmt: skip
_USER = {"jobs": "QOSMaxJobsPerUserLimit", "cpu": "QOSMaxCpuPerUserLimit",
         "mem": "QOSMaxMemoryPerUser", "node": "QOSMaxNodePerUserLimit",
         "gres/gpu": "QOSMaxGRESPerUser"}  # fmt: skip


class Limits:
    """Limits as they are now, and their use.

    Attributes
    ----------
    group : dict
        QOS to the limit of all its jobs, which an administrator may change.
    use : dict
        ``("qos", name)``, ``("qos", name, user)`` and ``("account", name)`` to what is in use.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.qos = {one.name: one for one in scenario.qos}
        self.accounts = {one.name: one for one in scenario.accounts}
        self.group: dict[str, Tres] = {one.name: one.group for one in scenario.qos}
        self.use: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)

    def lineage(self, account: str) -> Iterator[str]:
        """Yield an account and those above it but the root."""
        while account in self.accounts:
            yield account
            account = self.accounts[account].parent

    def count(self, user: str, account: str, qos: str, sign: int, amounts: Tres) -> None:
        """Count so much more, or less, in use."""
        keys = [("qos", qos), ("qos", qos, user)]
        keys += [("account", name) for name in self.lineage(account)]
        for key in keys:
            use = self.use[key]
            for tres, n in amounts.items():
                use[tres] += sign * n

    def reached(self, user: str, account: str, qos: str, tres: Tres) -> str:
        """Return the first limit that keeps a job from starting, by Slurm's word; else empty.

        Of a TRES that its QOS limits for all, limits of its accounts do not count.
        """
        spec, wanted = self.qos.get(qos), {**tres, "jobs": 1}
        if spec is None:
            return ""
        group = self.group[qos]
        if over := _over(group, self.use["qos", qos], wanted):
            return f"QOS{_GROUP[over]}"
        if over := _over(spec.user, self.use["qos", qos, user], wanted):
            return _USER[over]
        for name in self.lineage(account):
            own = {t: n for t, n in self.accounts[name].group.items() if t not in group}
            if over := _over(own, self.use["account", name], wanted):
                return f"Assoc{_GROUP[over]}"
        return ""

    def submit_reached(self, user: str, qos: str) -> str:
        """Return the limit of submitted jobs that one more would break; empty where none."""
        spec = self.qos.get(qos)
        if spec is None:
            return ""
        most = spec.user.get("submit")
        if most is not None and self.use["qos", qos, user]["submit"] >= most:
            return "QOSMaxSubmitJobPerUserLimit"
        most = self.group[qos].get("submit")
        full = most is not None and self.use["qos", qos]["submit"] >= most
        return "QOSGrpSubmitJobsLimit" if full else ""


def _over(limit: Tres, use: Mapping[str, int], wanted: Tres) -> str:
    return next((tres for tres in COUNTED if tres in limit and tres in wanted
                 and use.get(tres, 0) + wanted[tres] > limit[tres]), "")  # fmt: skip
