"""The rule ``illumination``: the flat-fields of a cycle."""
