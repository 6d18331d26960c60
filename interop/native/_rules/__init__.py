"""The rules of ops on torch's own kernels, and how each reaches eager mode, torch.func and torch.compile."""
