"""What tests of several subjects use."""
