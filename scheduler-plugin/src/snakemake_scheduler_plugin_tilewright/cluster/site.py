"""What is particular to a site: the file ``site.yaml`` next to a profile, and its keys."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..errors import SiteError
from ..runtime.files import open_regular
from ..slurm.accounts import SiteRules
from ..slurm.parse import parse_tres
from ..strict_yaml import MOST_B, load_yaml
from .request import DeviceKind, ResourceRequest
from .state import UTILISATION
from .tres import ON_NODES


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _tres(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not parse_tres(part).keys() & set(ON_NODES)]
    if wrong:
        raise ValueError(f"'{wrong[0]}' is none of cpu=40, mem=200G and gres/gpu=2")
    return text


class _Section(BaseModel):
    # YAML reads the account 12345 as a number.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        use_attribute_docstrings=True,
    )


#: Slurm takes names of accounts in any case, and stores small letters.
_Account = Annotated[str, AfterValidator(str.lower)]


class JobSize(_Section):
    """The largest job of a device kind, from which slots are counted."""

    cpus: int = Field(default=8, ge=1)
    mem_gb: float = Field(gt=0)
    runtime_min: int = Field(default=240, ge=1)

    def request(self, gpus: int) -> ResourceRequest:
        """Return what such a job asks for."""
        return ResourceRequest(self.cpus, round(self.mem_gb * 1024), gpus, self.runtime_min)


class Partitions(_Section):
    """Where jobs of each kind may go; null is all partitions, ``gpu: none`` uses no GPU."""

    gpu: str | list[str] | None = None
    cpu: str | list[str] | None = None

    def names(self) -> dict[DeviceKind, list[str]]:
        """Return the names for each kind that has some."""
        own: dict[DeviceKind, str | list[str] | None] = {"gpu": self.gpu, "cpu": self.cpu}
        return {k: [one] if isinstance(one, str) else one for k, one in own.items() if one}


class Site(_Section):
    """A site."""

    burst: Annotated[str, AfterValidator(_expression)] = SiteRules.burst
    """Regular expression of burst accounts and QOS, which are left out."""
    blocked: dict[_Account, Annotated[str, Field(min_length=3)]] = Field(default_factory=dict)
    """Account to the reason why it is not used."""
    allowed: list[_Account] | None = None
    """The only accounts to use."""
    qos: list[_Account] | None = None
    """The only QOS to use."""
    accounts: dict[_Account, DeviceKind] = Field(default_factory=dict)
    """Account to the one kind of jobs, `gpu` or `cpu`, that it takes."""
    caps: dict[_Account, Annotated[str, AfterValidator(_tres)]] = Field(default_factory=dict)
    """Account to TRES (`cpu=40,mem=200G`) that its jobs do not exceed together."""
    utilisation: float = Field(default=UTILISATION, gt=0, le=1)
    """Share of an account's CPUs that CPU jobs may fill."""
    partitions: Partitions = Partitions()
    """The only partitions for jobs of each kind, a name or a list; `gpu: none` uses no GPU."""
    gpu_job: JobSize = JobSize(mem_gb=180)
    """The largest GPU job, from which slots are counted."""
    cpu_job: JobSize = JobSize(mem_gb=48, runtime_min=1200)
    """The same for CPU jobs."""
    slowdown: float = Field(default=5.0, ge=1)
    """How much longer a CPU job takes than a GPU job, until it is learned."""
    slowdowns: dict[str, Annotated[float, Field(ge=0.1)]] = Field(default_factory=dict)
    """The same for single rules."""
    patience_s: float = Field(default=60.0, ge=0)
    """Seconds a job pends in vain before it may be moved, and before its reason is shown."""
    calls_per_min: float = Field(default=12.0, ge=1)
    """About how often Slurm is asked in a run; how old answers may be follows from it."""

    def rules(self) -> SiteRules:
        """Return what decides which accounts are used."""
        caps = {account: parse_tres(text) for account, text in self.caps.items()}
        return SiteRules(self.burst, self.blocked, self.allowed, caps, self.qos, self.accounts)

    def largest_jobs(self) -> dict[DeviceKind, ResourceRequest]:
        """Return the largest job of each device kind."""
        return {"gpu": self.gpu_job.request(gpus=1), "cpu": self.cpu_job.request(gpus=0)}


def read_site(path: Path | None) -> Site:
    """Return the site of a file, the defaults without one.

    Raises
    ------
    SiteError
        The file is absent, is not YAML, or has an unknown or wrong key.
    """
    if path is None:
        return Site()
    try:
        with open_regular(path) as stream:
            content = load_yaml(stream.read(MOST_B + 1).decode(), path)
        return Site.model_validate(content or {})
    except FileNotFoundError:
        raise SiteError(f"{path} does not exist; give the site file of your profile") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SiteError(f"{path} cannot be read: {reason.lower()}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        fixes = {"extra_forbidden": "; remove it", "dict_type": "; write `key: value` pairs"}
        fix = fixes.get(first["type"], "")
        own = first.get("ctx", {}).get("error")  # of the validators here
        message = str(own) if own else first["msg"][:1].lower() + first["msg"][1:]
        raise SiteError(f"{path}: '{key}': {message}{fix}") from None
    except ValueError as error:
        raise SiteError(str(error)) from None
