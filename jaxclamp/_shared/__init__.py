"""What the tests of the ops and the comparison of frameworks both need, for which torch need not be installed."""
