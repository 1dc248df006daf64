"""Registry, configuration, random numbers, files, errors and batches: what every room stands on."""
