"""Lists of runs with their tables and pages: the demo, comparisons, ablations, tokenizers."""
