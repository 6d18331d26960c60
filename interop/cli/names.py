"""What can be named on the command line, which finds a mistyped name before it imports JAX and torch."""

# Written by `make tables`.

OPS = (
    "clamp", "relu", "maximum", "minimum", "clamp_min", "clamp_max", "relu6", "hardtanh", "abs", "leaky_relu", "prelu",
    "elu", "selu", "celu", "hardsigmoid", "hardswish", "softshrink", "hardshrink", "threshold", "amax", "amin",
    "max_with_indices", "min_with_indices", "max_pool1d", "max_pool2d", "max_pool3d", "fmax", "fmin", "norm", "hypot",
)
DTYPES = ("float32", "float64", "bfloat16", "float16")
FRAMEWORKS = (
    "jaxclamp", "interop", "native", "jax", "torch", "autograd", "tensorflow", "keras", "mlx", "paddle", "tinygrad",
)
FORMATS = ("table", "markdown", "json", "csv")
CONVERTIBLES = ("jax", "torch")
ALLOWED = ("ties", "rounding")
