"""The rule ``calibrate``: a cycle's tile positions, flat-fields and camera from one reading."""
