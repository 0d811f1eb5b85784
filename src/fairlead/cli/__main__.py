"""`python -m fairlead.cli`, for a virtual environment that was moved after its scripts were written."""

from fairlead.cli import main

if __name__ == "__main__":
    main()
