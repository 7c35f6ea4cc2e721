"""Raw multiplexed-microscopy tiles to a registered, quality-checked image."""
