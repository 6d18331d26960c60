"""The audit of torch code for gradients that depend on the version: `audit`, the calls it keeps, its report."""
