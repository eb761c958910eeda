"""`python -m timewheel`: equal to the command `timewheel`."""

from timewheel.cli.app import main

if __name__ == "__main__":
    main()
