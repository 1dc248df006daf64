"""Looks at one trained model or one data set: relevance, mixtures, augmentations, stems."""
