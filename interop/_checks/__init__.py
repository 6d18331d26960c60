"""What asks a checker of gradients to judge a function of torch."""
