"""What each framework answers at every tie: the parity matrix, its records by version, and what changed since."""
