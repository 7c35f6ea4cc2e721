"""What values read from JSON files that may be damaged have to be, and those of a ledger's lines.

Numbers are of a size that something has; a text may hold a file name that is not UTF-8.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, InstanceOf, Strict, TypeAdapter, create_model

Text = InstanceOf[str]
Count = Annotated[int, Field(ge=0, le=10**9)]
#: Seconds, such as a clock of this age shows.
Time = Annotated[float, Field(ge=-1e10, le=1e10)]
STRICT = ConfigDict(strict=True, allow_inf_nan=False)

_Pool = Annotated[tuple[Text, Text, Count], Strict(False)]  # JSON has it as a list
_VALUES: dict[str, Any] = {
    **dict.fromkeys(("start_s", "end_s", "sent_s"), (Time, 0.0)),
    **dict.fromkeys(("job", "rule", "pool", "account", "kind", "node", "cause"), (Text, "")),
    **dict.fromkeys(("words", "reason", "next", "log", "sooner"), (Text, "")),
    **dict.fromkeys(("ready", "members"), (Count, 0)),
    "kinds": (list[Any], []),
    "why": (dict[Text, Count], {}),
    "pools": (dict[Text, _Pool], {}),
}

#: Any object of a file of JSON lines.
OBJECT: TypeAdapter[Any] = TypeAdapter(dict[str, Any], config=STRICT)
#: The values of a ledger's events that are read again; other ones may be anything.
EVENT: TypeAdapter[Any] = TypeAdapter(
    create_model(
        "Event", __config__={**STRICT, "extra": "allow"}, event=Text, time_s=Time, **_VALUES
    )
)
