"""The frameworks that are compared, one module each: how to ask each for a gradient in the same words."""
