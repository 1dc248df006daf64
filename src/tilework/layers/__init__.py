"""Parts of networks: attention, blocks, positions, stems."""
