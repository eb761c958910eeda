"""`python -m timewheel`: the same as the command `timewheel`."""

from timewheel.cli.app import main

if __name__ == "__main__":
    main()
