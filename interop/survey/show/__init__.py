"""The matrix on the terminal, as text and data, as plots and as a page."""
