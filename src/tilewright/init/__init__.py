"""``tilewright init``: a raw folder in, a configuration for it out."""
