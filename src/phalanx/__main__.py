"""`python -m phalanx` is the `phalanx` command."""

from phalanx.cli import main

if __name__ == "__main__":
    main()
