"""What the command line shows beside the comparison: worked cases and a training run."""
