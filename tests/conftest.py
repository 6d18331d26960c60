"""What holds for all tests: the same examples in every run, no look at the clock, and eight devices to shard over."""

import jax
from hypothesis import settings

jax.config.update("jax_num_cpu_devices", 8)
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")
