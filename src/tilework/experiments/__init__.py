"""Experiments of several runs with tables and reports: demo, storage comparison, ablations, tokenizers."""
