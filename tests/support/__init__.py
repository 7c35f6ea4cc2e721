"""What tests share: experiments, machines, images with known truth."""
