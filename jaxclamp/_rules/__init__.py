"""The rules by which ops are differentiated, each written once, and the one place where JAX learns a derivative."""
