"""The libraries whose models are taken as they are, a subclass of `Model` for each."""
