"""Point spread functions, blur, and Richardson-Lucy deconvolution."""
