"""Torch code that exists already: put under the convention, and asked where its ties are."""
