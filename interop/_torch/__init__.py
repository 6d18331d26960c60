"""What torch needs that knows no op: its private names, in one file, and those of JAX; autocast, forms, states."""
