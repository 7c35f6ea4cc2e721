"""The rule ``illumination``: the flat-field of one cycle and channel."""
