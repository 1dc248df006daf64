"""The fault matrix: `python -m faults` (make faults) runs it at nightly size, tests/test_faults.py a minute of it."""
