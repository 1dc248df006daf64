"""Lists of runs with their tables and pages; today, the demo."""
