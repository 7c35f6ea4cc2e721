"""The flat-fields of a cycle, by what its tiles measured."""
