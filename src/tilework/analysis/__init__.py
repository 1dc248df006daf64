"""Figures about trained models: attribution, mixed images, augmentations, stems."""
