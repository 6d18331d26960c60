"""The repository: documentation, examples, packages, the command line, the layers of the code."""
