"""The min-norm rules, selection and kink, each written once, and the one place where JAX learns a derivative."""
