"""What knows no framework, but for `tie_cases`, which names the ops: numbers in, numbers and reports out."""
