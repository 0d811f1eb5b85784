"""Runs the `fairlead` command as `python -m fairlead.cli`. This works even in a virtual environment that was moved,
where the `fairlead` script does not."""

from fairlead.cli import main

if __name__ == "__main__":
    main()
