"""``python -m pipeline.cli`` is ``reknit``, also where no scripts are installed."""

from pipeline.cli import main

main(prog_name="reknit")
