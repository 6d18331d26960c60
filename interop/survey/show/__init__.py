"""Shows the matrix: on a terminal, as text and data, as plots and as a page."""
