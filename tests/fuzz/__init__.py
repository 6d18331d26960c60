"""Random programs, against definitions that share no code with the packages."""
