"""Colours of this workflow's rules."""

import itertools

from snakemake_scheduler_plugin_tilewright import COLOURS, pale
from tilewright.config.rules import RULES

#: The eighth colour of Okabe and Ito, a little lighter.
_BLACK = "#1f2328"
_OTHERS = {"qc_cycle": "#52616f", "report": "#4a4f57", "summary": "#767c86", "verdict": "#a3a9b2"}
_RULE_OF = {"qc_register": "register", "qc_subtract": "resample"}


def _colours() -> dict[str, str]:
    """Return the rules in their order; each with its quality rule behind it, paler."""
    found: dict[str, str] = {}
    names = (name for name in RULES if not name.startswith("qc_") and name not in _OTHERS)
    for name, colour in zip(names, itertools.cycle([*COLOURS, _BLACK]), strict=False):
        found[name] = colour
        found |= {quality: pale(colour) for quality, rule in _RULE_OF.items() if rule == name}
    return found | _OTHERS


RULE_COLOURS = _colours()
