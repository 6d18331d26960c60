"""Torch code that exists already: puts it under the convention, or a version, and counts its ties."""
