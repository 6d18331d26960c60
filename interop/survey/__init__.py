"""What each framework answers at every tie: the matrix, the records of it by version, and what changed between them."""
