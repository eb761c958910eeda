"""The command `timewheel`, and `python -m timewheel`."""

import sys

from timewheel.core.extras import ExtraMissing, need_extras


def main() -> None:
    """Run the command; without its libraries print how to install them."""
    try:
        need_extras("the command timewheel", "cli")
    except ExtraMissing as missing:
        sys.exit(f"error: {missing}")
    # Imported here: it needs these libraries.
    from timewheel.cli.app import main as command  # noqa: PLC0415

    command()


if __name__ == "__main__":
    main()
