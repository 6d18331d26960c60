"""Two functions compared, of JAX or torch: their values and gradients, and which differences ties explain."""
