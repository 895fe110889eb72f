"""`python -m rltrain`: the command line."""

from rltrain.cli import main

if __name__ == "__main__":
    main()
