"""Registry, configuration, random numbers, files, errors and batches; imports no other part of Tilework."""
