"""Fairlead's OpenAI front beside other fronts, in one run on a fake upstream (`python -m bench.front`)."""
