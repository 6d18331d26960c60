"""Parts of torch that know no op: its private names, in one file, autocast, forms of functions, states, checkpoints."""
