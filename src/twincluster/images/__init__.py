"""Images: where they come from, how they are decoded, how they are kept."""
