"""More random programs than the tests have, with what fails of them printed.

For the record: python -m tests.fuzz programs-jax --programs 1000
"""

import argparse
import importlib
import time

import jax

from tests.fuzz.programs import ROWS

MODULES = {
    "ops-jax": "by_definition",
    "ops-torch": "by_definition_torch",
    "programs-jax": "by_differences",
    "programs-torch": "by_differences_torch",
}
"""Where each kind of programs is compared, in each framework."""
TOGETHER = 28


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=MODULES)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--start", type=int, default=1000, help="the first seed; those of the tests are below 1000")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", ROWS)
    failures_of = importlib.import_module(f"tests.fuzz.{MODULES[options.kind]}").failures_of
    count, begin = 0, time.monotonic()
    seeds = range(options.start, options.start + options.programs)
    for first in range(0, len(seeds), TOGETHER):
        group = seeds[first : first + TOGETHER]
        for text in failures_of(group):
            count += 1
            print(text, flush=True)
        jax.clear_caches()
        seconds = time.monotonic() - begin
        print(f"{options.kind}, seeds {group[0]} to {group[-1]}: {count} failures, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
