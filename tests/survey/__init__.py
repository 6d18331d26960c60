"""What the frameworks answer at ties: the oracle, the matrix, the records."""
