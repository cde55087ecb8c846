"""`python -m wellcond`."""

from wellcond.cli import main

if __name__ == "__main__":
    main()
