"""The former place of `jaxclamp._shared.oracle`, kept until 0.3 for code that imports from here."""

from jaxclamp._shared.oracle import corners_of_values, least_norm, min_norm_gradient, min_norm_of_values, points_near

__all__ = ["corners_of_values", "least_norm", "min_norm_gradient", "min_norm_of_values", "points_near"]
