"""The ``reknit`` command; ``python -m reknit`` is the same where no scripts are installed."""

from reknit.pipeline.cli import main as command


def main() -> None:
    """Run the command and exit."""
    command(prog_name="reknit")


if __name__ == "__main__":
    main()
