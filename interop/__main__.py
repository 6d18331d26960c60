"""The entry of the command line: ``python -m interop``, and ``jaxclamp`` in a shell."""

from interop.cli.packages import require

require("click")

from interop.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
