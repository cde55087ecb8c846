"""`python -m wellcond`."""

from wellcond.cli.main import main

if __name__ == "__main__":
    main()
